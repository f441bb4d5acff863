package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger"
)

// claimed registers key and claims it.
func claimed(tb testing.TB, r *rig, key ledger.Key) ledger.Reservation {
	tb.Helper()
	if _, err := r.RegisterBatch(tb.Context(), nil, event(key.Channel), func(yield func(string) bool) { yield(key.Recipient) }, 0); err != nil {
		tb.Fatal(err)
	}
	list, err := r.ClaimDue(tb.Context(), []string{key.Channel}, 1)
	if err != nil || len(list) != 1 {
		tb.Fatalf("claimed %d, %v", len(list), err)
	}
	return list[0]
}

func TestAttempt(t *testing.T) {
	t.Parallel()
	effect := func(context.Context, ledger.Reservation) (string, error) { return "ref", nil }
	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("stop"))
	for name, c := range map[string]struct {
		soft    context.Context
		handler ledger.Handler
		want    ledger.Outcome
		due     time.Duration // at least, from now
	}{
		"delivered":         {t.Context(), ledger.Handler{Effect: effect}, ledger.Delivered, 0},
		"told to stop":      {ended, ledger.Handler{Effect: effect}, ledger.Released, 0},
		"asks for patience": {t.Context(), ledger.Handler{Effect: effect, Eligible: asks(ledger.RetryAfter(time.Hour, ledger.ErrMissing))}, ledger.Failed, 50 * time.Minute},
		"fails":             {t.Context(), ledger.Handler{Effect: effect, Eligible: asks(errors.New("no answer"))}, ledger.Failed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			key := keyOn("email")
			outcome, err := r.Attempt(c.soft, t.Context(), claimed(t, r, key), c.handler)
			if outcome != c.want || (err == nil) != (c.want == ledger.Delivered) {
				t.Errorf("got %q, %v; want %q", outcome, err, c.want)
			}
			if wait := query1[float64](t, r, "SELECT coalesce(extract(epoch FROM max(due_at) - clock_timestamp()), 0)::float8 FROM ledger.notification_dispatches"); wait < c.due.Seconds()-1 {
				t.Errorf("due in %.0f s, want %v or later", wait, c.due)
			}
		})
	}
	if _, err := setup(t).Attempt(t.Context(), t.Context(), ledger.Reservation{}, ledger.Handler{}); err == nil {
		t.Error("a handler without an effect was taken")
	}
}

func asks(err error) func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
	return func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) { return false, "", err }
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		kind ledger.Kind
		wait time.Duration
	}{
		{errors.New("x"), ledger.KindRetry, 0}, {ledger.Permanent(errors.New("x")), ledger.KindPermanent, 0},
		{ledger.RetryAfter(time.Minute, errors.New("x")), ledger.KindRetry, time.Minute}, {context.DeadlineExceeded, ledger.KindAmbiguous, 0},
	} {
		if kind, wait := ledger.Classify(c.err); kind != c.kind || wait != c.wait {
			t.Errorf("%v: %s, %v; want %s, %v", c.err, kind, wait, c.kind, c.wait)
		}
	}
}
