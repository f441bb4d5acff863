package sink

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// lane publishes the events of one partition in the order in which they were accepted, one batch in flight. What
// comes meanwhile goes into the next batch: an idle lane sends at once, a busy one sends full batches, and nobody
// waits for a timer.
type lane struct {
	sink      *Sink
	topic     *topic
	partition int32
	retry     *retrier
	check     *resumption  // nil: it is over, everything is produced
	after     uint64       // number of its last letter, until that is known to be committed
	pending   atomic.Int64 // events that are neither acknowledged nor left with the parker
	halted    atomic.Bool
	wake      chan struct{} // holds one token: something has been queued

	mu     sync.Mutex // guards the fields below
	queue  []*Batch   // in order; events are added to the last one, unless that is a special one
	behind uint64     // number of the letter that what is added must wait for
	limit  int        // bytes of records at which a batch is closed; learned where the topic takes less
}

func newLane(s *Sink, t *topic, partition int32) *lane {
	id := t.name + "-" + strconv.Itoa(int(partition))
	l := &lane{
		sink: s, topic: t, partition: partition,
		retry: newRetrier(s, "sink/"+id, fmt.Sprintf("publish to topic %q partition %d", t.name, partition)),
		wake:  make(chan struct{}, 1),
		limit: s.cfg.BatchBytes - batchHeader,
	}
	if l.retry.quiet = t.copies; !t.copies {
		l.check = newResumption(l)
	}
	return l
}

// add encodes the record into the last batch. first says that nothing else was queued, so that the lane may be
// waiting.
func (l *lane) add(r *record, seq uint64, committed time.Time) (first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.queue)
	if n == 0 || !l.queue[n-1].takes(r, l.limit) {
		l.queue = append(l.queue, l.sink.pool.batch(l.topic.name, l.partition))
		n++
	}
	l.queue[n-1].after = l.behind
	bytes := l.queue[n-1].add(&l.sink.pool, r, seq, committed)
	l.pending.Add(1)
	l.sink.backlogBytes.Add(int64(bytes)) // before the lane can take it
	return n == 1 && l.queue[0].Len() == 1
}

// poke wakes the lane.
func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take removes the first batch, nil when there is none.
func (l *lane) take() *Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil
	}
	b := l.queue[0]
	k := copy(l.queue, l.queue[1:])
	l.queue[k] = nil
	l.queue = l.queue[:k]
	return b
}

// run publishes until ctx ends, whose cause it returns, or the session is over.
func (l *lane) run(ctx context.Context) error {
	for {
		b := l.take()
		if b == nil {
			select {
			case <-l.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := l.step(ctx, b); err != nil {
			return err
		}
	}
}

// publish sends a batch until it is acknowledged, in halves where the broker refuses it for good.
func (l *lane) publish(ctx context.Context, b *Batch) error {
	s := l.sink
	if l.leaveOut(b) {
		return nil
	}
	if b.job == nil && s.holds.any() {
		if b = l.sift(b); b == nil {
			return nil
		}
		if err := l.awaitLetters(ctx); err != nil {
			return err
		}
	}
	start := time.Now()
	b.Time = start.Truncate(time.Millisecond)
	var halted *haltedAt
	defer func() { l.leaveHalt(halted) }()
	for {
		b.tries++
		l.retry.begin()
		s.sends.Add(1)
		err := s.pub.Send(ctx, b)
		v := verdictOf(err, b.open)
		if v.class != success && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case v.class == success:
			l.retry.succeeded()
			s.acknowledge(l, b, start)
			return nil
		case v.class == fatal:
			s.retries[v.reason].Add(1)
			return fmt.Errorf("%s: %w: %w", l.retry.subject, v.ends, err)
		case b.aside() && !b.open && v.class != poison && l.retry.vain(v):
			l.giveUp(b, err)
			return nil
		case v.class == poison && b.Len() > 1:
			s.retries[v.reason].Add(1)
			return l.publishHalves(ctx, b)
		case v.class == poison:
			goesOn := false
			if goesOn, err = l.refused(ctx, b, err, &halted); goesOn {
				return err
			}
		default:
			err = l.retry.wait(ctx, v, err)
		}
		if err != nil {
			return err
		}
	}
}

// publishHalves splits a batch that the broker refused. It used no sequence number, so the first half takes
// its place, and by and by the guilty record stands alone.
func (l *lane) publishHalves(ctx context.Context, b *Batch) error {
	l.mu.Lock()
	l.limit = min(l.limit, max(b.size/2, chunk0))
	l.mu.Unlock()
	first, second := l.split(b, b.Len()/2)
	if err := l.publish(ctx, first); err != nil {
		return err
	}
	return l.publish(ctx, second)
}

// split cuts a batch in two before its n-th record.
func (l *lane) split(b *Batch, n int) (first, second *Batch) {
	first, second = b.split(&l.sink.pool, n)
	if !b.aside() {
		l.sink.backlogBytes.Add(int64(first.size + second.size - b.size))
	}
	l.sink.pool.put(b)
	return first, second
}
