package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
)

func refuse(p *faultproxy.Proxy) {
	p.Set(faultproxy.Faults{Refuse: true})
	p.Reset()
}

// run starts a worker and returns what stops it and waits.
func run(t *testing.T, l *ledger.Ledger, handlers map[string]ledger.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, handlers) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

func (r *rig) waitDelivered(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		got := query1[int](t, r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'delivered'")
		return got == n, fmt.Sprintf("%d of %d delivered", got, n)
	})
}

func users(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("user:%d", i)
	}
	return list
}

// N workers restarted at once on one backlog, and a scheduler that has fired twice: each row is delivered once.
func TestRun_backlog(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const n = 300
	for i, wantInserted := range []int{n, 0} { // cron fires twice
		reg, err := r.RegisterBatch(t.Context(), nil, event("email"), slices.Values(users(n)), 100, ledger.WithContent(ledger.Content{Type: "PostPublished", Payload: []byte("hi")}))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ledger.Registration{Inserted: wantInserted, Known: n - wantInserted}, reg); diff != "" {
			t.Errorf("run %d (-want +got):\n%s", i, diff)
		}
	}
	p := newProvider()
	var stops []func()
	for range 6 {
		var atOnce atomic.Int32
		l := newLedger(t, newPool(t, r.url), func(c *ledger.Config) { c.Workers = 3 })
		stops = append(stops, run(t, l, map[string]ledger.Handler{"email": {
			Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
				defer atOnce.Add(-1)
				if n := atOnce.Add(1); n > 3 {
					t.Errorf("%d effects at once, want 3 at most", n)
				}
				runtime.Gosched()
				return p.send(ctx, res)
			},
		}}))
	}
	r.waitDelivered(t, n)
	for _, stop := range stops {
		stop()
	}
	if p.arrived() != n || len(p.all()) != n {
		t.Errorf("%d effects with %d keys, want %d", p.arrived(), len(p.all()), n)
	}
	if got := query1[int](t, r, "SELECT max(attempts) FROM ledger.notification_dispatches"); got != 1 {
		t.Errorf("%d attempts, want 1", got)
	}
}

// T30: a delivery for later waits for its time, however long that is compared with leases.
func TestRun_notBefore(t *testing.T) {
	t.Parallel()
	r := setup(t)
	due := time.Now().Add(1500 * time.Millisecond)
	if _, err := r.RegisterBatch(t.Context(), nil, event("email"), slices.Values(users(1)), 0, ledger.WithNotBefore(due), ledger.WithLease(time.Second)); err != nil {
		t.Fatal(err)
	}
	res, err := r.Reserve(t.Context(), nil, event("email").Key("user:0"))
	if err != nil || res.Outcome != ledger.NotDue || res.RetryAfter > 1500*time.Millisecond {
		t.Errorf("too early: %+v, %v", res, err)
	}
	p := newProvider()
	var sentAt atomic.Pointer[time.Time]
	stop := run(t, r.Ledger, map[string]ledger.Handler{"email": {
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			now := time.Now()
			sentAt.Store(&now)
			return p.send(ctx, res)
		},
	}})
	defer stop()
	r.waitDelivered(t, 1)
	if early := due.Sub(*sentAt.Load()); early > 0 || p.arrived() != 1 {
		t.Errorf("%d effects, %v early", p.arrived(), early)
	}
}

