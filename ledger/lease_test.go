package ledger_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
)

// T12, R6, R17: a worker killed while it held the row is taken over from when its lease ends.
func TestDeliver_killedWhileReserved(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("email")
	r.killWorker(t, "email", whenReserved)
	before := r.row(t, key)
	if before.State != "reserved" || before.Fence != 1 {
		t.Fatalf("row %+v", before)
	}
	want(t, "while the lease lasts", ledger.AlreadyReserved)(r.Deliver(t.Context(), key, r.sender()))
	r.expire(t, r.id(t, key))
	want(t, "takeover", ledger.Delivered)(r.Deliver(t.Context(), key, r.sender()))
	if got := r.row(t, key); got.Fence != 2 || got.Attempts != 2 || r.sends(t) != 1 {
		t.Errorf("row %+v, %d sends", got, r.sends(t))
	}
	if n := r.Stats().Takeovers; n != 1 {
		t.Errorf("%d takeovers counted, want 1", n)
	}
}

// T16: a worker killed after its effect began leaves it uncertain, and the channel's policy decides.
func TestDeliver_killedAfterBegin(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{whenBegun, whenSent} {
		sent := 0
		if stage == whenSent {
			sent = 1
		}
		t.Run(stage+"/hold", func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.killWorker(t, "email", stage)
			r.expire(t, r.id(t, keyOn("email")))
			want(t, "after the lease", ledger.Uncertain)(r.Deliver(t.Context(), keyOn("email"), r.sender()))
			if n := r.sends(t); n != sent {
				t.Errorf("%d sends, want %d", n, sent)
			}
		})
		t.Run(stage+"/resend", func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.killWorker(t, "push", stage)
			r.expire(t, r.id(t, keyOn("push")))
			want(t, "after the lease", ledger.Delivered)(r.Deliver(t.Context(), keyOn("push"), r.sender()))
			if n := query1[int](t, r, "SELECT count(DISTINCT provider_key) FROM sends"); n != 1 || r.sends(t) != sent+1 {
				t.Errorf("%d sends with %d keys, want %d with one", r.sends(t), n, sent+1)
			}
		})
		t.Run(stage+"/probe", func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.killWorker(t, "sms", stage)
			r.expire(t, r.id(t, keyOn("sms")))
			h := r.sender()
			asked := 0
			h.Probe = func(ctx context.Context, res ledger.Reservation) (ledger.Verdict, error) {
				if asked++; asked == 1 {
					return ledger.VerdictUnknown, nil
				}
				if res.FirstEffectAt.IsZero() {
					t.Error("no time of the first effect")
				}
				var known bool
				err := r.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM sends WHERE provider_key = $1)", res.ProviderKey).Scan(&known)
				if known {
					return ledger.VerdictDelivered, err
				}
				return ledger.VerdictNotSent, err
			}
			stop := run(t, r.Ledger, map[string]ledger.Handler{"sms": h})
			defer stop()
			id := r.id(t, keyOn("sms"))
			testenv.Eventually(t, 20*time.Second, func() (bool, string) {
				d := r.row(t, keyOn("sms"))
				if d.State != "delivered" { // do not wait for the probe's lease or the backoff
					r.exec(t, `UPDATE ledger.notification_dispatches SET probe_until = clock_timestamp() WHERE id = $1 AND state = 'uncertain'`, id)
					r.exec(t, `UPDATE ledger.notification_dispatches SET due_at = least(due_at, clock_timestamp()) WHERE id = $1 AND state = 'failed'`, id)
				}
				return d.State == "delivered", d.State + " " + d.Reason
			})
			if n := r.sends(t); n != 1 {
				t.Errorf("%d sends, want 1", n)
			}
		})
	}
}

// zombie returns a reservation that has been taken over, and the one that took it.
func zombie(t *testing.T, r *rig, key ledger.Key) (old, holder ledger.Reservation) {
	t.Helper()
	old = mustReserve(t, r.Ledger, key)
	r.expire(t, old.ID)
	holder = mustReserve(t, r.Ledger, key)
	if holder.Fence != old.Fence+1 || holder.ProviderKey != old.ProviderKey {
		t.Fatalf("taken over by %+v from %+v", holder, old)
	}
	return old, holder
}

