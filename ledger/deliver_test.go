package ledger_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
)

// T5, R7: a retry makes the effect that is missing, in the same row.
func TestDeliver_retry(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	p.fail = 1
	key := keyOn("email")
	want(t, "first", ledger.Failed)(swallow(errProvider)(r.Deliver(t.Context(), key, p.handler())))
	res, err := r.Reserve(t.Context(), nil, key)
	if err != nil || res.Outcome != ledger.NotDue || res.RetryAfter <= 0 {
		t.Errorf("too early: %+v, %v", res, err)
	}
	r.expire(t, r.id(t, key))
	want(t, "second", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	if got := r.row(t, key); p.arrived() != 1 || r.rows(t) != 1 || got.Attempts != 2 {
		t.Errorf("%d effects, row %+v; want one effect in two attempts", p.arrived(), got)
	}
	if n := r.Stats().Takeovers; n != 0 {
		t.Errorf("a retry counted as %d takeovers", n)
	}
}

// T6, R1, R12: eligibility is checked after reserving and right before the effect, and fails closed. The ledger's
// answer and the business's are separate: a row exists for every case.
func TestDeliver_eligibility(t *testing.T) {
	t.Parallel()
	errCheck := errors.New("permission service is down")
	old := time.Now().Add(-2 * time.Minute)
	tests := map[string]struct {
		occurred time.Time
		ok       bool
		reason   string
		err      error
		panics   bool
		want     ledger.Outcome
		wantErr  error
		stored   string
	}{
		"eligible":             {ok: true, want: ledger.Delivered},
		"revoked":              {reason: "permission revoked", want: ledger.Skipped, stored: "permission revoked"},
		"moved to later":       {reason: "scheduled for another time", want: ledger.Skipped, stored: "scheduled for another time"},
		"deleted":              {occurred: old, err: ledger.ErrMissing, want: ledger.Skipped, stored: "missing"},
		"not visible yet":      {err: ledger.ErrMissing, want: ledger.Failed, wantErr: ledger.ErrMissing},
		"check fails":          {err: errCheck, want: ledger.Failed, wantErr: errCheck},
		"check fails, and yes": {ok: true, err: errCheck, want: ledger.Failed, wantErr: errCheck},
		"check panics":         {panics: true, want: ledger.Failed, wantErr: errCheck},
	}
	r := setup(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProvider()
			key := keyOn("email")
			key.Recipient = name
			if !tt.occurred.IsZero() {
				key.OccurredAt = tt.occurred
			}
			h := p.handler()
			h.Eligible = func(ctx context.Context, k ledger.Key, db ledger.DBTX) (bool, string, error) {
				var state string
				if err := db.QueryRow(ctx, "SELECT state FROM ledger.notification_dispatches WHERE recipient = $1", k.Recipient).Scan(&state); err != nil || state != "reserved" {
					t.Errorf("state %q while the check runs, error %v", state, err)
				}
				if tt.panics {
					panic(errCheck)
				}
				return tt.ok, tt.reason, tt.err
			}
			outcome, err := r.Deliver(t.Context(), key, h)
			if outcome != tt.want || !errors.Is(err, tt.wantErr) {
				t.Errorf("got %q, %v; want %q, %v", outcome, err, tt.want, tt.wantErr)
			}
			wantEffects := 0
			if tt.want == ledger.Delivered {
				wantEffects = 1
			}
			if n := p.arrived(); n != wantEffects {
				t.Errorf("%d effects, want %d", n, wantEffects)
			}
			if got := r.row(t, key); tt.stored != "" && got.Reason != tt.stored {
				t.Errorf("stored reason %q, want %q", got.Reason, tt.stored)
			}
			if tt.want == ledger.Skipped { // L22
				h.Eligible = nil
				want(t, "eligible again", ledger.AlreadySkipped)(r.Deliver(t.Context(), key, h))
			}
		})
	}
	if n := r.Stats().Panics; n != 1 {
		t.Errorf("%d panics counted, want 1", n)
	}
}

