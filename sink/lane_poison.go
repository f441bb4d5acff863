package sink

import (
	"context"

	"github.com/outboxrelay/relay/outbox"
)

// step does what the first thing in the lane's queue asks for.
func (l *lane) step(ctx context.Context, b *Batch) error {
	switch {
	case b.letter != nil:
		l.park(b.letter)
		return nil
	case b.task != nil:
		if err := l.beforeReplay(ctx); err != nil {
			return err
		}
		return b.task(ctx, l)
	case b.job != nil:
		return l.publishJob(ctx, b)
	}
	l.after = max(l.after, b.after)
	if err := l.awaitLetters(ctx); err != nil {
		return err
	}
	if l.check != nil {
		rest, err := l.resume(ctx, b)
		if rest == nil || err != nil {
			return err
		}
		b = rest
	}
	return l.publish(ctx, b)
}

// park gives a letter to the parker. Whatever follows it in this lane is sent only when it is committed. An event whose
// key is held waits behind the others of its key, and so it is counted.
func (l *lane) park(x *Letter) {
	key := newHoldKey(x.Topic, x.Partition, x.Key)
	_, at, err := outbox.ParsePosition(x.Position)
	switch held := err == nil && l.sink.holds.any() && l.sink.holds.holds(key, at); {
	case held:
		x.State, x.Holds = Held, true
	case x.policy == PolicyHoldKey:
		x.Holds = true
		l.sink.holds.add(key, at)
	}
	l.pending.Add(-1)
	l.after = l.sink.parker.put(x)
}

// sendAfter has what is added from now on sent only when a letter is committed. So that a lane with many letters still
// sends full batches, what shares a batch with it waits too.
func (l *lane) sendAfter(letter uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind = letter
}

// awaitLetters returns when the letters before it in the lane are committed.
func (l *lane) awaitLetters(ctx context.Context) error {
	if l.after == 0 {
		return nil
	}
	if err := l.sink.parker.await(ctx, l.after); err != nil {
		return err
	}
	l.after = 0
	return nil
}

// sift takes the events of held keys out of a batch that was not sent yet, and parks them. It returns the rest, nil
// when there is none.
func (l *lane) sift(b *Batch) *Batch {
	s := l.sink
	var waiting []*Letter
	take := make([]bool, b.Len())
	i := 0
	for raw := range b.raw() {
		if x := l.waits(b, i, raw); x != nil {
			take[i] = true
			waiting = append(waiting, x)
		}
		i++
	}
	if len(waiting) == 0 {
		return b
	}
	rest := s.pool.batch(b.Topic, b.Partition)
	rest.Time = b.Time
	i = 0
	for raw := range b.raw() {
		if !take[i] {
			rest.copy(&s.pool, b, i, raw)
		}
		i++
	}
	freed := rest.size - b.size
	for _, x := range waiting {
		freed += x.size
	}
	s.backlogBytes.Add(int64(freed))
	s.pool.put(b)
	for _, x := range waiting {
		l.park(x)
	}
	if rest.Len() == 0 {
		s.pool.put(rest)
		return nil
	}
	return rest
}

// waits returns the letter of a record whose key is held, nil for any other.
func (l *lane) waits(b *Batch, i int, raw []byte) *Letter {
	var r published
	if !r.parseOwn(raw) {
		return nil
	}
	partition := int32(-1)
	if l.sink.routes[b.routes[i]].partition != nil {
		partition = l.partition
	}
	if !l.sink.holds.holds(newHoldKey(l.topic.name, partition, r.key), r.position) {
		return nil
	}
	x := l.letterOf(b, i, raw)
	x.Class, x.Reason, x.Attempts = classHeld, "an event of its key before it is parked", 0
	return x
}

// refused deals with the only record of a batch that the broker refuses for good. It reports whether the lane goes on;
// else it is halted, and the batch is tried again later.
func (l *lane) refused(ctx context.Context, b *Batch, err error, orders **haltedAt) (goesOn bool, _ error) {
	s := l.sink
	p := poisonIn(b, err)
	if b.job != nil {
		b.job.refuse(b.seqs[0], p)
		l.retry.succeeded()
		s.release(l, b)
		s.pool.put(b)
		return true, nil
	}
	policy := s.routes[b.routes[0]].poison
	if policy == PolicyHoldKey && s.holds.full() {
		policy = PolicyHalt
		p.reason += "; and more than 100000 keys are held already"
	}
	var asked *order
	if policy == PolicyHalt {
		if *orders == nil {
			s.poisoned.count(p.class, policy)
			*orders = l.enterHalt(p.eventID)
		}
		asked, err = l.retry.halt(ctx, p, (*orders).orders, nil)
		if asked == nil {
			return false, err
		}
	}
	l.retry.succeeded()
	for raw := range b.raw() {
		x := l.letterOf(b, 0, raw)
		x.Class, x.Reason, x.Attempts, x.policy = p.class, p.reason, b.tries, policy
		if asked != nil {
			asked.obey(x)
		}
		s.backlogBytes.Add(int64(x.size - b.size))
		l.park(x)
	}
	s.pool.put(b)
	return true, l.awaitLetters(ctx)
}

// haltedAt is a lane's stay at an event that it is halted at.
type haltedAt struct {
	orders <-chan order
	leave  func()
}

func (l *lane) enterHalt(eventID string) *haltedAt {
	s := l.sink
	orders, leave := s.halts.enter(eventID)
	s.haltedLanes.Add(1)
	l.halted.Store(true)
	s.poke(s.nudge) // it may be the last thing that a stop waits for
	s.poke(s.room)
	return &haltedAt{orders, leave}
}

func (l *lane) leaveHalt(h *haltedAt) {
	if h == nil {
		return
	}
	h.leave()
	l.halted.Store(false)
	l.sink.haltedLanes.Add(-1)
}

// publishJob publishes records that go out on request.
func (l *lane) publishJob(ctx context.Context, b *Batch) error {
	if err := l.beforeReplay(ctx); err != nil {
		return err
	}
	return l.publish(ctx, b)
}

// beforeReplay makes the partition's past final, and notes where it ends, before a record that was asked for goes in
// front of events whose resume check is still to come: the check does not have to find its way back through these.
func (l *lane) beforeReplay(ctx context.Context) error {
	if l.check == nil || l.check.tail != nil || l.check.pinned > 0 {
		return nil
	}
	for {
		l.retry.begin()
		err := l.check.pin(ctx, l.topic.name, l.partition)
		if err == nil {
			l.retry.succeeded()
			return nil
		}
		if err := l.again(ctx, err); err != nil {
			return err
		}
	}
}

// most is the size at which a batch is closed.
func (l *lane) most() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

// enqueue puts a batch behind all others.
func (l *lane) enqueue(b *Batch) {
	l.mu.Lock()
	l.queue = append(l.queue, b)
	l.mu.Unlock()
	l.poke()
}

// leaveOut drops a batch of a job that stands behind a refused record.
func (l *lane) leaveOut(b *Batch) bool {
	if b.job == nil || !b.job.leaveOut(b.seqs) {
		return false
	}
	l.sink.release(l, b)
	l.sink.pool.put(b)
	return true
}
