package sink

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox"
)

// resumer is a Publisher whose partitions can be read back.
type resumer interface {
	// finalize makes the partition's past final, as the first Send would.
	finalize(ctx context.Context, topic string, partition int32) error
	// log returns a finalized partition as it can be read back.
	log(topic string, partition int32) partitionLog
	// room bounds what all lanes read.
	room() *readRoom
}

// tail is what a partition holds of our records, up to the last one.
type tail struct {
	cursor  *cursor
	end     int64           // offset behind the last one
	last    outbox.Position // of the last one
	matched outbox.Position // of the last event that was found
}

// resumeFetch is how much a merging lane asks for at a time.
const resumeFetch = 256 << 10

// outcome is what a tail says of an event.
type outcome int

const (
	found outcome = iota // it is there
	ended                // it is not, or nobody can tell: from here on everything is produced
)

// match steps to the event. Events come in the order of the lane.
func (t *tail) match(ctx context.Context, e *published) (outcome, error) {
	if e.position.Compare(t.last) > 0 {
		return ended, nil
	}
	for {
		p, err := t.cursor.next(ctx, t.end, resumeFetch)
		switch {
		case err != nil || p == nil:
			return ended, err
		case p.position.Compare(e.position) < 0: // stepped over
		case p.same(e):
			t.matched = e.position
			return found, nil
		default:
			return ended, nil
		}
	}
}

// done reports whether the check has come to the last record, so that nothing is undecided.
func (t *tail) done() bool { return t.matched == t.last }

// readRoom bounds the memory of all checks together: few read at the same time, and what one has read ahead when
// it waits for events is kept only while that is little.
type readRoom struct {
	turns chan []byte // each with the buffer of the one before
	kept  atomic.Int64
}

const (
	readTurns = 3
	readKept  = 2 << 20
)

func newReadRoom() *readRoom {
	r := &readRoom{turns: make(chan []byte, readTurns)}
	for range readTurns {
		r.turns <- nil
	}
	return r
}

