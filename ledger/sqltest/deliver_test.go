package sqltest_test

import (
	"testing"
)

// worker is a consumer in a few lines: reserve, check, begin, effect, complete. The provider drops what it has seen.
type provider struct {
	accepted map[string]int
}

func (p *provider) send(key string) { p.accepted[key]++ }

func (b *bundle) deliver(p *provider, key, recipient, channel string) string {
	b.Helper()
	r := b.reserve(key, recipient, channel)
	if r.Outcome != "reserved" {
		return r.Outcome
	}
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", *r.ID, *r.Fence)
	p.send(*r.ProviderKey)
	b.answer("delivered", "SELECT ledger.complete($1, $2, 'ref', '{\"sent\": true}')", *r.ID, *r.Fence)
	return "delivered"
}

func rows(b *bundle) int {
	b.Helper()
	return one[int](b, "SELECT count(*) FROM ledger.notification_dispatches")
}

// T1, T2
func TestDeliver_sameEventTwice(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &provider{map[string]int{}}
	if got := b.deliver(p, "post-published:1", "user:1", "hold"); got != "delivered" {
		t.Fatalf("first run: %q", got)
	}
	for range 3 {
		if got := b.deliver(p, "post-published:1", "user:1", "hold"); got != "already_delivered" {
			t.Errorf("next run: %q, want already_delivered", got)
		}
	}
	if len(p.accepted) != 1 || rows(b) != 1 {
		t.Errorf("%v sent, %d rows; want one of each", p.accepted, rows(b))
	}
	if r := b.reserve("post-published:1", "user:1", "hold"); r.Result == nil || *r.Result != `{"sent": true}` {
		t.Errorf("result %v, want the first delivery's", deref(r.Result))
	}
}

// T3
func TestDeliver_twoEvents(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &provider{map[string]int{}}
	for _, key := range []string{"post-published:1", "post-published:2"} {
		if got := b.deliver(p, key, "user:1", "hold"); got != "delivered" {
			t.Errorf("%s: %q", key, got)
		}
	}
	for _, channel := range []string{"probe", "simple"} {
		if got := b.reserve("post-published:1", "user:1", channel).Outcome; got != "reserved" {
			t.Errorf("channel %s: %q", channel, got)
		}
	}
	if len(p.accepted) != 2 || rows(b) != 4 {
		t.Errorf("%v sent, %d rows", p.accepted, rows(b))
	}
}

// T5
func TestDeliver_retry(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &provider{map[string]int{}}
	id, fence := b.reserved("k:1", "user:1", "hold")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'timeout')", id, fence)
	if r := b.reserve("k:1", "user:1", "hold"); r.Outcome != "not_due" || *r.RetryAfterMS < 4000 || *r.RetryAfterMS > 5001 {
		t.Fatalf("before the backoff: %q after %v ms", r.Outcome, deref(r.RetryAfterMS))
	}
	b.age(id, "6 s")
	if got := b.deliver(p, "k:1", "user:1", "hold"); got != "delivered" {
		t.Fatalf("retry: %q", got)
	}
	if rows(b) != 1 || len(p.accepted) != 1 {
		t.Errorf("%d rows, %v sent", rows(b), p.accepted)
	}
	got := list[string](b, "SELECT fence || ' ' || attempt || ' ' || outcome || coalesce(' ' || reason, '') FROM ledger.dispatch_attempts ORDER BY fence")
	if want := []string{"1 1 failed timeout", "2 2 delivered"}; len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("attempts %q, want %q", got, want)
	}
}

func TestFail_backoff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("UPDATE ledger.channels SET backoff_min = '10 s', backoff_max = '35 s' WHERE channel = '*'")
	id, fence := b.reserved("k:1", "user:1", "hold")
	for i, want := range []float64{10, 20, 35, 35} {
		b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'timeout')", id, fence)
		got := one[float64](b, "SELECT extract(epoch FROM due_at - clock_timestamp())::float8 FROM ledger.notification_dispatches")
		if got > want || got < want-5 {
			t.Errorf("wait %d: %.1f s, want %.0f", i+1, got, want)
		}
		b.age(id, "40 s")
		_, fence = b.reserved("k:1", "user:1", "hold")
	}
	b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'told so', '2 hours')", id, fence)
	if got := one[float64](b, "SELECT extract(epoch FROM due_at - clock_timestamp())::float8 FROM ledger.notification_dispatches"); got < 7000 {
		t.Errorf("retry_after: %.0f s, want 7200", got)
	}
}

// T6
func TestSkip(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "hold")
	b.answer("skipped", "SELECT ledger.skip($1, $2, 'permission revoked')", id, fence)
	b.answer("permission revoked", "SELECT reason FROM ledger.status('', 'k:1')")
	if got := b.reserve("k:1", "user:1", "hold").Outcome; got != "already_skipped" {
		t.Errorf("again: %q", got)
	}
	id, fence = b.reserved("k:2", "user:1", "hold")
	b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'check: no answer')", id, fence)
	if one[int](b, "SELECT count(*) FROM ledger.notification_dispatches WHERE first_effect_at IS NOT NULL") != 0 {
		t.Error("an effect began")
	}
}