// T29, R4: the channels of an event are delivered, and fail, each for itself.
func TestDeliver_channels(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	bad := newProvider()
	bad.fail = 1
	handlers := map[string]ledger.Handler{"email": p.handler(), "push": bad.handler(), "sms": p.handler()}
	want(t, "email", ledger.Delivered)(r.Deliver(t.Context(), keyOn("email"), handlers["email"]))
	want(t, "push", ledger.Failed)(swallow(errProvider)(r.Deliver(t.Context(), keyOn("push"), handlers["push"])))
	want(t, "sms", ledger.Delivered)(r.Deliver(t.Context(), keyOn("sms"), handlers["sms"]))

	r.expire(t, r.id(t, keyOn("push")))
	want(t, "email again", ledger.AlreadyDelivered)(r.Deliver(t.Context(), keyOn("email"), handlers["email"]))
	want(t, "push again", ledger.Delivered)(r.Deliver(t.Context(), keyOn("push"), handlers["push"]))
	want(t, "sms again", ledger.AlreadyDelivered)(r.Deliver(t.Context(), keyOn("sms"), handlers["sms"]))
	if p.arrived() != 2 || bad.arrived() != 1 || len(p.all()) != 2 {
		t.Errorf("%d and %d effects, want 2 and 1", p.arrived(), bad.arrived())
	}
}

// What an effect's error says about the effect decides what follows, on each kind of channel.
func TestDeliver_failures(t *testing.T) {
	t.Parallel()
	r := setup(t)
	mine := errors.New("550 no such mailbox")
	tests := map[string]struct {
		channel string
		effect  func(context.Context) error
		want    ledger.Outcome
	}{
		"plain":             {"email", func(context.Context) error { return mine }, ledger.Failed},
		"permanent":         {"email", func(context.Context) error { return ledger.Permanent(mine) }, ledger.Dead},
		"ambiguous, hold":   {"email", func(context.Context) error { return ledger.Ambiguous(mine) }, ledger.Uncertain},
		"ambiguous, probe":  {"sms", func(context.Context) error { return ledger.Ambiguous(mine) }, ledger.Uncertain},
		"ambiguous, resend": {"push", func(context.Context) error { return ledger.Ambiguous(mine) }, ledger.Failed},
		"timeout":           {"email", func(context.Context) error { return errors.Join(mine, context.DeadlineExceeded) }, ledger.Uncertain},
		"read timeout":      {"email", func(context.Context) error { return errors.Join(mine, os.ErrDeadlineExceeded) }, ledger.Uncertain},
		"dial timeout": {"email", func(context.Context) error {
			return errors.Join(mine, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded})
		}, ledger.Failed},
		"retry after":        {"email", func(context.Context) error { return ledger.RetryAfter(time.Hour, mine) }, ledger.Failed},
		"permanent timeout":  {"email", func(context.Context) error { return ledger.Permanent(errors.Join(mine, context.Canceled)) }, ledger.Dead},
		"panic":              {"email", func(context.Context) error { panic(mine) }, ledger.Uncertain},
		"panic with a NUL":   {"push", func(context.Context) error { panic(errors.Join(errors.New("\x00\xff"), mine)) }, ledger.Failed},
		"nothing, and a nil": {"email", func(context.Context) error { return ledger.Permanent(nil) }, ledger.Delivered},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			key := keyOn(tt.channel)
			key.Recipient = name
			outcome, err := r.Deliver(t.Context(), key, ledger.Handler{
				Effect: func(ctx context.Context, _ ledger.Reservation) (string, error) { return "", tt.effect(ctx) },
			})
			if outcome != tt.want || (err == nil) != (tt.want == ledger.Delivered) || err != nil && !errors.Is(err, mine) {
				t.Errorf("got %q, %v; want %q", outcome, err, tt.want)
			}
			if got := r.row(t, key); got.State != string(tt.want) {
				t.Errorf("stored %+v", got)
			}
			if name == "retry after" {
				if res, err := r.Reserve(t.Context(), nil, key); err != nil || res.RetryAfter < 50*time.Minute {
					t.Errorf("retry after %v, error %v; want about an hour", res.RetryAfter, err)
				}
			}
		})
	}
}

