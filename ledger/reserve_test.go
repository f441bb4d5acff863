package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/ledger"
)

// T1, R10, R15: the second run of the same event finds the first one's delivery and says so.
func TestDeliver_twice(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("email")
	want(t, "first", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	want(t, "second", ledger.AlreadyDelivered)(r.Deliver(t.Context(), key, p.handler()))
	if n := p.arrived(); n != 1 || r.rows(t) != 1 {
		t.Errorf("%d effects, %d rows, want 1 and 1", n, r.rows(t))
	}
	got := r.Stats().Outcomes["email"]
	if got[ledger.Delivered] != 1 || got[ledger.AlreadyDelivered] != 1 {
		t.Errorf("counted %v", got)
	}
}

// T3, R3: the key names the event, so one author's second post is a second notification.
func TestDeliver_twoEventsOneRecipient(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	for _, post := range []string{"42", "43"} {
		key := keyOn("email")
		eventKey, err := ledger.EventKey("scheduled-post-published", post)
		if err != nil {
			t.Fatal(err)
		}
		key.EventKey = eventKey
		want(t, post, ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	}
	if n := p.arrived(); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
}

// T32: the tenant is part of the key.
func TestDeliver_twoTenants(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	for _, tenant := range []string{"", "a", "b"} {
		key := keyOn("email")
		key.Tenant = tenant
		want(t, tenant, ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	}
	if n := len(p.all()); n != 3 {
		t.Errorf("%d distinct provider keys, want 3", n)
	}
}

// T4, R5, R16: of many that come at once one gets it.
func TestReserve_concurrent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, workers := range []int{2, 64} {
		key := keyOn("email")
		key.EventKey = fmt.Sprintf("race:%d", workers)
		var mu sync.Mutex
		got := map[ledger.Outcome]int{}
		var running sync.WaitGroup
		start := make(chan struct{})
		for range workers {
			running.Go(func() {
				<-start
				res, err := r.Reserve(t.Context(), nil, key)
				if err != nil {
					t.Error(err)
				}
				if res.Outcome == ledger.AlreadyReserved && (res.RetryAfter <= 0 || res.RetryAfter > 31*time.Second) {
					t.Errorf("retry after %v", res.RetryAfter)
				}
				mu.Lock()
				defer mu.Unlock()
				got[res.Outcome]++
			})
		}
		close(start)
		running.Wait()
		if diff := cmp.Diff(map[ledger.Outcome]int{ledger.Reserved: 1, ledger.AlreadyReserved: workers - 1}, got); diff != "" {
			t.Errorf("%d workers (-want +got):\n%s", workers, diff)
		}
	}
}

// T25: one key for two contents is a mistake that sends nothing.
func TestDeliver_otherPayload(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("email")
	p.fail = 1
	want(t, "first", ledger.Failed)(swallow(errProvider)(r.Deliver(t.Context(), key, p.handler(), ledger.WithPayloadHash(ledger.PayloadHash([]byte("a"))))))
	r.expire(t, r.id(t, key))
	want(t, "other", ledger.PayloadMismatch)(r.Deliver(t.Context(), key, p.handler(), ledger.WithPayloadHash(ledger.PayloadHash([]byte("b")))))
	if n := p.arrived(); n != 0 {
		t.Errorf("%d effects, want none", n)
	}
	want(t, "same", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler(), ledger.WithPayloadHash(ledger.PayloadHash([]byte("a")))))
	want(t, "other, later", ledger.PayloadMismatch)(r.Deliver(t.Context(), key, p.handler(), ledger.WithPayloadHash(ledger.PayloadHash([]byte("b")))))
}

// swallow checks the error that a call should have returned and takes it off.
func swallow(target error) func(ledger.Outcome, error) (ledger.Outcome, error) {
	return func(o ledger.Outcome, err error) (ledger.Outcome, error) {
		if !errors.Is(err, target) {
			return o, fmt.Errorf("got error %v, want %v", err, target)
		}
		return o, nil
	}
}

// T26: what is older than the ledger's memory is not sent, and memory shorter than the source's is refused.
func TestDeliver_expired(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("email")
	want(t, "first", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	r.exec(t, "UPDATE ledger.notification_dispatches SET done_at = done_at - interval '100 days', created_at = created_at - interval '100 days'")
	if n, err := r.Purge(t.Context(), 100); n != 1 || err != nil {
		t.Fatalf("purged %d, error %v", n, err)
	}
	key.OccurredAt = time.Now().AddDate(0, 0, -100)
	want(t, "after the purge", ledger.Expired)(r.Deliver(t.Context(), key, p.handler()))
	if n := p.arrived(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}

	for replay, wantErr := range map[time.Duration]error{30 * 24 * time.Hour: nil, 31 * 24 * time.Hour: ledger.ErrHorizon} {
		l := newLedger(t, r.pool, func(c *ledger.Config) { c.Replay = replay })
		if err := l.Check(t.Context()); !errors.Is(err, wantErr) {
			t.Errorf("replay %v: got %v, want %v", replay, err, wantErr)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := l.Run(ctx, map[string]ledger.Handler{"email": p.handler()}); !errors.Is(err, wantErr) {
			t.Errorf("start with replay %v: got %v, want %v", replay, err, wantErr)
		}
		cancel()
	}
	if _, err := r.pool.Exec(t.Context(), "UPDATE ledger.channels SET retention = '1 day' WHERE channel = 'email'"); err == nil {
		t.Error("a retention below the horizon was accepted")
	}
}

// T31, R13, R23: a reservation in a transaction that rolls back never was, and one that commits can be worked on.
func TestReserve_callersTransaction(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("email")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Reserve(t.Context(), ledger.Pgx(tx), key)
	if err != nil || res.Outcome != ledger.Reserved {
		t.Fatalf("reserve: %q, %v", res.Outcome, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "begin", ledger.Gone)(r.BeginEffect(t.Context(), res.Reservation))
	if n := r.rows(t); n != 0 {
		t.Fatalf("%d rows after the rollback", n)
	}

	p := newProvider()
	tx, err = r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.RegisterBatch(t.Context(), ledger.Pgx(tx), event("email"), slices.Values([]string{"user:7"}), 0); err != nil {
		t.Fatal(err)
	}
	if due, err := r.ClaimDue(t.Context(), []string{"email"}, 10); err != nil || len(due) != 0 {
		t.Errorf("claimed %v before the commit, error %v", due, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, "after the commit", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
}

// T22 and a batch of ten of which the seventh is known: each recipient has its own answer.
func TestReserveBatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	var ten []string
	for i := range 10 {
		ten = append(ten, fmt.Sprintf("user:%d", i+1))
	}
	known := event("email").Key("user:7")
	want(t, "seventh", ledger.Delivered)(r.Deliver(t.Context(), known, newProvider().handler()))

	got := map[string]ledger.Outcome{}
	var completions []ledger.Completion
	calls := 0
	err := r.ReserveBatch(t.Context(), event("email"), slices.Values(append(slices.Clone(ten), "user:1", "user:7")), 12, func(results []ledger.Result) error {
		calls++
		for _, res := range results {
			if _, again := got[res.Key.Recipient]; again {
				t.Errorf("%q answered twice", res.Key.Recipient)
			}
			got[res.Key.Recipient] = res.Outcome
			if res.Outcome == ledger.Reserved {
				if res.ProviderKey == "" || time.Until(res.Deadline) < 20*time.Second {
					t.Errorf("reservation %+v", res.Reservation)
				}
				completions = append(completions, ledger.Completion{Reservation: res.Reservation, Ref: "x"})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes := map[string]ledger.Outcome{}
	for _, recipient := range ten {
		wantOutcomes[recipient] = ledger.Reserved
	}
	wantOutcomes["user:7"] = ledger.AlreadyDelivered
	if diff := cmp.Diff(wantOutcomes, got); diff != "" || calls != 1 {
		t.Errorf("%d calls, outcomes (-want +got):\n%s", calls, diff)
	}

	for i, c := range completions {
		if i%2 == 0 {
			want(t, "begin", ledger.Begun)(r.BeginEffect(t.Context(), c.Reservation))
		}
	}
	completions[2].Reservation.Fence++ // invented
	completions = append(completions, ledger.Completion{Reservation: ledger.Reservation{ID: 1 << 40, Fence: 1}})
	outcomes, err := r.CompleteBatch(t.Context(), nil, completions)
	if err != nil {
		t.Fatal(err)
	}
	wantAnswers := []ledger.Outcome{"delivered", "not_begun", "fenced", "not_begun", "delivered", "not_begun", "delivered", "not_begun", "delivered", "gone"}
	if diff := cmp.Diff(wantAnswers, outcomes); diff != "" {
		t.Errorf("completions (-want +got):\n%s", diff)
	}

	mine := errors.New("mine")
	if err := r.ReserveBatch(t.Context(), event("push"), slices.Values(ten), 3, func([]ledger.Result) error { return mine }); err != mine {
		t.Errorf("got %v, want the callback's error", err)
	}
	if n := query1[int](t, r, "SELECT count(*) FROM ledger.notification_dispatches WHERE channel = 'push'"); n != 3 {
		t.Errorf("%d rows after the first chunk failed, want 3", n)
	}
}

// T23: a batch that died half way continues with the second half.
func TestReserveBatch_crashAndRerun(t *testing.T) {
	t.Parallel()
	total := 100_000
	if testing.Short() {
		total = 10_000
	}
	r := setup(t)
	effects := map[string]int{}
	crash := errors.New("crash")
	pass := func(stopAt int) error {
		return r.ReserveBatch(t.Context(), event("database"), func(yield func(string) bool) {
			for i := range total {
				if !yield(fmt.Sprintf("user:%d", i)) {
					return
				}
			}
		}, 5000, func(results []ledger.Result) error {
			if len(effects) >= stopAt {
				return crash
			}
			var done []ledger.Completion
			for _, res := range results {
				if res.Outcome == ledger.Reserved {
					effects[res.Key.Recipient]++
					done = append(done, ledger.Completion{Reservation: res.Reservation})
				}
			}
			outcomes, err := r.CompleteBatch(t.Context(), nil, done)
			for _, o := range outcomes {
				if o != ledger.Delivered {
					t.Errorf("complete: %q", o)
				}
			}
			return err
		})
	}
	if err := pass(total / 2); err != crash {
		t.Fatalf("got %v, want the crash", err)
	}
	if len(effects) != total/2 {
		t.Fatalf("%d effects before the crash", len(effects))
	}
	// The chunk that was reserved and not finished is held until its leases end.
	r.expireAll(t, "state = 'reserved'")
	if err := pass(total + 1); err != nil {
		t.Fatal(err)
	}
	for recipient, n := range effects {
		if n != 1 {
			t.Errorf("%d effects for %q", n, recipient)
		}
	}
	if n := query1[int](t, r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'delivered'"); len(effects) != total || n != total {
		t.Errorf("%d effects, %d rows delivered, want %d", len(effects), n, total)
	}
	if got := r.Stats().Outcomes["database"][ledger.AlreadyDelivered]; got != uint64(total/2) {
		t.Errorf("%d found delivered, want %d", got, total/2)
	}
}

func TestReserve_refuses(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("email")
	key.EventKey = "" // R26
	if _, err := r.Reserve(t.Context(), nil, key); err == nil {
		t.Error("an empty key was accepted")
	} else if e, ok := errors.AsType[*ledger.KeyError](err); !ok || e.Field != "event_key" {
		t.Errorf("got %v, want a KeyError of event_key", err)
	}
	if _, err := r.Reserve(t.Context(), nil, keyOn("pigeon")); sqlState(err) != "22023" {
		t.Errorf("unknown channel: got %v, want 22023", err)
	}
	key = keyOn("email")
	key.OccurredAt = time.Time{}
	if _, err := r.Reserve(t.Context(), nil, key); sqlState(err) != "22023" {
		t.Errorf("no time: got %v, want 22023", err)
	}
	if _, err := r.Deliver(t.Context(), keyOn("email"), ledger.Handler{}); err == nil {
		t.Error("a handler without an effect was accepted")
	}
	if n := r.rows(t); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// R4: what holds the boundary is a constraint, for whoever writes.
func TestSchema_boundary(t *testing.T) {
	t.Parallel()
	r := setup(t)
	mustReserve(t, r.Ledger, keyOn("email"))
	const again = `INSERT INTO ledger.notification_dispatches (tenant, event_key, recipient, channel, state, due_at, created_at, max_attempts)
SELECT tenant, event_key, recipient, channel, 'pending', now(), now(), 1 FROM ledger.notification_dispatches`
	if _, err := r.pool.Exec(t.Context(), again); sqlState(err) != "23505" {
		t.Errorf("a second row of the same boundary: %v, want 23505", err)
	}
}