// T13: a late failure changes nothing, nor does any other call with an old fence.
func TestFail_afterTakeover(t *testing.T) {
	t.Parallel()
	r := setup(t)
	old, _ := zombie(t, r, keyOn("email"))
	before := r.row(t, keyOn("email"))
	for _, kind := range []ledger.Kind{ledger.KindRetry, ledger.KindPermanent, ledger.KindAmbiguous} {
		want(t, "fail", ledger.Fenced)(r.Fail(t.Context(), old, kind, "late", 0))
	}
	want(t, "release", ledger.Fenced)(r.Release(t.Context(), old))
	want(t, "skip", ledger.Fenced)(r.Skip(t.Context(), nil, old, "late"))
	want(t, "begin", ledger.Fenced)(r.BeginEffect(t.Context(), old))
	if _, outcome, err := r.Renew(t.Context(), old, 0); outcome != ledger.Fenced || err != nil {
		t.Errorf("renew: %q, %v", outcome, err)
	}
	if after := r.row(t, keyOn("email")); after != before {
		t.Errorf("row %+v, was %+v", after, before)
	}
	if n := r.Stats().Fenced; n != 7 {
		t.Errorf("%d fenced, want 7", n)
	}
}

// A late failure after a success changes nothing.
func TestFail_afterSuccess(t *testing.T) {
	t.Parallel()
	r := setup(t)
	old, holder := zombie(t, r, keyOn("email"))
	want(t, "begin", ledger.Begun)(r.BeginEffect(t.Context(), holder))
	want(t, "complete", ledger.Delivered)(r.Complete(t.Context(), nil, holder, "ref", []byte(`{"n":1}`)))
	before := r.row(t, keyOn("email"))
	want(t, "the old one fails", ledger.Fenced)(r.Fail(t.Context(), old, ledger.KindPermanent, "late", 0))
	want(t, "the new one fails", ledger.Fenced)(r.Fail(t.Context(), holder, ledger.KindRetry, "late", 0))
	if after := r.row(t, keyOn("email")); after != before {
		t.Errorf("row %+v, was %+v", after, before)
	}
	res, err := r.Reserve(t.Context(), nil, keyOn("email"))
	if err != nil || res.Outcome != ledger.AlreadyDelivered || string(res.Value) != `{"n": 1}` {
		t.Errorf("got %q with %s, %v", res.Outcome, res.Value, err)
	}
}

// T14: the zombie's success is a fact; recorded in time, it stops the new holder before its effect.
func TestComplete_lateAccepted(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("email")
	old := mustReserve(t, r.Ledger, key)
	want(t, "begin", ledger.Begun)(r.BeginEffect(t.Context(), old))
	r.expire(t, old.ID)
	want(t, "after the lease", ledger.Uncertain)(r.Deliver(t.Context(), key, p.handler()))
	if n := p.arrived(); n != 0 {
		t.Errorf("%d effects", n)
	}
	if redriven, err := r.Redrive(t.Context(), old.ID, "ann", "provider says no", false); redriven != ledger.Redriven || err != nil {
		t.Fatalf("redrive: %q, %v", redriven, err)
	}
	holder := mustReserve(t, r.Ledger, key)
	want(t, "late success", ledger.LateAccepted)(r.Complete(t.Context(), nil, old, "ref", nil))
	want(t, "the new holder", ledger.Fenced)(r.BeginEffect(t.Context(), holder))
	wantState(t, r, key, ledger.StateDelivered)
	if s := r.Stats(); s.LateSuccess != 1 {
		t.Errorf("%d late successes counted", s.LateSuccess)
	}
}

