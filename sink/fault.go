package sink

import (
	"errors"
	"time"
)

// Fault is what a Publisher's try came to, in the words that lanes understand. A publisher returns one, wrapped or
// not, wherever it knows more than that something went wrong; any other error is taken for FaultLost.
type Fault struct {
	Kind  FaultKind
	Err   error         // what happened; its text becomes the reason of a state
	Hint  string        // what to do about it, for people; may be empty
	After time.Duration // not before this much later; 0: the lane's own backoff
}

func (f *Fault) Error() string { return f.Err.Error() }
func (f *Fault) Unwrap() error { return f.Err }

// FaultKind says what a lane does after a Fault.
type FaultKind int

// The kinds.
const (
	// FaultLost: nobody knows whether the batch was appended. The same batch again, for ever.
	FaultLost FaultKind = iota
	// FaultBusy: it was not appended, and may be later. The same batch again, for ever, further apart.
	FaultBusy
	// FaultMissing: the topic or partition does not exist. As FaultBusy, with the state topic_missing.
	FaultMissing
	// FaultDenied: the other side is not what the settings take it for, or does not want us. Again every
	// Config.Recheck, with the state broker_denied.
	FaultDenied
	// FaultPoison: it was not appended and never will be, for the sake of one of its records. The batch is split
	// until that one stands alone, and its lane stops there.
	FaultPoison
	// FaultReplaced: another owner has taken over. Run returns ErrFenced.
	FaultReplaced
)

// verdict translates. A lost answer counts as what Err is: a timeout, a cut connection.
func (f *Fault) verdict() verdict {
	switch f.Kind {
	case FaultBusy:
		return verdict{class: transient, reason: reasonBroker, patient: true}
	case FaultMissing:
		return verdict{class: missing, reason: reasonMissing}
	case FaultDenied:
		return verdict{class: denied, reason: reasonDenied}
	case FaultPoison:
		return verdict{class: poison, reason: reasonPoison}
	case FaultReplaced:
		return verdict{class: fatal, reason: reasonFenced, ends: ErrFenced}
	}
	why := verdictOf(f.Err, false).reason
	return verdict{class: transient, reason: why, open: true, patient: why == reasonBroker}
}

// hintFault returns the hint that an error carries, or else.
func hintFault(err error, otherwise string) string {
	var f *Fault
	if errors.As(err, &f) && f.Hint != "" {
		return f.Hint
	}
	return otherwise
}

// askedFor returns how long the other side wants to be left alone.
func askedFor(err error) time.Duration {
	var f *Fault
	if errors.As(err, &f) {
		return f.After
	}
	return 0
}
