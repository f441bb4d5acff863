package state_test

import (
	"fmt"
	"testing"

	"github.com/outboxrelay/relay/internal/state"
)

func TestBoard(t *testing.T) {
	var changes []string
	b := state.NewBoard(func(from, to state.Status) { changes = append(changes, fmt.Sprintf("%s>%s", from.State, to.State)) })
	check := func(want state.State) {
		t.Helper()
		if got := b.Current(); got.State != want {
			t.Fatalf("state %q, want %q", got.State, want)
		}
		if b.Current().Since.IsZero() {
			t.Fatal("state without a time")
		}
	}
	check(state.Starting)
	b.Raise("lane 1", state.Status{State: state.BrokerUnreachable})
	check(state.Starting) // a problem of the sink shows only while the stream itself is well
	b.Set(state.Status{State: state.Streaming})
	check(state.BrokerUnreachable)
	b.Raise("lane 2", state.Status{State: state.Halted})
	check(state.Halted) // what needs a human goes before what heals
	b.Raise("lane 0", state.Status{State: state.TopicMissing})
	check(state.Halted)
	b.Clear("lane 2")
	check(state.TopicMissing) // then by name
	b.Clear("lane 9")
	check(state.TopicMissing)
	b.Set(state.Status{State: state.SlotLost})
	check(state.SlotLost)
	b.Set(state.Status{State: state.Streaming})
	b.ClearAll()
	check(state.Streaming)
	if n := len(changes); n != 6 {
		t.Errorf("%d changes %v", n, changes)
	}
}

func TestBoard_SinceIsKeptWhileTheReasonChanges(t *testing.T) {
	b := state.NewBoard(nil)
	b.Set(state.Status{State: state.DatabaseUnreachable, Reason: "refused"})
	since := b.Current().Since
	b.Set(state.Status{State: state.DatabaseUnreachable, Reason: "timed out"})
	if got := b.Current(); got.Reason != "timed out" || !got.Since.Equal(since) {
		t.Errorf("%+v, since %v", got, since)
	}
}

func TestOf(t *testing.T) {
	cause := fmt.Errorf("cause")
	err := fmt.Errorf("layer: %w", &state.Error{State: state.SlotLost, Reason: "slot lost", Err: cause})
	if e := state.Of(err); e == nil || e.State != state.SlotLost || e.Error() != "slot lost: cause" {
		t.Errorf("%v", e)
	}
	if state.Of(cause) != nil {
		t.Error("found a state where there is none")
	}
}

// TestAll: every state is either ready, healing or for a human, and listed once.
func TestAll(t *testing.T) {
	seen := map[state.State]bool{}
	for _, s := range state.All {
		if seen[s] {
			t.Errorf("%q is listed twice", s)
		}
		seen[s] = true
		if s.Ready() && s.NeedsHuman() {
			t.Errorf("%q is ready and needs a human", s)
		}
	}
	if len(seen) != 22 {
		t.Errorf("%d states", len(seen))
	}
}