// The same through Deliver: the effect that outlives its lease is recorded, the one that takes over does nothing.
func TestDeliver_outlivesLease(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("push")
	taken := make(chan ledger.Reservation, 1)
	outcome, err := r.Deliver(t.Context(), key, ledger.Handler{
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			r.expire(t, res.ID)
			taken <- mustReserve(t, r.Ledger, key)
			return p.send(ctx, res)
		},
	})
	if outcome != ledger.LateAccepted || err != nil {
		t.Errorf("got %q, %v", outcome, err)
	}
	want(t, "the new holder", ledger.Fenced)(r.BeginEffect(t.Context(), <-taken))
	if n := p.arrived(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// T15: a success that comes after another effect has begun is fenced, and counted: there may be two.
func TestComplete_fenced(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("push") // resend
	old := mustReserve(t, r.Ledger, key)
	want(t, "begin", ledger.Begun)(r.BeginEffect(t.Context(), old))
	r.expire(t, old.ID)
	holder := mustReserve(t, r.Ledger, key)
	want(t, "begin again", ledger.Begun)(r.BeginEffect(t.Context(), holder))
	want(t, "late success", ledger.Fenced)(r.Complete(t.Context(), nil, old, "", nil))
	if s := r.Stats(); s.Fenced != 1 || s.LateSuccess != 1 {
		t.Errorf("counted %d fenced, %d late", s.Fenced, s.LateSuccess)
	}
	want(t, "the holder", ledger.Delivered)(r.Complete(t.Context(), nil, holder, "", nil))
}

// T17: a lease is not renewed after a takeover, after its end, or past the cap on holding.
func TestRenew(t *testing.T) {
	t.Parallel()
	r := setup(t)
	old, holder := zombie(t, r, keyOn("email"))
	if _, outcome, err := r.Renew(t.Context(), old, 0); outcome != ledger.Fenced || err != nil {
		t.Errorf("after a takeover: %q, %v", outcome, err)
	}
	holder.Deadline = time.Now()
	renewed, outcome, err := r.Renew(t.Context(), holder, 0)
	if outcome != ledger.Renewed || err != nil || time.Until(renewed.Deadline) < 20*time.Second {
		t.Errorf("renewed %+v: %q, %v", renewed, outcome, err)
	}
	r.exec(t, "UPDATE ledger.notification_dispatches SET held_since = held_since - interval '16 minutes'")
	if _, outcome, err := r.Renew(t.Context(), holder, 0); outcome != ledger.HoldCap || err != nil {
		t.Errorf("past the cap: %q, %v", outcome, err)
	}
	r.expire(t, holder.ID)
	if _, outcome, err := r.Renew(t.Context(), holder, 0); outcome != ledger.LeaseOver || err != nil {
		t.Errorf("after the end: %q, %v", outcome, err)
	}
}

// A long effect keeps its lease, up to the cap, and is then told to stop.
func TestDeliver_renewsUpToCap(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(t, "UPDATE ledger.channels SET lease = '400 ms', hold_cap = '2 seconds' WHERE channel = 'email'")
	key := keyOn("email")
	began := time.Now()
	var lasted time.Duration
	outcome, err := r.Deliver(t.Context(), key, ledger.Handler{
		Effect: func(ctx context.Context, _ ledger.Reservation) (string, error) {
			<-ctx.Done()
			lasted = time.Since(began)
			return "", context.Cause(ctx)
		},
	})
	if !errors.Is(err, ledger.ErrLeaseOver) {
		t.Errorf("ended by %v, want ErrLeaseOver", err)
	}
	if outcome != ledger.Uncertain {
		t.Errorf("got %q, want uncertain", outcome)
	}
	if lasted < 900*time.Millisecond || lasted > 2500*time.Millisecond {
		t.Errorf("held for %v, want more than two leases and not past the cap", lasted)
	}
	if r.Stats().Outcomes["email"][ledger.Renewed] < 2 {
		t.Errorf("counted %v", r.Stats().Outcomes["email"])
	}
}

// The effect is told to stop when somebody took the row over, and when the ledger cannot be asked until the deadline.
func TestDeliver_effectIsStopped(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(t, "UPDATE ledger.channels SET lease = '2 seconds' WHERE channel IN ('email', 'push')")
	wait := func(ctx context.Context, _ ledger.Reservation) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	outcome, err := r.Deliver(t.Context(), keyOn("push"), ledger.Handler{
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			r.expire(t, res.ID)
			mustReserve(t, r.Ledger, keyOn("push"))
			return wait(ctx, res)
		},
	})
	if outcome != ledger.Fenced || !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("taken over: %q, %v; want fenced", outcome, err)
	}

	l, proxy, _ := throughProxy(t, r, func(c *ledger.Config) { c.FinishTimeout = 200 * time.Millisecond })
	began := time.Now()
	outcome, err = l.Deliver(t.Context(), keyOn("email"), ledger.Handler{
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			refuse(proxy)
			if until := time.Until(res.Deadline); until > 2*time.Second {
				t.Errorf("deadline in %v", until)
			}
			return wait(ctx, res)
		},
	})
	if outcome != ledger.Uncertain || !errors.Is(err, ledger.ErrLeaseOver) || !errors.Is(err, ledger.ErrNotRecorded) {
		t.Errorf("cut off: %q, %v; want uncertain", outcome, err)
	}
	if lasted := time.Since(began); lasted > 2*time.Second+500*time.Millisecond {
		t.Errorf("went on for %v under a lease of 2 s", lasted)
	}
}

