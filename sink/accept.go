package sink

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// topic is a topic that this session writes to.
type topic struct {
	name      string
	lanes     []*lane // by partition, as far as Accept has needed them; its length is the partition count in use
	open      map[int32]*lane
	checked   time.Time // when the count was last read
	copies    bool      // of dead letters: no event goes here
	inFlight  atomic.Int64
	published atomic.Uint64
}

// Accept takes events in stream order and encodes each one into the open batch of its partition. It blocks while
// the window is full, while a topic does not exist, and, where the policy is halt, at an event that can never be
// published: nothing behind it is taken, what came before is still published. It returns early only with ctx's cause
// or with what ended Run. The events' bytes are not kept. One goroutine calls it.
func (s *Sink) Accept(ctx context.Context, firstSeq uint64, events []outbox.Committed) error {
	select {
	case <-s.opened:
	case <-s.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-s.ended:
		return s.endError()
	default:
	}
	defer func() {
		s.flush()
		s.rec.event, s.rec.key, s.rec.value, s.rec.user = nil, nil, nil, nil
	}()
	s.now = time.Now()
	for i := range events {
		if s.abandoned.Load() {
			return nil
		}
		err := s.acceptOne(ctx, firstSeq+uint64(i), &events[i], s.now)
		if errors.Is(err, errAbandoned) {
			return s.abandon()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Sink) acceptOne(ctx context.Context, seq uint64, e *outbox.Committed, now time.Time) error {
	if s.settled != nil {
		if there, err := s.skip(ctx, seq, e); there || err != nil {
			return err
		}
	}
	if poison := s.encode(e); poison != nil {
		return s.poisonousAt(ctx, seq, e, nil, poison)
	}
	t, err := s.route(ctx, e, now)
	if err != nil {
		if poison := (*poisonError)(nil); errors.As(err, &poison) {
			return s.poisonousAt(ctx, seq, e, nil, poison)
		}
		return err
	}
	if size := s.rec.size(0) + batchHeader; size > s.most(e) {
		return s.poisonousAt(ctx, seq, e, t, s.tooLarge(e, t.name, size))
	}
	p, reason := s.routes[e.Route].partitionOf(e, s.rec.key, len(t.lanes))
	if reason != "" {
		return s.poisonousAt(ctx, seq, e, t, &poisonError{eventID: string(e.ID), topic: t.name, class: classBadPartition, reason: reason, hint: "write a number that is there, or leave the column NULL"})
	}
	if err := s.reserve(ctx, s.rec.size(maxBatchRecords)); err != nil {
		return err
	}
	l := t.lanes[p]
	if l == nil {
		if l, err = s.laneOf(t, p); err != nil {
			return err
		}
		t.lanes[p] = l
	}
	t.inFlight.Add(1)
	s.backlogEvents.Add(1)
	if first := l.add(&s.rec, seq, e.CommitTime); first {
		s.touched = append(s.touched, l)
	}
	return nil
}

// flush wakes the lanes that had nothing to do before the events since the last flush. It comes before every
// wait, and at the end of each Accept rather than after each event, so that a lane finds what belongs together.
func (s *Sink) flush() {
	for i, l := range s.touched {
		l.poke()
		s.touched[i] = nil
	}
	s.touched = s.touched[:0]
}

// encode prepares s.rec for the event, or says why the event can never be published.
func (s *encoder) encode(e *outbox.Committed) *poisonError {
	reason, class := "", classBadHeader
	r := &s.rec
	if e.Route < 0 || e.Route >= len(s.routes) {
		return &poisonError{eventID: string(e.ID), class: classBadTopic, reason: "there is no route for it", hint: "see the relay's tables and messages"}
	}
	rt := s.routes[e.Route]
	r.compression = rt.compression
	r.event, r.key, r.value, r.timed, r.since, r.wide, r.user, r.occurredAt = e, rt.keyOf(e), e.Payload, false, 0, 0, nil, nil
	switch {
	case e.Unreadable != "":
		reason, class = e.Unreadable, classUnreadable
	case len(e.ID) == 0:
		reason, class = "it has no ID", classNoKey
	case len(r.key) == 0:
		reason, class = "its key is empty, so it has no place in any order", classNoKey
	case hasControl(e.ID) || hasControl(e.EventKey) || hasControl(e.EventType) || hasControl(e.AggregateType) || hasControl(e.Tenant):
		reason = "one of its columns that become headers has a carriage return, line feed or NUL"
	default:
		r.user, reason = s.headers.parse(e.Headers)
	}
	if reason != "" {
		return &poisonError{eventID: string(e.ID), class: class, reason: reason, hint: "an event like this must be refused where it is written"}
	}
	if e.OccurredAt != nil {
		r.occurredAt = s.occurred(e.OccurredAt)
	}
	if !rt.plain {
		if reason := s.apply(rt, e); reason != "" {
			return &poisonError{eventID: string(e.ID), class: classBadHeader, reason: reason, hint: "an event like this must be refused where it is written"}
		}
	}
	r.measure()
	return nil
}

func (s *Sink) tooLarge(e *outbox.Committed, topic string, size int) *poisonError {
	return &poisonError{
		eventID: string(e.ID), topic: topic, class: classTooLarge,
		reason: fmt.Sprintf("its record has %d bytes, the limit is %d", size, s.most(e)),
		hint:   "raise the relay's record limit and the topic's max.message.bytes, or publish a smaller event",
	}
}

// most returns the largest record that may become of the event.
func (s *Sink) most(e *outbox.Committed) int {
	if most := s.routes[e.Route].most; most > 0 {
		return most
	}
	return s.cfg.MaxRecordBytes
}

// reserve waits until n more bytes fit in the window. A record larger than the window passes when it is alone. Told to
// stop, it gives up when all that fills the window waits behind halted lanes.
func (s *Sink) reserve(ctx context.Context, n int) error {
	stopping := s.cfg.Stopping
	for told := false; ; {
		held := s.backlogBytes.Load()
		if held == 0 || held+int64(n) <= int64(s.cfg.WindowBytes) {
			return nil
		}
		s.flush()
		if told && s.stuck() {
			return errAbandoned
		}
		select {
		case <-s.room:
		case <-stopping:
			told, stopping = true, nil
		case <-s.ended:
			return s.endError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// laneOf returns the lane of a partition, and hands a new one to Run. Safe for concurrent use.
func (s *Sink) laneOf(t *topic, partition int32) (*lane, error) {
	return s.laneUntil(t, partition, nil)
}

// laneUntil is laneOf for one whom Run waits for: it gives up when until is closed, which is when Run starts nothing more.
func (s *Sink) laneUntil(t *topic, partition int32, until <-chan struct{}) (*lane, error) {
	s.topicsMu.Lock()
	l := t.open[partition]
	known := l != nil
	if !known {
		l = newLane(s, t, partition)
		t.open[partition] = l
	}
	s.topicsMu.Unlock()
	if known {
		return l, nil
	}
	// Whoever asked, others may have found it meanwhile: it is started, unless the session is over.
	select {
	case s.lanes <- l:
		return l, nil
	case <-until:
		return nil, ErrClosed
	case <-s.ended:
		return nil, s.endError()
	}
}
