package main

import (
	"sync"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// sources is where metrics and status read what the process does. Each func returns a snapshot, is safe for
// concurrent use and does no I/O.
type sources struct {
	slotName string
	current  func() state.Status        // a board's Current
	stream   func() cdc.Stats           // a stream's Stats
	sink     func() sink.Stats          // the totals of all sessions: sinkTotals.Stats
	slot     func() (slotReading, bool) // a slotWatch's Reading; false: nothing is known

	// These may be nil: what they tell is not shown then.
	pace        func() pace               // a meter's Pace
	walWarning  func(*slotReading) string // a walAlarm's warning
	deadLetters func() map[string]int64   // by state, in the database; nil: not known
	pruned      func() map[string]uint64  // by table, of those that are pruned
	windowBytes int64                     // the limit of what is in flight
}

// sinkTotals adds up what the sinks of a process have counted: each session has a sink of its own, and counters
// that fell back with every session would be of no use. Safe for concurrent use; ready as its zero value.
type sinkTotals struct {
	// mu guards the fields below.
	mu      sync.Mutex
	ended   sink.Stats        // counters of the sessions before
	current func() sink.Stats // of the session that runs; nil: none yet
}

// Begin says that a new sink counts from now on. The one before must have ended.
func (t *sinkTotals) Begin(stats func() sink.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.ended = t.current().Add(t.ended)
	}
	t.current = stats
}

// Stats returns the counters of all sessions and the gauges of the present one.
func (t *sinkTotals) Stats() sink.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s sink.Stats
	if t.current != nil {
		s = t.current()
	}
	return s.Add(t.ended)
}
