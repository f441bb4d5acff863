package cdc

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// Listener is told what happens. Every func may be nil; each is called from a goroutine of the stream and must
// return soon.
type Listener struct {
	// State is called when the stream's own state changes, with the reason for it.
	State func(state.Status)
	// Adopted is called when a slot was found that relay_state did not know.
	Adopted func(confirmed outbox.LSN)
	// BacklogDone is called when everything that goes before the stream is published: how many events that were
	// in this session, and how many rows were gone when their turn came.
	BacklogDone func(published, vanished uint64)
	// PublicationChanged is called when tables were published anew, or the publication was changed, and no row is in the
	// tables that was written since it was last seen. What was written and deleted since cannot be told.
	PublicationChanged func(what []string)
	// TimelineChanged is called when the server was promoted since the slot was last served.
	TimelineChanged func(from, to int32)
}

// Stream reads one slot and feeds what was committed to a sink. Make it with NewStream, start it with Run.
type Stream struct {
	cfg      Config
	store    Store
	open     Opener
	listener Listener

	gap knownGap // Run's own

	// mu guards the fields below.
	mu         sync.Mutex
	stats      Stats
	reconnects map[string]uint64
	session    *session // the running one, nil between two
	lastPID    uint32   // backend of the last session's walsender
	text       bool     // a type came up that is not read in binary form
}

// NewStream checks cfg and returns a stream that has not started anything.
func NewStream(cfg Config, store Store, open Opener, listener Listener) (*Stream, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Stream{cfg: cfg, store: store, open: open, listener: listener, reconnects: map[string]uint64{}}, nil
}

// errAgain ends a session that is to be followed by another without a pause.
var errAgain = errors.New("cdc: again")

// errIncomplete marks the error of a session that was told to stop and did not come to a clean end.
var errIncomplete = errors.New("cdc: incomplete stop")

// Run streams until ctx ends: then it stops reading, lets the sink finish, confirms and returns nil. hard ends
// everything at once; Run then says what was left. There is one way to recover
// from anything, and it is the way Run begins: whatever a session fails with, all of it is dropped, the state is
// reported, and after a pause the next session starts from the slot. Run returns for nothing that may heal.
func (s *Stream) Run(ctx, hard context.Context) error {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(s.cfg.BackoffMin), backoff.WithMaxInterval(s.cfg.BackoffMax),
		backoff.WithMaxElapsedTime(0), backoff.WithRandomizationFactor(0.3))
	for {
		began := time.Now()
		err := s.runSession(ctx, hard)
		if ctx.Err() != nil {
			if errors.Is(err, errIncomplete) {
				return err
			}
			return nil // there was nothing to finish
		}
		if errors.Is(err, errAgain) {
			continue
		}
		st := s.reportFailure(s.withGap(ctx, err))
		if time.Since(began) > 10*s.cfg.BackoffMax {
			pause.Reset()
		}
		delay := pause.NextBackOff()
		if st.NeedsHuman() {
			delay = s.cfg.RetryHuman
		}
		if !sleep(ctx, delay) {
			return nil
		}
	}
}

// reportFailure tells the listener why a session ended.
func (s *Stream) reportFailure(err error) state.State {
	status := state.Status{State: state.Starting}
	if err != nil {
		status.Reason = err.Error()
	}
	if e := state.Of(err); e != nil {
		status = state.Status{State: e.State, Reason: e.Error(), Hint: e.Hint}
	}
	s.mu.Lock()
	s.reconnects[string(status.State)]++
	s.mu.Unlock()
	s.report(status)
	return status.State
}

func (s *Stream) report(status state.Status) {
	if s.listener.State != nil {
		s.listener.State(status)
	}
}

// Stats returns a snapshot. Safe for concurrent use.
func (s *Stream) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Reconnects = maps.Clone(s.reconnects)
	if s.session != nil {
		s.session.addStats(&st)
	}
	return st
}

// needText makes every later session ask for text forms.
func (s *Stream) needText() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = true
}

// sleep waits for d; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
