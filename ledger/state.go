package ledger

// State is where a delivery stands. The words are the database's.
type State string

// The states. The last three are terminal: only an operator's redrive leaves them, or a late success leaves dead.
const (
	StatePending   State = "pending"   // known, held by nobody; not before due_at
	StateReserved  State = "reserved"  // held until the lease ends
	StateFailed    State = "failed"    // an attempt failed; due again at due_at
	StateUncertain State = "uncertain" // the effect began and its outcome is unknown
	StateDelivered State = "delivered"
	StateSkipped   State = "skipped" // not eligible
	StateDead      State = "dead"    // given up
)

// stateAbsent is the state of a delivery without a row.
const stateAbsent State = "none"

// States lists every state of a row.
func States() []State {
	return []State{StatePending, StateReserved, StateFailed, StateUncertain, StateDelivered, StateSkipped, StateDead}
}

// Terminal reports whether nothing is to be done any more.
func (s State) Terminal() bool {
	return s == StateDelivered || s == StateSkipped || s == StateDead
}