// T7: the notification is a row of this database; the broadcast comes after it and may be repeated.
func TestBroadcast(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if got := b.reserve("k:1", "user:1", "after").Outcome; got != "blocked" {
		t.Fatalf("broadcast before the row: %q, want blocked", got)
	}
	for _, want := range []string{"delivered", "already_delivered"} {
		tx := b.begin(b.conn)
		got := oneOn[string](b, tx, "SELECT ledger.once('', 'k:1', 'user:1', 'simple', now())")
		if got != want {
			t.Errorf("once: %q, want %q", got, want)
		}
		if got == "delivered" {
			if _, err := tx.Exec(t.Context(), `INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ('k:1', 'user:1', 'comment')`); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.exec("UPDATE ledger.notification_dispatches SET due_at = now() WHERE channel = 'after'")
	id, fence := b.reserved("k:1", "user:1", "after")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
	b.answer("redriven", "SELECT ledger.redrive($1, 'ann', 'client was away', true)", id)
	_, fence = b.reserved("k:1", "user:1", "after")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
	if n := one[int](b, "SELECT count(*) FROM ledger.notifications"); n != 1 {
		t.Errorf("%d notifications, want 1", n)
	}
}

// T30
func TestRegister_notBefore(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &provider{map[string]int{}}
	const register = "SELECT inserted * 100 + known * 10 + expired FROM ledger.register_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'hold', now(), now() + interval '3 days')"
	if got := one[int](b, register); got != 200 {
		t.Errorf("registered %d", got)
	}
	if got := one[int](b, register); got != 20 {
		t.Errorf("registered again %d", got)
	}
	if n := one[int](b, "SELECT count(*) FROM ledger.claim_due('w', ARRAY['hold'], 10)"); n != 0 {
		t.Errorf("%d claimed too early", n)
	}
	if got := b.deliver(p, "k:1", "user:1", "hold"); got != "not_due" {
		t.Errorf("too early: %q", got)
	}
	b.exec("UPDATE ledger.notification_dispatches SET due_at = due_at - interval '3 days'")
	if n := one[int](b, "SELECT count(*) FROM ledger.claim_due('w', ARRAY['hold'], 10)"); n != 2 {
		t.Errorf("%d claimed, want 2", n)
	}
	if n := one[int](b, "SELECT count(*) FROM ledger.claim_due('w', ARRAY['hold'], 10)"); n != 0 {
		t.Errorf("%d claimed twice", n)
	}
}

// T39
func TestClaimDue_fromTheLedgerAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const remember = "SELECT ledger.remember('', 'k:1', 'PostPublished', '\\x00ff'::bytea, '{\"traceparent\": \"00\"}', '2026-11-30 18:57:22+00', 'posts/3/17')"
	if !one[bool](b, remember) || one[bool](b, remember) {
		t.Error("an event is new once")
	}
	id, fence := b.reserved("k:1", "user:1", "hold")
	b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'down', '4 days')", id, fence)
	b.age(id, "4 days")
	got := one[string](b, `SELECT c.id || ' ' || c.fence || ' ' || attempt || ' ' || event_key || ' ' || recipient || ' ' || channel || ' ' || event_type || ' ' || payload || ' ' ||
(headers ->> 'traceparent') || ' ' || (occurred_at AT TIME ZONE 'UTC') || ' ' || (lease_ms > 59000) FROM ledger.claim_due('w', ARRAY['probe', 'hold'], 5) c`)
	if want := `1 2 2 k:1 user:1 hold PostPublished \x00ff 00 2026-11-30 18:57:22 true`; got != want {
		t.Errorf("claimed %q, want %q", got, want)
	}
	first := one[string](b, "SELECT ledger.provider_key('', 'k:1', 'user:1', 'hold', 1)")
	b.age(id, "1 hour")
	b.answer(first, "SELECT provider_key FROM ledger.claim_due('w', ARRAY['hold'], 5)")
}

// Rows that are due but not to be handed out must not hide those behind them.
func TestClaimDue_behindBlocked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("SELECT ledger.register_batch('', 'k:' || i, ARRAY['user:1'], 'after', now()) FROM generate_series(1, 20) i")
	b.exec("UPDATE ledger.notification_dispatches SET due_at = now() - interval '1 hour'")
	b.exec("SELECT ledger.register_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'hold', now())")
	if n := one[int](b, "SELECT count(*) FROM ledger.claim_due('w', ARRAY['after', 'hold'], 5)"); n != 2 {
		t.Errorf("%d claimed, want the 2 behind 20 that are blocked", n)
	}
}

// T31
func TestReserve_rolledBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx := b.begin(b.conn)
	r, err := tryReserve(t.Context(), tx, "k:1", "user:1", "hold", "w", nil)
	if err != nil || r.Outcome != "reserved" {
		t.Fatal(r.Outcome, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.answer("gone", "SELECT ledger.begin_effect($1, $2)", *r.ID, *r.Fence)
	if rows(b) != 0 {
		t.Error("a row stayed")
	}
}
