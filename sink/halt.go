package sink

import (
	"context"
	"errors"
	"sync"

	"github.com/outboxrelay/relay/internal/state"
)

// ErrNotHalted is returned by ParkHalted when nothing is halted at the event.
var ErrNotHalted = errors.New("sink: not halted at this event")

// order asks whoever is halted at an event to park it.
type order struct {
	actor, note string
	committed   chan struct{} // closed when the letter is
}

// halts are the events that something is halted at.
type halts struct {
	mu sync.Mutex // guards the field below
	at map[string]chan order
}

// enter says that somebody is halted at an event. leave takes it back.
func (h *halts) enter(id string) (orders <-chan order, leave func()) {
	c := make(chan order, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at == nil {
		h.at = map[string]chan order{}
	}
	id = LetterID([]byte(id))
	h.at[id] = c
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.at[id] == c {
			delete(h.at, id)
		}
	}
}

// ParkHalted makes a dead letter of the event that the stream or a lane is halted at, and returns when it is
// committed. It returns ErrNotHalted when nothing is halted at that event, ctx's cause, or what ended the session.
func (s *Sink) ParkHalted(ctx context.Context, eventID, actor, note string) error {
	o := order{actor: actor, note: note, committed: make(chan struct{})}
	s.halts.mu.Lock()
	c := s.halts.at[eventID]
	delete(s.halts.at, eventID) // one order is enough
	s.halts.mu.Unlock()
	if c == nil || s.cfg.DeadLetters == nil {
		return ErrNotHalted
	}
	c <- o
	select {
	case <-o.committed:
		return nil
	case <-s.ended:
		return s.endError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// obey makes the letter one that was asked for.
func (o *order) obey(l *Letter) {
	l.Actor, l.Note, l.committed = o.actor, o.note, o.committed
}

// stopAt halts the stream at an event that can never be published, until somebody asks for it to be parked: then it
// returns that order. Neither the event nor the settings change within a session, so there is nothing to try again.
// When the relay is told to stop nothing behind the event can be published any more; it returns errAbandoned.
func (s *Sink) stopAt(ctx context.Context, p *poisonError) (*order, error) {
	s.flush()
	s.halted.Store(true)
	defer s.halted.Store(false)
	defer s.accept.succeeded()
	orders, leave := s.halts.enter(p.eventID)
	defer leave()
	s.accept.begin()
	for {
		o, err := s.accept.halt(ctx, p, orders, s.cfg.Stopping)
		if o != nil || err != nil {
			return o, err
		}
	}
}

// errAbandoned ends Accept where a stop finds it with no way on.
var errAbandoned = errors.New("sink: told to stop while halted")

// halt says that an event cannot be published and waits until it is time to look again, or until somebody says what
// to do about it.
func (r *retrier) halt(ctx context.Context, p *poisonError, orders <-chan order, stopping <-chan struct{}) (*order, error) {
	r.failed(reasonPoison)
	if r.raised != state.Halted {
		r.raised = state.Halted
		hint := p.hint
		if r.sink.cfg.DeadLetters != nil {
			hint += "; or put it aside: relay dead-letters park " + LetterID([]byte(p.eventID)) + " --reason ..."
		}
		r.sink.problems.raise(r.name, state.Status{State: state.Halted, Reason: p.Error(), Hint: hint})
	}
	r.timer.Reset(r.sink.cfg.Recheck)
	defer r.timer.Stop()
	select {
	case <-r.timer.C:
		return nil, nil
	case o := <-orders:
		return &o, nil
	case <-stopping:
		return nil, errAbandoned
	case <-r.sink.ended:
		return nil, r.sink.endError()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// stuck reports whether the relay was told to stop, and all that is left waits behind lanes that are halted: no draining
// finishes that.
func (s *Sink) stuck() bool {
	select {
	case <-s.cfg.Stopping:
	default:
		return false
	}
	if s.haltedLanes.Load() == 0 && !s.abandoned.Load() || !s.parker.idle() {
		return false
	}
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	for _, t := range s.topics {
		for _, l := range t.open {
			if l.pending.Load() > 0 && !l.halted.Load() {
				return false
			}
		}
	}
	return true
}