// throughProxy returns a ledger whose pool goes through a proxy that can be told to fail.
func throughProxy(t *testing.T, r *rig, change func(*ledger.Config)) (*ledger.Ledger, *faultproxy.Proxy, *pgxpool.Pool) {
	t.Helper()
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	u.Host = proxy.Addr()
	// One round trip a call, so that a fault meets the call and not its preparation.
	p := newPool(t, u.String()+"&default_query_exec_mode=exec")
	return newLedger(t, p, change), proxy, p
}

// The connection is cut while the effect runs: the effect's end is recorded on another one.
func TestDeliver_connectionCutMidEffect(t *testing.T) {
	t.Parallel()
	r := setup(t)
	l, proxy, _ := throughProxy(t, r, nil)
	p := newProvider()
	outcome, err := l.Deliver(t.Context(), keyOn("email"), ledger.Handler{
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			if proxy.Reset() == 0 {
				t.Error("no connection to cut")
			}
			return p.send(ctx, res)
		},
	})
	if outcome != ledger.Delivered || err != nil || p.arrived() != 1 {
		t.Errorf("got %q, %v, %d effects", outcome, err, p.arrived())
	}
	wantState(t, r, keyOn("email"), ledger.StateDelivered)
}

// The mail has gone out and its status cannot be written: uncertain, and never a second mail.
func TestDeliver_statusWriteFails(t *testing.T) {
	t.Parallel()
	r := setup(t)
	l, proxy, _ := throughProxy(t, r, func(c *ledger.Config) { c.FinishTimeout = 300 * time.Millisecond })
	p := newProvider()
	key := keyOn("email")
	outcome, err := l.Deliver(t.Context(), key, ledger.Handler{
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			proxy.Set(faultproxy.Faults{Refuse: true})
			proxy.Reset()
			return p.send(ctx, res)
		},
	})
	if outcome != ledger.Uncertain || !errors.Is(err, ledger.ErrNotRecorded) {
		t.Errorf("got %q, %v; want uncertain and ErrNotRecorded", outcome, err)
	}
	want(t, "while the lease lasts", ledger.AlreadyReserved)(r.Deliver(t.Context(), key, p.handler()))
	r.expire(t, r.id(t, key))
	want(t, "after it", ledger.Uncertain)(r.Deliver(t.Context(), key, p.handler()))
	if due, err := r.ClaimDue(t.Context(), []string{"email"}, 10); err != nil || len(due) != 0 {
		t.Errorf("claimed %v, error %v", due, err)
	}
	if n := p.arrived(); n != 1 {
		t.Errorf("%d mails, want 1", n)
	}
}

// begin_effect's answer is lost, or the call never arrives: nothing is sent unless the stamp is known to stand.
func TestDeliver_beginUnanswered(t *testing.T) {
	t.Parallel()
	r := setup(t)
	l, proxy, _ := throughProxy(t, r, func(c *ledger.Config) { c.FinishTimeout = 300 * time.Millisecond })
	p := newProvider()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := p.handler()
	h.Eligible = func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
		// The request arrives, its answer does not, until the connection is cut.
		proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{Pause: true}})
		return true, "", nil
	}
	type answer struct {
		outcome ledger.Outcome
		err     error
	}
	done := make(chan answer, 1)
	go func() {
		outcome, err := l.Deliver(ctx, keyOn("email"), h)
		done <- answer{outcome, err}
	}()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		n := query1[int](t, r, "SELECT count(*) FROM ledger.notification_dispatches WHERE effect_at IS NOT NULL")
		return n == 1, "the stamp is not there"
	})
	if n := p.arrived(); n != 0 {
		t.Fatalf("%d effects before begin_effect answered", n)
	}
	proxy.Reset()
	proxy.Heal()
	got := <-done
	if got.outcome != ledger.Delivered || got.err != nil || p.arrived() != 1 {
		t.Errorf("got %q, %v, %d effects; want a delivery by the one whose stamp it is", got.outcome, got.err, p.arrived())
	}
}

