package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// route finds the event's topic, with its partition count fresh enough.
func (s *Sink) route(ctx context.Context, e *outbox.Committed, now time.Time) (*topic, error) {
	t := s.known(e)
	if t == nil {
		name, poison := s.topicName(e)
		if poison != nil {
			return nil, s.stopAt(ctx, poison)
		}
		if t = s.topics[name]; t == nil {
			n, err := s.partitions(ctx, name)
			if err != nil {
				return nil, err
			}
			t = &topic{name: name, lanes: make([]*lane, n), checked: now}
			s.topicsMu.Lock()
			s.topics[name] = t
			s.topicsMu.Unlock()
		}
		if e.Topic == nil {
			if len(s.byType) >= maxTopicTypes {
				clear(s.byType)
			}
			s.byType[string(e.AggregateType)] = t
		}
	}
	if now.Sub(t.checked) < s.cfg.PartitionsEvery {
		return t, nil
	}
	t.checked = now
	return t, s.recount(ctx, t)
}

// known looks the topic up without making its name.
func (s *Sink) known(e *outbox.Committed) *topic {
	if e.Topic == nil {
		return s.byType[string(e.AggregateType)]
	}
	if _, ok := s.allowed[string(e.Topic)]; !ok {
		return nil
	}
	return s.topics[string(e.Topic)]
}

// topicName makes the name of the event's topic and checks it.
func (s *Sink) topicName(e *outbox.Committed) (string, *poisonError) {
	poison := func(name, reason, hint string) (string, *poisonError) {
		return "", &poisonError{eventID: string(e.ID), topic: name, reason: reason, hint: hint}
	}
	if e.Topic != nil {
		name := string(e.Topic)
		if _, ok := s.allowed[name]; !ok {
			return poison(name, "its topic column names a topic that is not allowed", "add the topic to the list of allowed topics, if it belongs there")
		}
		return name, nil
	}
	if len(e.AggregateType) == 0 {
		return poison("", "it has no aggregate type to make its topic from", "give it one, or a topic")
	}
	name := expandRoute(s.cfg.Route, e.AggregateType)
	if reason := checkTopic(name); reason != "" {
		return poison(name, reason, "an aggregate type like this must be refused where the event is written")
	}
	return name, nil
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
	for t.inFlight.Load() > 0 {
		select {
		case <-s.room:
		case <-s.ended:
			return s.endError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	t.lanes = append(t.lanes, make([]*lane, n-len(t.lanes))...)
	return nil
}