// T39: days later, with the topic gone, the ledger has what a retry needs.
func TestRun_retryFromLedger(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	p.fail = 1
	content := ledger.Content{Type: "PostPublished", Payload: []byte("{\"n\":1}\x00\xff"), Headers: map[string]string{"traceparent": `a"b\`}, Source: "posts/0/17"}
	key := keyOn("email")
	want(t, "first", ledger.Failed)(swallow(errProvider)(r.Deliver(t.Context(), key, p.handler(), ledger.WithContent(content))))
	r.exec(t, `UPDATE ledger.notification_dispatches SET due_at = clock_timestamp() - interval '1 ms', created_at = created_at - interval '5 days'`)

	var got ledger.Reservation
	stop := run(t, r.Ledger, map[string]ledger.Handler{"email": {
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			got = res
			return p.send(ctx, res)
		},
	}})
	r.waitDelivered(t, 1)
	stop()
	content.Source = ""
	if diff := cmp.Diff(content, got.Content); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}
	wantKey := key
	wantKey.OccurredAt = key.OccurredAt.Truncate(time.Microsecond)
	if !got.Key.OccurredAt.Equal(wantKey.OccurredAt) || got.Key.EventKey != key.EventKey || got.Key.Recipient != key.Recipient || got.Key.Channel != "email" || got.Attempt != 2 {
		t.Errorf("reservation %+v", got)
	}
	if n := p.arrived(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// T7, T38, R8: a broadcast waits for the durable notification, and repeated adds none.
func TestDeliver_broadcastAfterDatabase(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	want(t, "before the notification", ledger.Blocked)(r.Deliver(t.Context(), keyOn("broadcast"), p.handler()))
	if n := p.arrived(); n != 0 {
		t.Fatalf("%d broadcasts before the notification", n)
	}
	notify := func() (outcome ledger.Outcome, err error) {
		err = inTx(t, r, func(tx ledger.DBTX) error {
			outcome, err = r.Once(t.Context(), tx, keyOn("database"), insertNotification(t.Context(), keyOn("database")))
			return err
		})
		return outcome, err
	}
	want(t, "notification", ledger.Delivered)(notify())
	want(t, "notification again", ledger.AlreadyDelivered)(notify())

	r.expire(t, r.id(t, keyOn("broadcast")))
	stop := run(t, r.Ledger, map[string]ledger.Handler{"broadcast": p.handler()})
	r.waitDelivered(t, 2)
	stop()
	for range 3 {
		want(t, "repeated", ledger.AlreadyDelivered)(r.Deliver(t.Context(), keyOn("broadcast"), p.handler()))
	}
	if n := r.notifications(t); n != 1 || p.arrived() != 1 {
		t.Errorf("%d notifications, %d broadcasts", n, p.arrived())
	}

	// R9: a client that was away asks the server what there is.
	list, err := r.Status(t.Context(), "", keyOn("database").EventKey)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]ledger.State{}
	for _, d := range list {
		got[d.Channel] = d.State
		if d.DoneAt.IsZero() || d.Recipient != "user:7" {
			t.Errorf("%+v", d)
		}
	}
	if diff := cmp.Diff(map[string]ledger.State{"database": "delivered", "broadcast": "delivered"}, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// T38: what became of the predecessor decides about the successor.
func TestDeliver_predecessor(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	settle := map[string]func(ledger.Reservation){
		"failed": func(res ledger.Reservation) {
			want(t, "fail", ledger.Failed)(r.Fail(t.Context(), res, ledger.KindRetry, "x", 0))
		},
		"skipped": func(res ledger.Reservation) { want(t, "skip", ledger.Skipped)(r.Skip(t.Context(), nil, res, "x")) },
		"dead": func(res ledger.Reservation) {
			want(t, "fail", ledger.Dead)(r.Fail(t.Context(), res, ledger.KindPermanent, "x", 0))
		},
		"delivered": func(res ledger.Reservation) {
			want(t, "complete", ledger.Delivered)(r.Complete(t.Context(), nil, res, "", nil))
		},
	}
	for predecessor, wantOutcome := range map[string]ledger.Outcome{
		"absent": ledger.Blocked, "failed": ledger.Blocked, "skipped": ledger.AlreadySkipped, "dead": ledger.AlreadySkipped, "delivered": ledger.Delivered,
	} {
		first, second := keyOn("database"), keyOn("broadcast")
		first.Recipient, second.Recipient = predecessor, predecessor
		if f := settle[predecessor]; f != nil {
			f(mustReserve(t, r.Ledger, first))
		}
		want(t, predecessor, wantOutcome)(r.Deliver(t.Context(), second, p.handler()))
	}
	if n := p.arrived(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// A worker that is told to stop gives back what has not begun, lets begun effects end, and leaves no goroutine.
func TestRun_stop(t *testing.T) {
	t.Parallel()
	r := setup(t)
	if _, err := r.RegisterBatch(t.Context(), nil, event("email"), slices.Values(users(2)), 0); err != nil {
		t.Fatal(err)
	}
	p := newProvider()
	begun, checking, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := ledger.Handler{
		Eligible: func(_ context.Context, key ledger.Key, _ ledger.DBTX) (bool, string, error) {
			if key.Recipient == "user:1" {
				close(checking)
				<-stopped
			}
			return true, "", nil
		},
		Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
			close(begun)
			<-stopped
			if err := ctx.Err(); err != nil {
				t.Errorf("the effect was stopped at once: %v", err)
			}
			return p.send(ctx, res)
		},
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, map[string]ledger.Handler{"email": h}) }()
	<-begun
	<-checking
	cancel()
	close(stopped)
	if err := <-done; err != nil {
		t.Errorf("run: %v", err)
	}
	if got := r.row(t, event("email").Key("user:0")); got.State != "delivered" {
		t.Errorf("begun: %+v", got)
	}
	if got := r.row(t, event("email").Key("user:1")); got.State != "pending" || got.Attempts != 0 {
		t.Errorf("not begun: %+v", got)
	}
	if n := p.arrived(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// An effect that does not end is told to after StopGrace.
func TestRun_stopGrace(t *testing.T) {
	t.Parallel()
	r := setup(t)
	l := newLedger(t, r.pool, func(c *ledger.Config) { c.StopGrace = 50 * time.Millisecond })
	if _, err := l.RegisterBatch(t.Context(), nil, event("email"), slices.Values(users(1)), 0); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	stop := run(t, l, map[string]ledger.Handler{"email": {
		Effect: func(ctx context.Context, _ ledger.Reservation) (string, error) {
			close(begun)
			<-ctx.Done()
			return "", ctx.Err()
		},
	}})
	<-begun
	stop()
	wantState(t, r, event("email").Key("user:0"), ledger.StateUncertain)
}

// The database going away is weathered and reported; a channel nobody configured is not.
func TestRun_errors(t *testing.T) {
	t.Parallel()
	r := setup(t)
	reported := make(chan error, 100)
	l, proxy, _ := throughProxy(t, r, func(c *ledger.Config) {
		c.Observe = func(o ledger.Observation) {
			if o.Outcome == "" {
				select {
				case reported <- o.Err:
				default:
				}
			}
		}
	})
	p := newProvider()
	stop := run(t, l, map[string]ledger.Handler{"email": p.handler()})
	defer stop()
	refuse(proxy)
	<-reported
	if _, err := r.RegisterBatch(t.Context(), nil, event("email"), slices.Values(users(1)), 0); err != nil {
		t.Fatal(err)
	}
	proxy.Heal()
	r.waitDelivered(t, 1)

	if err := l.Run(t.Context(), map[string]ledger.Handler{"pigeon": p.handler()}); sqlState(err) != "22023" {
		t.Errorf("unknown channel: %v, want 22023", err)
	}
	if err := l.Run(t.Context(), map[string]ledger.Handler{"email": {}}); err == nil {
		t.Error("a handler without an effect was accepted")
	}
}

// T2, R11: a scheduler as reconciler finds the same posts again and again; dedup is tied to the event.
func TestRunReconciler(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	p.fail = 1
	pages := 0
	discover := func(_ context.Context, cursor string) ([]ledger.Key, string, error) {
		pages++
		first, next := 0, "second"
		if cursor == "second" {
			first, next = 3, ""
		}
		var keys []ledger.Key
		for i := first; i < first+3; i++ {
			key := keyOn("email")
			key.EventKey = fmt.Sprintf("scheduled-post-published:%d", i)
			keys = append(keys, key)
		}
		return keys, next, nil
	}
	for pass := range 3 {
		if err := r.RunReconciler(t.Context(), discover, p.handler()); err != nil {
			t.Errorf("pass %d: %v", pass, err)
		}
		r.exec(t, "UPDATE ledger.notification_dispatches SET due_at = clock_timestamp() WHERE state = 'failed'")
	}
	if p.arrived() != 6 || len(p.all()) != 6 || pages != 6 || r.rows(t) != 6 {
		t.Errorf("%d effects, %d keys, %d pages, %d rows; want 6 of each", p.arrived(), len(p.all()), pages, r.rows(t))
	}

	mine := errors.New("mine")
	if err := r.RunReconciler(t.Context(), func(context.Context, string) ([]ledger.Key, string, error) { return nil, "", mine }, p.handler()); !errors.Is(err, mine) {
		t.Errorf("got %v, want discover's error", err)
	}
	if err := r.RunReconciler(t.Context(), func(context.Context, string) ([]ledger.Key, string, error) { return nil, "same", nil }, p.handler()); err == nil {
		t.Error("a cursor that stands still was accepted")
	}
	bad := func(context.Context, string) ([]ledger.Key, string, error) {
		return []ledger.Key{{Channel: "email"}, keyOn("sms")}, "", nil
	}
	if err := r.RunReconciler(t.Context(), bad, p.handler()); err == nil {
		t.Error("a refused key was not reported")
	}
	wantState(t, r, keyOn("sms"), ledger.StateDelivered)
}

// R29: the same service called by a queue worker, a command and a reconciler makes one effect.
func TestDeliver_fromEverywhere(t *testing.T) {
	t.Parallel()
	r := setup(t)
	p := newProvider()
	key := keyOn("email")
	discover := func(context.Context, string) ([]ledger.Key, string, error) { return []ledger.Key{key}, "", nil }
	stop := run(t, r.Ledger, map[string]ledger.Handler{"email": p.handler()})
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			if _, err := r.Deliver(t.Context(), key, p.handler()); err != nil {
				t.Error(err)
			}
		})
		running.Go(func() {
			if err := r.RunReconciler(t.Context(), discover, p.handler()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	stop()
	if p.arrived() != 1 || r.rows(t) != 1 {
		t.Errorf("%d effects, %d rows", p.arrived(), r.rows(t))
	}
}
