// Package state names the states of a relay, one at a time, as they stand in /readyz, in relay status and in
// the metric relay_state. cdc and sink report them; cmd/relay shows them.
package state

import (
	"errors"
	"sync"
	"time"
)

// State is the name of a state.
type State string

// The states. Each one's comment says when the relay is in it.
const (
	// Ready.
	Streaming State = "streaming" // events flow as they commit
	Backlog   State = "backlog"   // rows older than the slot are being published
	Standby   State = "standby"   // another relay holds the slot; this one waits for it

	// Not ready; these heal by themselves.
	Starting            State = "starting"             // nothing is known yet, or the broker is being acquired
	DatabaseUnreachable State = "database_unreachable" // PostgreSQL does not answer, or refuses for now
	BrokerUnreachable   State = "broker_unreachable"   // no broker answers, or none leads the partition
	TopicMissing        State = "topic_missing"        // an event's topic does not exist
	SlotCreating        State = "slot_creating"        // the slot is being made; the server waits for old transactions
	Draining            State = "draining"             // told to stop: what is in flight is being finished

	// A human is needed.
	Halted              State = "halted"               // an event cannot be published and its route says halt
	SlotMissing         State = "slot_missing"         // the replication slot does not exist
	SlotLost            State = "slot_lost"            // the server has thrown away WAL that the slot needs
	SlotRecreated       State = "slot_recreated"       // the slot stands beyond what this relay confirmed
	SlotWrongPlugin     State = "slot_wrong_plugin"    // the slot is not a logical pgoutput slot of this database
	HistoryChanged      State = "history_changed"      // another server than the one this relay's position is of
	PublicationMissing  State = "publication_missing"  // the publication does not exist
	PublicationMismatch State = "publication_mismatch" // the publication does not publish what the relay needs
	TableMismatch       State = "table_mismatch"       // the table lacks a column, or one has a type that does not fit
	PermissionDenied    State = "permission_denied"    // PostgreSQL refuses the relay's role
	BrokerDenied        State = "broker_denied"        // Kafka refuses the relay's principal
	ProducerContested   State = "producer_contested"   // another producer uses this relay's transactional id
	ConfigInvalid       State = "config_invalid"       // the server's or the relay's settings cannot work
)

// All lists every state, in the order of the constants.
var All = []State{
	Streaming, Backlog, Standby,
	Starting, DatabaseUnreachable, BrokerUnreachable, TopicMissing, SlotCreating, Draining,
	Halted, SlotMissing, SlotLost, SlotRecreated, SlotWrongPlugin, HistoryChanged, PublicationMissing,
	PublicationMismatch, TableMismatch, PermissionDenied, BrokerDenied, ProducerContested, ConfigInvalid,
}

// Ready reports whether a relay in this state does its work.
func (s State) Ready() bool { return s == Streaming || s == Backlog || s == Standby }

// NeedsHuman reports whether the state stays until somebody acts.
func (s State) NeedsHuman() bool {
	switch s {
	case Streaming, Backlog, Standby, Starting, DatabaseUnreachable, BrokerUnreachable, TopicMissing, SlotCreating, Draining:
		return false
	}
	return true
}

// Status is a state with its facts. Reason says what was seen, with the object's name; Hint says what to do.
// Neither ever holds a password, a payload or a key.
type Status struct {
	State  State     `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Hint   string    `json:"hint,omitempty"`
	Since  time.Time `json:"since"`
}

// Error is an error that names the state it puts the relay in.
type Error struct {
	State  State
	Reason string
	Hint   string
	Err    error // the cause, may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Reason
	}
	return e.Reason + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of finds the Error in err's chain, nil when there is none.
func Of(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// Board holds the one state that the relay is in. The stream sets the base; a sink raises and clears problems,
// which show while the base is ready. Safe for concurrent use.
type Board struct {
	onChange func(from, to Status)
	now      func() time.Time

	// mu guards the fields below. onChange runs under it, so it must not call the board.
	mu       sync.Mutex
	base     Status
	problems map[string]Status // by what raised it
	current  Status
}

// NewBoard returns a board in state starting. onChange may be nil; it is called for each change of state or
// reason, one call at a time, and must not call the board.
func NewBoard(onChange func(from, to Status)) *Board {
	b := &Board{onChange: onChange, now: time.Now, problems: map[string]Status{}}
	b.base = Status{State: Starting, Since: b.now()}
	b.current = b.base
	return b
}

// Set replaces the base state.
func (b *Board) Set(s Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.base = s
	b.update()
}

// Raise records a problem under a name of the caller's choice, replacing one of the same name.
func (b *Board) Raise(name string, s Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems[name] = s
	b.update()
}

// Clear removes the problem of that name, if there is one.
func (b *Board) Clear(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.problems[name]; ok {
		delete(b.problems, name)
		b.update()
	}
}

// ClearAll removes every problem: the session that raised them is over.
func (b *Board) ClearAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.problems)
	b.update()
}

// Current returns the state the relay is in.
func (b *Board) Current() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// update picks what shows: a base that is not ready speaks for itself; else the worst problem, one that needs
// a human before one that heals, then by name so that the choice is stable.
func (b *Board) update() {
	next := b.base
	if b.base.State == Streaming || b.base.State == Backlog {
		worst := ""
		for name, s := range b.problems {
			if worst == "" || worse(s, b.problems[worst], name < worst) {
				worst = name
			}
		}
		if worst != "" {
			next = b.problems[worst]
		}
	}
	if next.State == b.current.State && next.Reason == b.current.Reason && next.Hint == b.current.Hint {
		return
	}
	switch {
	case next.State == b.current.State:
		next.Since = b.current.Since
	case next.Since.IsZero():
		next.Since = b.now()
	}
	prev := b.current
	b.current = next
	if b.onChange != nil {
		b.onChange(prev, next)
	}
}

func worse(s, than Status, first bool) bool {
	if s.State.NeedsHuman() != than.State.NeedsHuman() {
		return s.State.NeedsHuman()
	}
	return first
}
