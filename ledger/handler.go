package ledger

import (
	"context"
	"errors"
	"runtime/debug"
)

// Handler is what a channel does. Eligibility and dedup are separate questions: the ledger answers whether this
// delivery was made before, Eligible whether it should be made now. Its functions may be called from several
// goroutines at once.
type Handler struct {
	// Eligible is asked right before the effect, after reserving: permissions, preferences and times may have
	// changed since the event. false skips for good, with a reason. An error means that nobody knows: nothing is
	// sent, and it is asked again later, after the channel's backoff or the pause that RetryAfter marks it with.
	// ErrMissing says that the business row is not there. db is the ledger's pool. Nil: whoever has an event is
	// eligible.
	Eligible func(ctx context.Context, key Key, db DBTX) (ok bool, reason string, err error)

	// Effect makes the effect and returns the provider's reference for it, if there is one. No transaction is open
	// meanwhile. ctx ends when the reservation does; an effect that ignores it risks a second one. r.ProviderKey is
	// for the provider, to recognise a repetition.
	//
	// A returned error says that the effect did not happen and may be tried again, unless it is marked Permanent or
	// Ambiguous or by RetryAfter, or is one that leaves it open whether it happened: the end of ctx, a timeout after
	// dialling, a panic. When in doubt mark it Ambiguous.
	Effect func(ctx context.Context, r Reservation) (ref string, err error)

	// Probe asks the provider what became of an uncertain effect. Optional; Run calls it.
	Probe func(ctx context.Context, r Reservation) (Verdict, error)
}

// errNoEffect is what a Handler without an Effect earns.
var errNoEffect = errors.New("ledger: handler has no Effect")

func (h Handler) eligible(ctx context.Context, key Key, db DBTX) (ok bool, reason string, err error) {
	if h.Eligible == nil {
		return true, "", nil
	}
	err = guard(func() (err error) {
		ok, reason, err = h.Eligible(ctx, key, db)
		return err
	})
	return ok, reason, err
}

func (h Handler) effect(ctx context.Context, r Reservation) (ref string, err error) {
	err = guard(func() (err error) {
		ref, err = h.Effect(ctx, r)
		return err
	})
	return ref, err
}

func (h Handler) probe(ctx context.Context, r Reservation) (v Verdict, err error) {
	err = guard(func() (err error) {
		v, err = h.Probe(ctx, r)
		return err
	})
	return v, err
}

// guard turns a panic into a *PanicError. A goroutine that ends by runtime.Goexit goes on ending: for the row that
// is a crash.
func guard(fn func() error) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	err = fn()
	returned = true
	return err
}