// A delivery that is stopped while begin_effect is on its way sends nothing, and says so: the stamp is taken back.
func TestDeliver_stoppedWhileBeginning(t *testing.T) {
	t.Parallel()
	r := setup(t)
	l, proxy, _ := throughProxy(t, r, nil)
	p := newProvider()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := p.handler()
	h.Eligible = func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
		proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{Pause: true}})
		return true, "", nil
	}
	done := make(chan ledger.Outcome, 1)
	go func() {
		outcome, _ := l.Deliver(ctx, keyOn("email"), h)
		done <- outcome
	}()
	stamped := func() int {
		return query1[int](t, r, "SELECT count(*) FROM ledger.notification_dispatches WHERE effect_at IS NOT NULL")
	}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) { return stamped() == 1, "the stamp is not there" })
	cancel()
	proxy.Heal()
	if got := <-done; got != ledger.Failed || p.arrived() != 0 || stamped() != 0 {
		t.Errorf("got %q, %d effects, %d stamps; want failed and none", got, p.arrived(), stamped())
	}
}

// Whatever begin_effect answers but begun, there is no effect.
func TestDeliver_notBegun(t *testing.T) {
	t.Parallel()
	r := setup(t)
	tests := map[string]struct {
		meanwhile func(key ledger.Key)
		want      ledger.Outcome
		wantErr   error
	}{
		"taken over": {func(key ledger.Key) {
			r.expire(t, r.id(t, key))
			mustReserve(t, r.Ledger, key)
		}, ledger.Fenced, nil},
		"begun by somebody with our fence": {func(key ledger.Key) {
			want(t, "begin", ledger.Begun)(r.BeginEffect(t.Context(), ledger.Reservation{ID: r.id(t, key), Fence: 1}))
		}, ledger.AlreadyBegun, nil},
		"lease over": {func(key ledger.Key) { r.expire(t, r.id(t, key)) }, ledger.Released, ledger.ErrLeaseOver},
		"gone": {func(key ledger.Key) {
			r.exec(t, "DELETE FROM ledger.notification_dispatches WHERE recipient = $1", key.Recipient)
		}, ledger.Gone, nil},
	}
	for name, tt := range tests {
		p := newProvider()
		key := keyOn("email")
		key.Recipient = name
		h := p.handler()
		h.Eligible = func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
			tt.meanwhile(key)
			return true, "", nil
		}
		outcome, err := r.Deliver(t.Context(), key, h)
		if outcome != tt.want || !errors.Is(err, tt.wantErr) || p.arrived() != 0 {
			t.Errorf("%s: got %q, %v, %d effects; want %q, %v, none", name, outcome, err, p.arrived(), tt.want, tt.wantErr)
		}
	}
}

// A check that took most of the lease does not make the effect short of time: it is renewed first.
func TestDeliver_slowCheck(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	h := p.handler()
	h.Eligible = func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
		r.exec(t, `UPDATE ledger.notification_dispatches SET due_at = m, lease_until = m FROM (SELECT clock_timestamp() + interval '2 s' AS m OFFSET 0) AS soon`)
		return true, "", nil
	}
	want(t, "deliver", ledger.Delivered)(r.Deliver(t.Context(), keyOn("email"), h))
	if got := r.Stats().Outcomes["email"]; got[ledger.LeaseShort] != 1 || got[ledger.Renewed] != 1 {
		t.Errorf("counted %v, want one lease_short and one renewed", got)
	}
}

// A delivery that is stopped before its effect begins is given back, as if it had not been tried.
func TestDeliver_stoppedBeforeEffect(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	stop := errors.New("shutting down")
	h := p.handler()
	h.Eligible = func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
		cancel(stop)
		return true, "", nil
	}
	want(t, "stopped", ledger.Released)(swallow(stop)(r.Deliver(ctx, keyOn("email"), h)))
	if got := r.row(t, keyOn("email")); got.State != "pending" || got.Attempts != 0 || p.arrived() != 0 {
		t.Errorf("row %+v, %d effects", got, p.arrived())
	}
	want(t, "later", ledger.Delivered)(r.Deliver(t.Context(), keyOn("email"), p.handler()))
}

// R22: no transaction is open while the effect runs.
func TestDeliver_noTransactionMidEffect(t *testing.T) {
	t.Parallel()
	r := setup(t)
	want(t, "deliver", ledger.Delivered)(r.Deliver(t.Context(), keyOn("email"), ledger.Handler{
		Effect: func(context.Context, ledger.Reservation) (string, error) {
			if n := query1[int](t, r, `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'`); n != 0 {
				t.Errorf("%d open transactions during the effect", n)
			}
			return "", nil
		},
	}))
}
