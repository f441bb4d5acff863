package sink

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// topic is a topic that this session writes to.
type topic struct {
	name      string
	lanes     []*lane   // by partition; nil where nothing has gone yet; its length is the partition count in use
	checked   time.Time // when the count was last read
	inFlight  atomic.Int64
	published atomic.Uint64
}

// Accept takes events in stream order and encodes each one into the open batch of its partition. It blocks while
// the window is full, while a topic does not exist, and for good at an event that can never be published: nothing
// behind it is taken, what came before is still published. It returns early only with ctx's cause or with what
// ended Run. The events' bytes are not kept. One goroutine calls it.
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
	now := time.Now()
	for i := range events {
		if err := s.acceptOne(ctx, firstSeq+uint64(i), &events[i], now); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sink) acceptOne(ctx context.Context, seq uint64, e *outbox.Committed, now time.Time) error {
	poison := s.encode(e)
	if poison != nil {
		return s.stopAt(ctx, poison)
	}
	t, err := s.route(ctx, e, now)
	if err != nil {
		return err
	}
	if size := s.rec.size(0) + batchHeader; size > s.cfg.MaxRecordBytes {
		return s.stopAt(ctx, &poisonError{
			eventID: string(e.ID), topic: t.name,
			reason: fmt.Sprintf("its record has %d bytes, the limit is %d", size, s.cfg.MaxRecordBytes),
			hint:   "raise the relay's record limit and the topic's max.message.bytes, or publish a smaller event",
		})
	}
	p, reason := s.routes[e.Route].partitionOf(e, s.rec.key, len(t.lanes))
	if reason != "" {
		return s.stopAt(ctx, &poisonError{eventID: string(e.ID), topic: t.name, reason: reason, hint: "write a number that is there, or leave the column NULL"})
	}
	if err := s.reserve(ctx, s.rec.size(maxBatchRecords)); err != nil {
		return err
	}
	l := t.lanes[p]
	if l == nil {
		if l, err = s.startLane(ctx, t, p); err != nil {
			return err
		}
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
func (s *Sink) encode(e *outbox.Committed) *poisonError {
	reason := ""
	r := &s.rec
	if e.Route < 0 || e.Route >= len(s.routes) {
		return &poisonError{eventID: string(e.ID), reason: "there is no route for it", hint: "see the relay's tables and messages"}
	}
	rt := s.routes[e.Route]
	r.event, r.key, r.value, r.timed, r.since, r.wide = e, rt.keyOf(e), e.Payload, false, 0, 0
	switch {
	case e.Unreadable != "":
		reason = e.Unreadable
	case len(e.ID) == 0:
		reason = "it has no ID"
	case len(r.key) == 0:
		reason = "its key is empty, so it has no place in any order"
	case hasControl(e.ID) || hasControl(e.EventKey) || hasControl(e.EventType) || hasControl(e.AggregateType) || hasControl(e.Tenant):
		reason = "one of its columns that become headers has a carriage return, line feed or NUL"
	default:
		r.user, reason = s.headers.parse(e.Headers)
	}
	if reason != "" {
		return &poisonError{eventID: string(e.ID), reason: reason, hint: "an event like this must be refused where it is written"}
	}
	r.occurredAt = nil
	if e.OccurredAt != nil {
		s.when = appendOccurred(s.when[:0], e.OccurredAt)
		r.occurredAt = s.when
	}
	if !rt.plain {
		if reason := s.apply(rt, e); reason != "" {
			return &poisonError{eventID: string(e.ID), reason: reason, hint: "an event like this must be refused where it is written"}
		}
	}
	r.measure()
	return nil
}

// reserve waits until n more bytes fit in the window. A record larger than the window passes when it is alone.
func (s *Sink) reserve(ctx context.Context, n int) error {
	for {
		held := s.backlogBytes.Load()
		if held == 0 || held+int64(n) <= int64(s.cfg.WindowBytes) {
			return nil
		}
		s.flush()
		select {
		case <-s.room:
		case <-s.ended:
			return s.endError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stopAt halts the stream at an event that can never be published. Neither the event nor the settings change
// within a session, so there is nothing to try again.
func (s *Sink) stopAt(ctx context.Context, p *poisonError) error {
	s.flush()
	s.halted.Store(true)
	defer s.halted.Store(false)
	defer s.accept.succeeded()
	s.accept.begin()
	for {
		if err := s.accept.halt(ctx, p); err != nil {
			return err
		}
	}
}

// startLane hands a new lane to Run.
func (s *Sink) startLane(ctx context.Context, t *topic, partition int32) (*lane, error) {
	l := newLane(s, t, partition)
	select {
	case s.lanes <- l:
	case <-s.ended:
		return nil, s.endError()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	t.lanes[partition] = l
	return l, nil
}
