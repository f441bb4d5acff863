package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Deliver makes one delivery: it reserves, asks Eligible, stamps the beginning, makes the effect, records its end,
// and renews the lease meanwhile. Each of these is a transaction of its own; none is open during the effect. It is
// safe to call for the same key from anywhere, at any time, as often as one likes: whoever comes second gets an
// outcome that says so.
//
// The outcome is what the ledger holds; Outcome.Acknowledge says what a queue consumer does with it. The error says
// why: the handler's with Failed, Dead and Uncertain, a *PanicError among them; ErrNotRecorded with Uncertain. An
// empty outcome comes with an error too: the ledger could not be asked, and nothing was sent.
//
// When ctx ends before the effect has begun, the reservation is given back: Released, with the cause of the end.
// Later it ends the effect's context, and the effect's answer is recorded all the same.
func (l *Ledger) Deliver(ctx context.Context, key Key, h Handler, opts ...Option) (Outcome, error) {
	if h.Effect == nil {
		return "", errNoEffect
	}
	res, err := l.Reserve(ctx, nil, key, opts...)
	if err != nil || res.Outcome != Reserved {
		return res.Outcome, err
	}
	if c := collectOptions(opts).content; c != nil {
		res.Content = *c
	}
	return l.attempt(ctx, ctx, res.Reservation, h)
}

// attempt works on a reservation to its end. When soft ends, no effect begins any more; when hard ends, one that
// has begun is told to stop.
func (l *Ledger) attempt(soft, hard context.Context, r Reservation, h Handler) (Outcome, error) {
	began := time.Now()
	a := &attempt{l: l, h: h, soft: soft, hold: l.hold(hard, r)}
	defer a.hold.close()
	l.countTakeover(r)
	outcome, err := a.run()
	if _, ok := errors.AsType[*PanicError](err); ok {
		l.countPanic()
	}
	l.observe(Observation{Reservation: r, Outcome: outcome, Err: err, Held: time.Since(began)})
	return outcome, err
}

type attempt struct {
	l    *Ledger
	h    Handler
	soft context.Context
	hold *holder
}

func (a *attempt) run() (Outcome, error) {
	key := a.hold.reservation().Key
	ok, reason, err := a.h.eligible(a.hold.ctx, key, a.l.db)
	if errors.Is(err, ErrMissing) && !key.OccurredAt.IsZero() && time.Since(key.OccurredAt) > a.l.cfg.Grace {
		ok, reason, err = false, "missing", nil
	}
	switch {
	case a.soft.Err() != nil:
		return a.release(context.Cause(a.soft))
	case err != nil:
		_, after := classify(err, false)
		return a.fail(fmt.Errorf("check eligibility: %w", err), KindRetry, after, false)
	case !ok:
		return a.end("skip", func(ctx context.Context) (Outcome, error) {
			return a.l.Skip(ctx, nil, a.hold.reservation(), reason)
		})
	}

	outcome, err := a.begin()
	switch {
	case err != nil:
		return a.fail(err, KindRetry, 0, false)
	case outcome == LeaseShort:
		return a.release(ErrLeaseOver)
	case outcome != Begun:
		return outcome, nil
	case a.hold.ctx.Err() != nil: // stamped and too late to start: nothing has happened, and that is known
		return a.fail(context.Cause(a.hold.ctx), KindRetry, 0, false)
	}
	ref, err := a.h.effect(a.hold.ctx, a.hold.reservation())
	ended := a.hold.ctx.Err() != nil
	a.hold.stop()
	if err != nil {
		kind, after := classify(err, ended)
		return a.fail(err, kind, after, true)
	}
	return a.complete(ref)
}

// begin stamps the row. Only Begun allows the effect. An error leaves open whether it is stamped; asked again, our
// own stamp answers AlreadyBegun, and nobody else has our fence.
func (a *attempt) begin() (Outcome, error) {
	lost, renewed := false, false
	for n := 0; ; n++ {
		outcome, err := a.l.BeginEffect(a.hold.ctx, a.hold.reservation())
		switch {
		case err != nil:
			if !isTransient(err) || pause(a.hold.ctx, n, time.Second) != nil {
				return "", err
			}
			lost = true
		case outcome == AlreadyBegun && lost:
			return Begun, nil
		case outcome == LeaseShort && !renewed: // the check took long
			a.hold.renew(a.hold.ctx)
			renewed = true
		default:
			return outcome, nil
		}
	}
}

// complete records that the effect happened.
func (a *attempt) complete(ref string) (Outcome, error) {
	var outcome Outcome
	lost := false
	err := a.l.persist(a.soft, func(ctx context.Context) (err error) {
		outcome, err = a.l.Complete(ctx, nil, a.hold.reservation(), ref, nil)
		lost = lost || err != nil
		return err
	})
	if err != nil {
		return Uncertain, fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	if lost && outcome == AlreadyDelivered {
		outcome = Delivered // by the call whose answer was lost
	}
	return outcome, nil
}

// fail records that the effect failed, and returns cause with the outcome.
func (a *attempt) fail(cause error, kind Kind, after time.Duration, begun bool) (Outcome, error) {
	outcome, err := a.end("fail", func(ctx context.Context) (Outcome, error) {
		return a.l.Fail(ctx, a.hold.reservation(), kind, cause.Error(), after)
	})
	switch {
	case err == nil:
		return outcome, cause
	case begun:
		return Uncertain, fmt.Errorf("%w: %w: %w", ErrNotRecorded, err, cause)
	}
	return "", errors.Join(cause, err)
}

// release gives the reservation back, because of cause.
func (a *attempt) release(cause error) (Outcome, error) {
	outcome, err := a.end("release", func(ctx context.Context) (Outcome, error) {
		return a.l.Release(ctx, a.hold.reservation())
	})
	return outcome, errors.Join(cause, err)
}

// end stops renewing and asks until there is an answer.
func (a *attempt) end(verb string, ask func(context.Context) (Outcome, error)) (outcome Outcome, err error) {
	a.hold.stop()
	err = a.l.persist(a.soft, func(ctx context.Context) (err error) {
		outcome, err = ask(ctx)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", verb, err)
	}
	return outcome, nil
}
