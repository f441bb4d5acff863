package ledger

// Outcome is what the ledger answered. An answer is never an error: that a delivery was made before, that somebody
// else holds it, that a fence is stale are facts which callers act on. The words are the database's.
type Outcome string

// Answers to a request for a reservation. All but Reserved leave nothing to do for the caller.
const (
	Reserved         Outcome = "reserved"          // the caller holds it until the deadline
	AlreadyDelivered Outcome = "already_delivered" // a duplicate: it was delivered before
	AlreadyReserved  Outcome = "already_reserved"  // somebody holds it; see Result.RetryAfter
	AlreadySkipped   Outcome = "already_skipped"   // it was decided before not to deliver it
	NotDue           Outcome = "not_due"           // it waits for its time; see Result.RetryAfter
	Blocked          Outcome = "blocked"           // the channel's predecessor has not delivered yet
	Expired          Outcome = "expired"           // older than the horizon, and no row: too late to tell a duplicate
	PayloadMismatch  Outcome = "payload_mismatch"  // the same key with another payload hash
	Busy             Outcome = "busy"              // a transaction that is still open has the key; no row is known
)

// Answers about the row's state. Several calls give them: a request that finds a dead row answers Dead.
const (
	Delivered Outcome = "delivered" // the effect happened and is recorded
	Skipped   Outcome = "skipped"   // not eligible; no effect
	Failed    Outcome = "failed"    // no effect; retried when due
	Dead      Outcome = "dead"      // given up; an operator decides
	Uncertain Outcome = "uncertain" // the effect may have happened; a probe or an operator decides
)

// Answers to calls by the holder of a reservation.
const (
	Begun        Outcome = "begun"         // the effect may start, and must be reported
	AlreadyBegun Outcome = "already_begun" // this reservation began its effect before
	LeaseShort   Outcome = "lease_short"   // too little of the lease is left to begin
	Renewed      Outcome = "renewed"       // the lease was extended
	HoldCap      Outcome = "hold_cap"      // held for as long as the channel allows; the lease runs out
	LeaseOver    Outcome = "lease_over"    // the lease has ended
	NotBegun     Outcome = "not_begun"     // a guarded channel wants BeginEffect before Complete
	LateAccepted Outcome = "late_accepted" // a success from before a takeover, recorded; the new holder is fenced off
	Fenced       Outcome = "fenced"        // the fence is not, or no longer, the row's; nothing was changed
	Released     Outcome = "released"      // given back without an attempt
	Gone         Outcome = "gone"          // there is no such row
)

// Answers to registering and to operators.
const (
	Registered Outcome = "registered" // a new row that waits to be claimed
	Known      Outcome = "known"      // the row existed
	Redriven   Outcome = "redriven"   // open again
	Refused    Outcome = "refused"    // this state cannot be redriven, or not without the resend flag
)

// Outcomes lists every outcome there is, for metrics that show a zero before the first one.
func Outcomes() []Outcome {
	return []Outcome{
		Reserved, AlreadyDelivered, AlreadyReserved, AlreadySkipped, NotDue, Blocked, Expired, PayloadMismatch, Busy,
		Delivered, Skipped, Failed, Dead, Uncertain,
		Begun, AlreadyBegun, LeaseShort, Renewed, HoldCap, LeaseOver, NotBegun, LateAccepted, Fenced, Released, Gone,
		Registered, Known, Redriven, Refused,
	}
}

// Acknowledgement is what a queue consumer does with the message that led to an outcome.
type Acknowledgement int

const (
	// TryAgain: the ledger knows nothing of the message. Acknowledging would lose it.
	TryAgain Acknowledgement = iota
	// Acknowledge: settled.
	Acknowledge
	// AcknowledgeAndAlert: settled as far as the queue goes, and somebody must look at it.
	AcknowledgeAndAlert
	// AcknowledgeIfClaimed: the ledger has a row that is not settled. A consumer beside which Run works, or anything
	// else that claims due rows, acknowledges; a job queue without one releases the job with Result.RetryAfter.
	AcknowledgeIfClaimed
)

// Acknowledge says what to do with the message. For an outcome that it does not know, the empty one included, it
// is TryAgain.
func (o Outcome) Acknowledge() Acknowledgement {
	switch o {
	case Delivered, AlreadyDelivered, LateAccepted, Skipped, AlreadySkipped, Expired, Gone:
		return Acknowledge
	case Dead, PayloadMismatch, NotBegun, Refused:
		return AcknowledgeAndAlert
	case Reserved, AlreadyReserved, NotDue, Blocked, Failed, Uncertain, Fenced, Released, Registered, Known, Redriven,
		Begun, AlreadyBegun, LeaseShort, Renewed, HoldCap, LeaseOver:
		return AcknowledgeIfClaimed
	default: // Busy
		return TryAgain
	}
}
