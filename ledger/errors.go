package ledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

var (
	// ErrNoTransaction is returned by Once, OnceBatch and Write when what they were given is no open transaction.
	// Nothing was written.
	ErrNoTransaction = errors.New("ledger: no open transaction")

	// ErrNotPool is returned by New when it is given a single connection or a transaction: a lease is renewed while
	// other calls run, and a begun effect must be committed whatever the caller's transaction does.
	ErrNotPool = errors.New("ledger: not a connection pool")

	// ErrMissing is returned by an Eligible that does not find the row that it is to check. Events can arrive before
	// the row's commit is visible to a reader, so it is a failure to be retried while the event is younger than
	// Config.Grace, and after that a reason to skip.
	ErrMissing = errors.New("ledger: business row is missing")

	// ErrLeaseOver is the cause of the end of an effect's context when the lease ran out and was not renewed.
	ErrLeaseOver = errors.New("ledger: lease is over")

	// ErrFenced is the cause of the end of an effect's context when somebody else took the row over.
	ErrFenced = errors.New("ledger: reservation is fenced")

	// ErrNotRecorded is returned by Deliver with the outcome Uncertain when the effect ran and its end could not be
	// written. The row becomes uncertain when its lease ends; nothing is sent again unless the channel says so.
	ErrNotRecorded = errors.New("ledger: end of the effect is not recorded")

	// ErrHorizon is returned by Check when a channel forgets sooner than the source can repeat.
	ErrHorizon = errors.New("ledger: horizon is too short")
)

// PanicError is returned by Deliver when a function of a Handler panicked. It is returned and not raised again
// because a process that dies takes every other effect in flight with it, and each of those becomes uncertain. The
// attempt has ended as failed where the effect had not begun, else as an ambiguous failure.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Kind says what is known about an effect that failed.
type Kind string

// The kinds.
const (
	KindRetry     Kind = "retry"     // it did not happen, and may succeed another time
	KindPermanent Kind = "permanent" // it did not happen, and never will
	KindAmbiguous Kind = "ambiguous" // it may have happened
)

// failure is an error with its kind.
type failure struct {
	kind  Kind
	after time.Duration
	err   error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Permanent marks an effect's error: it did not happen and never will. The row becomes dead.
func Permanent(err error) error { return mark(&failure{kind: KindPermanent, err: err}) }

// Ambiguous marks an effect's error: nobody knows whether it happened. The channel's policy decides.
func Ambiguous(err error) error { return mark(&failure{kind: KindAmbiguous, err: err}) }

// RetryAfter marks an effect's error: it did not happen, and the provider asked for a pause of d.
func RetryAfter(d time.Duration, err error) error {
	return mark(&failure{kind: KindRetry, after: d, err: err})
}

func mark(f *failure) error {
	if f.err == nil {
		return nil
	}
	return f
}

// classify decides what an effect's error says about the effect. ended: its context was over when it returned.
//
// A marked error says so itself. A dial that failed has sent nothing. What was cut short may have arrived: the end
// of the context, a timeout, a panic. Any other error is the effect's own word that nothing happened.
func classify(err error, ended bool) (Kind, time.Duration) {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.kind, f.after
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return KindRetry, 0
	}
	if _, ok := errors.AsType[*PanicError](err); ok || ended || isTimeout(err) {
		return KindAmbiguous, 0
	}
	return KindRetry, 0
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// maxReason is how much of an error's text is stored, in bytes.
const maxReason = 500

// reasonText makes an error's text fit to be stored.
func reasonText(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxReason {
		return s
	}
	end := maxReason
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
