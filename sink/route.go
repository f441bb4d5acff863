package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// route finds the event's topic, with its partition count fresh enough.
func (s *Sink) route(ctx context.Context, e *outbox.Committed, now time.Time) (*topic, error) {
	rt := s.routes[e.Route]
	t := rt.remembered(e)
	if t == nil {
		var err error
		if t, err = s.find(ctx, rt, e, now); err != nil {
			return nil, err
		}
		rt.remember(e, t)
	}
	if now.Sub(t.checked) < s.cfg.PartitionsEvery {
		return t, nil
	}
	t.checked = now
	return t, s.recount(ctx, t)
}

// find makes the name of the event's topic and looks it up.
func (s *Sink) find(ctx context.Context, rt *routing, e *outbox.Committed, now time.Time) (*topic, error) {
	name, reason, hint := rt.topic(s.name[:0], e)
	if reason != "" {
		return nil, &poisonError{eventID: string(e.ID), topic: string(name), class: classBadTopic, reason: reason, hint: hint}
	}
	if e.Topic == nil {
		s.name = name // it may have grown
	}
	s.topicsMu.Lock()
	t := s.topics[string(name)]
	s.topicsMu.Unlock()
	if t != nil && !t.copies {
		return t, nil
	}
	return s.newTopic(ctx, e, string(name), now)
}

// newTopic checks a name that has not come before and finds out about the topic.
func (s *Sink) newTopic(ctx context.Context, e *outbox.Committed, name string, now time.Time) (*topic, error) {
	if reason := s.checkTopic(name); reason != "" {
		return nil, &poisonError{eventID: string(e.ID), topic: name, class: classBadTopic, reason: reason,
			hint: "what makes a name like this must be refused where the event is written"}
	}
	n, err := s.partitions(ctx, name)
	if err != nil {
		return nil, err
	}
	t := s.addTopic(name, n)
	t.checked = now
	return t, nil
}

// addTopic notes that a topic has n partitions, unless somebody has been faster. Safe for concurrent use.
func (s *Sink) addTopic(name string, n int) *topic {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	if t := s.topics[name]; t != nil {
		return t
	}
	t := &topic{name: name, lanes: make([]*lane, n), open: map[int32]*lane{}, copies: s.copier.topics[name]}
	s.topics[name] = t
	select {
	case s.found <- name:
	default:
	}
	return t
}

// partitions asks for a topic's partition count, however long it takes.
func (s *Sink) partitions(ctx context.Context, name string) (int, error) {
	s.flush()
	r := s.accept
	r.subject = fmt.Sprintf("find topic %q", name)
	for {
		r.begin()
		n, err := s.pub.Partitions(ctx, name)
		v := verdictOf(err, false)
		switch {
		case v.class == success:
			r.succeeded()
			return n, nil
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case v.class == missing && s.cfg.CreateTopics:
			if in, ok := s.pub.(inspector); ok {
				if e := in.create(ctx, name); e != nil {
					err, v = e, verdictOf(e, false)
				}
			}
		}
		if err := r.wait(ctx, v, err); err != nil {
			return 0, err
		}
	}
}

// recount takes a changed partition count. From then on a key may belong to another partition, so everything of
// the topic must be acknowledged before. A count that cannot be read now is read at the next turn.
func (s *Sink) recount(ctx context.Context, t *topic) error {
	s.flush()
	n, err := s.pub.Partitions(ctx, t.name)
	if err != nil || n <= len(t.lanes) {
		return nil
	}
	was := len(t.lanes)
	for !s.grow(t, n) {
		select {
		case <-s.room:
		case <-s.ended:
			return s.endError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.grown.Add(1)
	select {
	case s.grew <- growth{t.name, was, n}:
	default: // it is counted all the same
	}
	return nil
}

// grow takes a new partition count if nothing of the topic is in flight.
func (s *Sink) grow(t *topic, n int) bool {
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	if t.inFlight.Load() > 0 {
		return false
	}
	t.lanes = append(t.lanes, make([]*lane, n-len(t.lanes))...)
	return true
}

// growth is a partition count that was taken.
type growth struct {
	topic   string
	was, is int
}

func (g growth) String() string {
	return fmt.Sprintf("it has %d partitions, and had %d: keys may have moved, each with its older records left where they were", g.is, g.was)
}

// note is something to tell of a topic.
type note struct{ topic, finding string }
