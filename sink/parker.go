package sink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/state"
)

// How much goes into one round trip.
const (
	parkLetters = 1000
	parkBytes   = 4 << 20
)

// parker writes dead letters. Whoever has one leaves it here and goes on; its event is done when the letter is
// committed. Letters that come while one lot is being written make the next, so a hundred of them cost a few round
// trips. They are committed in the order in which they came.
type parker struct {
	sink *Sink
	wake chan struct{} // holds one token: something is queued

	mu        sync.Mutex // guards the fields below
	queue     []*Letter
	last      uint64        // number of the last letter queued
	committed uint64        // number of the last letter committed
	turn      chan struct{} // closed, and replaced, when committed rises
}

func newParker(s *Sink) *parker {
	return &parker{sink: s, wake: make(chan struct{}, 1), turn: make(chan struct{})}
}

// put queues a letter and returns its number.
func (p *parker) put(l *Letter) uint64 {
	if l.policy != PolicyHalt || l.Class == classHeld { // what was halted at is counted
		p.sink.poisoned.count(l.Class, l.policy)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, l)
	p.last++
	p.sink.poke(p.wake)
	return p.last
}

// idle reports whether nothing waits to be written.
func (p *parker) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last == p.committed
}

// await returns when the letters up to a number are committed.
func (p *parker) await(ctx context.Context, n uint64) error {
	for {
		p.mu.Lock()
		done, turn := p.committed >= n, p.turn
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-turn:
		case <-p.sink.ended:
			return p.sink.endError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run writes until ctx ends, whose cause it returns, or the slot is another's.
func (p *parker) run(ctx context.Context) error {
	retry := newRetrier(p.sink, "sink/dead-letters", "write dead letters")
	for {
		lot := p.take()
		if len(lot) == 0 {
			select {
			case <-p.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := retry.table(ctx, func() error { return p.sink.cfg.DeadLetters.Park(ctx, lot) }); err != nil {
			return err
		}
		p.commit(lot)
	}
}

// take removes from the queue what goes in one round trip.
func (p *parker) take() []*Letter {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, bytes := 0, 0
	for n < len(p.queue) && n < parkLetters && (n == 0 || bytes+p.queue[n].size <= parkBytes) {
		bytes += p.queue[n].size
		n++
	}
	lot := append([]*Letter(nil), p.queue[:n]...)
	k := copy(p.queue, p.queue[n:])
	clear(p.queue[k:])
	p.queue = p.queue[:k]
	return lot
}

// commit settles the events of letters that are durable.
func (p *parker) commit(lot []*Letter) {
	s := p.sink
	p.mu.Lock()
	p.committed += uint64(len(lot))
	close(p.turn)
	p.turn = make(chan struct{})
	p.mu.Unlock()
	s.copier.put(lot)
	seqs, bytes := make([]uint64, len(lot)), 0
	for i, l := range lot {
		seqs[i] = l.seq
		bytes += l.size
		if l.topicOf != nil {
			l.topicOf.inFlight.Add(-1)
		}
		if l.committed != nil {
			close(l.committed)
		}
	}
	s.done(seqs)
	s.backlogBytes.Add(int64(-bytes))
	s.parked.Add(uint64(len(lot)))
	s.freed(s.backlogEvents.Add(int64(-len(lot))))
}

// table repeats what is asked of the table of dead letters until it is done, and says meanwhile what is wrong. It
// returns ctx's cause, what ended the session, or ErrNotOwner.
func (r *retrier) table(ctx context.Context, try func() error) error {
	for {
		r.begin()
		err := try()
		switch {
		case err == nil:
			r.succeeded()
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrNotOwner):
			return err
		}
		r.failed(reasonDatabase)
		as, hint, delay := state.DatabaseUnreachable, "the relay keeps trying; look at the database", r.fast.NextBackOff()
		if e := state.Of(err); e != nil {
			as, hint = e.State, e.Hint
		}
		if as.NeedsHuman() {
			delay = r.sink.cfg.Recheck
		}
		if as.NeedsHuman() || time.Since(r.failing) >= r.sink.cfg.UnreachableAfter {
			r.raise(as, err, hint)
		}
		if err := r.pause(ctx, delay); err != nil {
			return err
		}
	}
}