// T33, R19: an operator's redrive says what it is, and needs to.
func TestRedrive(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("email")
	res := mustReserve(t, r.Ledger, key)
	redrive := func(resend bool) (ledger.Outcome, error) {
		return r.Redrive(t.Context(), res.ID, "ann", "customer asked", resend)
	}
	want(t, "while it is held", ledger.Refused)(redrive(false))
	want(t, "release", ledger.Released)(r.Release(t.Context(), res))
	want(t, "deliver", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	want(t, "without the flag", ledger.Refused)(redrive(false))
	want(t, "with it", ledger.Redriven)(redrive(true))
	want(t, "deliver once more", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	if got := r.row(t, key); got.Generation != 2 || p.arrived() != 2 || len(p.all()) != 2 {
		t.Errorf("row %+v, %d effects with %d keys; want a second one with a key of its own", got, p.arrived(), len(p.all()))
	}
	if outcome, err := r.Redrive(t.Context(), 1<<40, "ann", "typo", false); outcome != ledger.Gone || err != nil {
		t.Errorf("no such row: %q, %v", outcome, err)
	}
}

// T40: of two probes the one that lost its claim settles nothing.
func TestResolve_race(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("sms")
	res := mustReserve(t, r.Ledger, key)
	want(t, "begin", ledger.Begun)(r.BeginEffect(t.Context(), res))
	want(t, "fail", ledger.Uncertain)(r.Fail(t.Context(), res, ledger.KindAmbiguous, "timeout", 0))
	claim := func() ledger.Reservation {
		t.Helper()
		list, err := r.ClaimUncertain(t.Context(), []string{"sms"}, 10, 0)
		if err != nil || len(list) != 1 {
			t.Fatalf("claimed %v, %v", list, err)
		}
		return list[0]
	}
	slow := claim()
	if list, err := r.ClaimUncertain(t.Context(), []string{"sms"}, 10, 0); err != nil || len(list) != 0 {
		t.Errorf("claimed twice: %v, %v", list, err)
	}
	r.exec(t, "UPDATE ledger.notification_dispatches SET probe_until = clock_timestamp()")
	quick := claim()
	want(t, "quick", ledger.Delivered)(r.Resolve(t.Context(), quick, ledger.VerdictDelivered, "probe", "seen"))
	want(t, "slow", ledger.Fenced)(r.Resolve(t.Context(), slow, ledger.VerdictNotSent, "probe", "not seen"))
	p := newProvider()
	want(t, "again", ledger.AlreadyDelivered)(r.Deliver(t.Context(), key, p.handler()))
}

// The deadline is counted from before the call, less the margin, so a slow answer does not extend it.
func TestReserve_deadline(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const slow = 700 * time.Millisecond
	l, proxy, _ := throughProxy(t, r, func(c *ledger.Config) { c.Margin = 3 * time.Second })
	if _, err := l.Status(t.Context(), "", "warm:1"); err != nil { // a connection
		t.Fatal(err)
	}
	proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{Delay: slow}})
	before := time.Now()
	res := mustReserve(t, l, keyOn("email"))
	if got := res.Deadline.Sub(before); got < 26*time.Second || got > 27*time.Second+slow/2 {
		t.Errorf("deadline %v after the call, want a lease of 30 s less the margin of 3 s", got)
	}
	// Of a short lease the margin takes a quarter at most.
	short, err := l.Reserve(t.Context(), nil, keyOn("push"), ledger.WithLease(4*time.Second))
	if got := time.Until(short.Deadline); err != nil || got > 3*time.Second-slow/2 || got < 1500*time.Millisecond {
		t.Errorf("deadline in %v, error %v; want 3 s less the slow answer", got, err)
	}
}

// The end of an effect does not wait for a renewal whose answer is lost.
func TestDeliver_renewalUnanswered(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(t, "UPDATE ledger.channels SET lease = '8 seconds' WHERE channel = 'email'") // renewed after 3 s, over after 6 s
	l, proxy, _ := throughProxy(t, r, nil)
	p := newProvider()
	var ended time.Time
	want(t, "deliver", ledger.Delivered)(l.Deliver(t.Context(), keyOn("email"), ledger.Handler{
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{Drop: true}}) // for good, on the connection that the renewal takes
			testenv.Eventually(t, 10*time.Second, func() (bool, string) { return time.Until(res.Deadline) < 2500*time.Millisecond, "" })
			proxy.Heal()
			ended = time.Now()
			return p.send(ctx, res)
		},
	}))
	if waited := time.Since(ended); waited > 2*time.Second {
		t.Errorf("recorded %v after the effect", waited)
	}
}
