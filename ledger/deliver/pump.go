package deliver

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/outboxrelay/relay/ledger"
)

// pump makes the deliveries of one channel. It claims what is due and hands it to a fixed number of goroutines, one
// delivery of a recipient at a time and recipients in turn: deliveries to one recipient begin in the order in which
// they became due, and a recipient that is slow occupies one goroutine.
//
//	claim_due ──► lanes: one for each recipient with work ──► goroutines
//
// What is claimed and cannot be worked on at once waits here under its lease, so it is bounded, for the channel and
// for each recipient; what is too much is given back.
type pump struct {
	worker  *Worker
	channel *ChannelSetting
	wake    chan struct{} // holds one token: something was registered
	// followers are the pumps of the channels that come after this one.
	followers []*pump

	// mu guards the fields below; ready is signalled when they change.
	mu    sync.Mutex
	ready *sync.Cond
	lanes map[string]*lane
	turn  []*lane // with work and without a goroutine, the next first
	held  int     // claimed and not ended
	more  bool    // the last claim brought all it asked for
	ended bool    // nothing more is claimed
}

// lane is what one recipient is to get, the oldest first.
type lane struct {
	recipient string
	work      []claimed // without the one that is being made
	since     time.Time // when that began; zero: none is
}

// claimed is a delivery that waits here.
type claimed struct {
	ledger.Reservation
	at time.Time // of claiming
}

const (
	aheadChannel = 4           // how much is claimed ahead, for each goroutine of the channel
	slowAfter    = time.Second // a recipient whose delivery takes longer is slow
	aheadSlow    = 2           // how much waits for one that is
)

// slow reports whether the lane's delivery takes long.
func (l *lane) slow(now time.Time) bool { return !l.since.IsZero() && now.Sub(l.since) > slowAfter }

// stale reports whether half of the lease went by in waiting. Whoever claims a row whose lease is over counts another
// attempt, so what was not tried is given back before.
func (c *claimed) stale(now time.Time) bool { return now.After(c.at.Add(c.Deadline.Sub(c.at) / 2)) }

func newPump(w *Worker, c *ChannelSetting) *pump {
	p := &pump{worker: w, channel: c, wake: make(chan struct{}, 1), lanes: map[string]*lane{}}
	p.ready = sync.NewCond(&p.mu)
	return p
}

// poke has the pump look for work now.
func (p *pump) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run claims until soft ends, and returns after the last delivery has ended. An error says that the database refuses
// for good.
func (p *pump) run(soft, hard context.Context) error {
	var working sync.WaitGroup
	for range p.channel.Concurrency {
		working.Go(func() { p.work(soft, hard) })
	}
	err := p.claim(soft, hard)
	for _, r := range p.finish() {
		p.release(hard, r)
	}
	working.Wait()
	return err
}

// finish ends the goroutines when they have done what they are at, and returns what is left.
func (p *pump) finish() (left []ledger.Reservation) {
	p.mu.Lock()
	for _, l := range p.lanes {
		for _, c := range l.work {
			left = append(left, c.Reservation)
		}
		l.work = nil
	}
	p.turn = nil
	p.held -= len(left)
	p.ended = true
	p.ready.Broadcast()
	p.mu.Unlock()
	p.worker.count.held(p.channel.Name, -len(left))
	return left
}

func (p *pump) claim(soft, hard context.Context) error {
	failures := 0
	for soft.Err() == nil {
		p.tidy(hard)
		free := p.free()
		if free == 0 {
			p.pause(soft, p.worker.cfg.Poll) // end cuts it short
			continue
		}
		// Not under soft: a claim whose answer is lost keeps its rows from everybody until their leases end.
		due, err := p.worker.ledger.ClaimDue(hard, []string{p.channel.Name}, free)
		switch {
		case err != nil && soft.Err() != nil:
			return nil
		case err != nil && !ledger.Transient(err):
			return err
		case err != nil:
			failures++
			p.worker.notice(err)
			p.pause(soft, backoff(failures))
			continue
		}
		failures = 0
		p.take(due, len(due) == free)
		if len(due) < free && p.channel.asks() {
			p.probe(hard)
		}
		p.pause(soft, p.worker.cfg.Poll)
	}
	return nil
}

// pause waits for something to be registered or for d.
func (p *pump) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.wake:
	case <-ctx.Done():
	}
}

// backoff is the wait after a number of failures in a row, to 5 s, with jitter.
func backoff(failures int) time.Duration {
	d := min(50*time.Millisecond<<min(failures, 10), 5*time.Second)
	return d/2 + rand.N(d/2+1)
}

