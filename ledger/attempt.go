package ledger

import (
	"context"
	"time"
)

// Attempt works on a reservation from ClaimDue to its end, as Deliver does after reserving. When soft ends, no effect
// begins any more, and the reservation is given back; when hard ends, an effect that has begun is told to stop. It is
// for callers that claim for themselves because they choose the handler by the event; Run is for all others.
//
// Outcomes and errors: as Deliver.
func (l *Ledger) Attempt(soft, hard context.Context, r Reservation, h Handler) (Outcome, error) {
	if h.Effect == nil {
		return "", errNoEffect
	}
	return l.attempt(soft, hard, r, h)
}

// Classify says what an error of an effect, or of a transaction that was to write one, tells about the effect, and how
// long its maker asked to wait: by its mark, see Permanent, Ambiguous and RetryAfter, else by what kind of error it is.
func Classify(err error) (kind Kind, retryAfter time.Duration) { return classify(err, false) }

// Transient reports whether the call that returned err may succeed later: the server or the way to it is at fault.
func Transient(err error) bool { return isTransient(err) }