// enter waits for a turn and returns a buffer to read into.
func (r *readRoom) enter(ctx context.Context) ([]byte, error) {
	select {
	case buf := <-r.turns:
		return buf, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (r *readRoom) leave(buf []byte) { r.turns <- buf }

// resumption is a lane's check. It is over for good when it ends.
type resumption struct {
	lane *lane
	pub  resumer
	tail *tail
	kept int64 // bytes held in the room

	pinned int64 // where the partition ended when it was made final, plus 1; 0: not noted, its end is the end

	event published // the one looked at
}

// newResumption returns the check of a lane, nil where there is none to make.
func newResumption(l *lane) *resumption {
	pub, ok := l.sink.pub.(resumer)
	if !ok || l.sink.cfg.NoResumeCheck {
		return nil
	}
	return &resumption{lane: l, pub: pub}
}

// resume settles what of the batch's beginning an earlier session has published, and returns the rest, nil when
// nothing is left. Once the check has ended every further event is produced, published before or not: a repeated
// run must be carried to its end, so that the last record of a key is its newest.
func (l *lane) resume(ctx context.Context, b *Batch) (*Batch, error) {
	r := l.check
	n, over := 0, false
	for !over && n < b.Len() {
		l.retry.begin()
		var k int
		var err error
		k, over, err = r.walk(ctx, b, n)
		n += k
		if err == nil {
			l.retry.succeeded()
		} else if err := l.again(ctx, err); err != nil {
			return nil, err
		}
	}
	if over {
		l.check = nil
	}
	return l.settleFirst(b, n), nil
}

// again waits until it is time to try again what has failed, unless that ends the session.
func (l *lane) again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	v := verdictOf(err, false)
	if v.class == fatal {
		l.sink.retries[v.reason].Add(1)
		return fmt.Errorf("%s: %w: %w", l.retry.subject, v.ends, err)
	}
	return l.retry.wait(ctx, v, err)
}

// settleFirst settles the batch's first n events, which are published, and returns the rest.
func (l *lane) settleFirst(b *Batch, n int) *Batch {
	if n == 0 {
		return b
	}
	l.sink.resumed.Add(uint64(n))
	first, rest := b, (*Batch)(nil)
	if n < b.Len() {
		first, rest = l.split(b, n)
	}
	l.sink.settle(l, first)
	l.sink.pool.put(first)
	return rest
}

// walk goes on with the batch's events from the n-th on. It returns how many were found, and whether the check is
// over.
func (r *resumption) walk(ctx context.Context, b *Batch, n int) (matched int, over bool, err error) {
	if r.tail == nil { // outside the room, for partitions that are due together share a fence
		if err := r.pub.finalize(ctx, b.Topic, b.Partition); err != nil {
			return 0, false, err
		}
	}
	room := r.pub.room()
	buf, err := room.enter(ctx)
	if err != nil {
		return 0, false, err
	}
	defer func() { room.leave(r.pause(room, over, buf)) }()
	i := 0
	for raw := range b.raw() {
		if i++; i <= n {
			continue
		}
		e := &r.event
		if !e.parseOwn(raw) {
			return matched, r.end(false), nil
		}
		if r.tail == nil { // nothing is known yet
			c := &cursor{log: r.pub.log(b.Topic, b.Partition), owner: r.lane.owner(), buf: buf, pinned: r.pinned}
			r.tail, err = c.findTail(ctx, r.lane.floor(e.position))
			buf = c.buf
			if err == nil && r.tail == nil {
				return matched, true, nil
			}
		}
		var got outcome
		if err == nil {
			got, err = r.tail.match(ctx, e)
		}
		switch {
		case errors.Is(err, errUndecided), errors.Is(err, errUnreadable), errors.Is(err, errOutOfRange) && r.tail != nil:
			return matched, r.end(false), nil
		case err != nil:
			return matched, false, err
		case got == ended:
			return matched, r.end(r.tail.done()), nil
		}
		matched++
		if r.tail.done() {
			return matched, r.end(true), nil
		}
	}
	return matched, false, nil
}

// pin notes where the past of the partition ends.
func (r *resumption) pin(ctx context.Context, topic string, partition int32) error {
	if err := r.pub.finalize(ctx, topic, partition); err != nil {
		return err
	}
	_, end, err := r.pub.log(topic, partition).bounds(ctx)
	if err == nil {
		r.pinned = end + 1
	}
	return err
}

// end notes how the check ended.
func (r *resumption) end(decided bool) (over bool) {
	if !decided {
		r.lane.sink.undecided.Add(1)
	}
	return true
}

// pause keeps what was read ahead for the lane's next batch, if there is room. It returns a buffer for the next who
// reads.
func (r *resumption) pause(room *readRoom, over bool, buf []byte) []byte {
	room.kept.Add(-r.kept)
	r.kept = 0
	if r.tail == nil {
		return buf
	}
	held := int64(r.tail.cursor.held())
	if !over && room.kept.Add(held) <= readKept {
		r.kept = held
		return nil
	}
	if !over {
		room.kept.Add(-held)
	}
	return r.tail.rewind()
}

// rewind lets go of what was read ahead, and returns the buffer it was in.
func (t *tail) rewind() []byte {
	t.cursor.drop()
	buf := t.cursor.buf
	t.cursor.buf = nil
	return buf
}

// parseOwn reads a record of a batch that is to be published, and reports whether it is a live one.
func (r *published) parseOwn(raw []byte) bool {
	d := parser{rest: raw}
	d.varint() // length
	recordDelta(&d)
	return r.parse(&d) && !d.bad
}

func (l *lane) owner() owner {
	return owner{source: l.sink.rec.source, most: l.sink.cfg.largestRecord()}
}

// floor is the position from which on the lane's events may have been published before. The stream gives again
// what is not below the LSN it was resumed from. A backlog has no LSN, and goes on with what is left of it.
func (l *lane) floor(first outbox.Position) outbox.Position {
	if first.LSN == 0 {
		return first
	}
	return outbox.Position{Incarnation: first.Incarnation, LSN: l.sink.cfg.ResumeLSN}
}
