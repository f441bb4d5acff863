package sink

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox"
)

// poisonousAt deals with an event that Accept finds it cannot give to a lane as a record. t is its topic where that is
// known.
func (s *Sink) poisonousAt(ctx context.Context, seq uint64, e *outbox.Committed, t *topic, p *poisonError) error {
	policy := PolicyHalt
	if e.Route >= 0 && e.Route < len(s.routes) {
		policy = s.routes[e.Route].poison
	}
	if policy == PolicyHoldKey && s.holds.full() {
		policy = PolicyHalt
		p.reason += "; and more than 100000 keys are held already"
	}
	s.flush()
	var asked *order
	if policy == PolicyHalt {
		s.poisoned.count(p.class, policy)
		var err error
		if asked, err = s.stopAt(ctx, p); err != nil {
			return err
		}
	}
	l := s.letter(seq, e, p)
	l.policy = policy
	if asked != nil {
		asked.obey(l)
	}
	if err := s.reserve(ctx, l.size); err != nil {
		return err
	}
	to, err := s.laneOfPoison(ctx, e, t, l)
	if err != nil {
		return err
	}
	s.backlogEvents.Add(1)
	s.backlogBytes.Add(int64(l.size))
	if to != nil {
		l.topicOf = to.topic
		to.topic.inFlight.Add(1)
		if policy != PolicyHoldKey && !s.holds.any() {
			to.sendAfter(s.parker.put(l))
			return nil
		}
		to.pending.Add(1)
		to.enqueue(&Batch{letter: l})
		return nil
	}
	// Nothing of its topic can be published, so nothing can overtake it.
	if policy == PolicyHoldKey && l.Topic != "" && len(l.Key) > 0 {
		s.holdBehind(l)
	}
	s.parker.put(l)
	return nil
}

// laneOfPoison returns the lane that the event would have taken, so that what it must wait for, and what must wait for
// it, is decided there; nil when it has none.
func (s *Sink) laneOfPoison(ctx context.Context, e *outbox.Committed, t *topic, l *Letter) (*lane, error) {
	if len(l.Key) == 0 || l.Class == classUnreadable || l.Class == classBadTopic || l.Class == classBadPartition {
		return nil, nil
	}
	if t == nil {
		var err error
		var p *poisonError
		if t, err = s.route(ctx, e, s.now); errors.As(err, &p) {
			return nil, nil // and no topic either
		} else if err != nil {
			return nil, err
		}
		l.Topic = t.name
	}
	rt := s.routes[e.Route]
	p, reason := rt.partitionOf(e, l.Key, len(t.lanes))
	if reason != "" {
		return nil, nil
	}
	if rt.partition != nil {
		l.Partition = p
	}
	if known := t.lanes[p]; known != nil {
		return known, nil
	}
	return s.laneOf(t, p)
}

// holdBehind makes the letter one that holds its key, or one that waits for the letter that does already.
func (s *Sink) holdBehind(l *Letter) {
	key := newHoldKey(l.Topic, l.Partition, l.Key)
	_, at, err := outbox.ParsePosition(l.Position)
	if err == nil && s.holds.holds(key, at) {
		l.State = Held
	}
	l.Holds = true
	s.holds.add(key, at)
}

// abandon ends Accept in a stop that finds it halted: what it was given is not done and comes again. The lanes finish
// what they have.
func (s *Sink) abandon() error {
	s.abandoned.Store(true)
	s.poke(s.nudge)
	return nil
}