func (p *pump) free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, p.channel.Concurrency*aheadChannel-p.held)
}

// take puts claimed deliveries into their lanes. more: others may be due.
func (p *pump) take(due []ledger.Reservation, more bool) {
	now := time.Now()
	p.mu.Lock()
	p.more = more
	for _, r := range due {
		l := p.lanes[r.Key.Recipient]
		if l == nil {
			l = &lane{recipient: r.Key.Recipient}
			p.lanes[r.Key.Recipient] = l
		}
		if len(l.work) == 0 && l.since.IsZero() {
			p.turn = append(p.turn, l)
		}
		l.work = append(l.work, claimed{r, now})
	}
	p.held += len(due)
	p.ready.Broadcast()
	p.mu.Unlock()
	p.worker.count.held(p.channel.Name, len(due))
}

// tidy gives back what would wait too long here: what a slow recipient is to get after the next ones, so that others
// have room, and what has waited for half of its lease. It is due again at once, for whoever has room.
func (p *pump) tidy(ctx context.Context) {
	now := time.Now()
	var back []ledger.Reservation
	p.mu.Lock()
	for _, l := range p.lanes {
		keep := len(l.work)
		if l.slow(now) {
			keep = min(keep, aheadSlow)
		}
		for i := range keep {
			if l.work[i].stale(now) {
				keep = i
				break
			}
		}
		for _, c := range l.work[keep:] {
			back = append(back, c.Reservation)
		}
		l.work = l.work[:keep]
		if keep == 0 && l.since.IsZero() {
			delete(p.lanes, l.recipient)
			p.turn = slices.DeleteFunc(p.turn, func(other *lane) bool { return other == l })
		}
	}
	p.held -= len(back)
	p.mu.Unlock()
	p.worker.count.held(p.channel.Name, -len(back))
	for _, r := range back {
		p.release(ctx, r)
	}
}

// work takes lanes in turn, one delivery of each.
func (p *pump) work(soft, hard context.Context) {
	for {
		l, r, ok := p.next()
		if !ok {
			return
		}
		outcome, err := p.worker.make.attempt(soft, hard, r) // gives back what soft's end has overtaken
		p.done(r, outcome, err)
		if outcome == ledger.Delivered || outcome == ledger.LateAccepted {
			p.wakeFollowers(hard, r.Key)
		}
		p.end(l)
	}
}

// wakeFollowers has the channels that come after this one look for what waited for the delivery. If it cannot be told,
// the ledger looks by itself, only later.
func (p *pump) wakeFollowers(ctx context.Context, k ledger.Key) {
	if len(p.followers) == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, p.worker.cfg.QueryTimeout)
	defer cancel()
	if _, err := p.worker.pool.Exec(bounded, "SELECT ledger.wake_followers($1::text, $2::text, $3::text, $4::text)", describe,
		k.Tenant, k.EventKey, k.Recipient, k.Channel); err != nil {
		p.worker.notice(err)
		return
	}
	for _, f := range p.followers {
		f.poke()
	}
}

// next waits for a lane with work. false: there will be none. While a delivery is made, its lane is in no turn.
func (p *pump) next() (*lane, ledger.Reservation, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.turn) == 0 {
		if p.ended {
			return nil, ledger.Reservation{}, false
		}
		p.ready.Wait()
	}
	l := p.turn[0]
	p.turn = p.turn[1:]
	r := l.work[0].Reservation
	l.work = l.work[1:]
	l.since = time.Now()
	return l, r, true
}

func (p *pump) end(l *lane) {
	p.worker.count.held(p.channel.Name, -1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held--
	l.since = time.Time{}
	if len(l.work) > 0 {
		p.turn = append(p.turn, l)
	} else {
		delete(p.lanes, l.recipient)
	}
	p.ready.Broadcast()
	if p.more && p.held <= p.channel.Concurrency*aheadChannel/2 {
		p.more = false
		p.poke()
	}
}

func (p *pump) release(ctx context.Context, r ledger.Reservation) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.worker.cfg.StopGrace+time.Second)
	defer cancel()
	outcome, err := p.worker.ledger.Release(bounded, r)
	p.done(r, outcome, err)
}

// done tells of the end of an attempt.
func (p *pump) done(r ledger.Reservation, outcome ledger.Outcome, err error) {
	p.worker.count.attempt(p.channel.Name, outcome)
	if p.worker.cfg.Observe != nil {
		p.worker.cfg.Observe(Observation{Channel: r.Key.Channel, Attempt: r.Attempt, Outcome: outcome, Err: err})
	}
}
