package sqltest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testenv"
)

// T12
func TestTakeover(t *testing.T) {
	t.Parallel()
	b, p := setup(t), &provider{map[string]int{}}
	id, fence := b.reserved("k:1", "user:1", "hold")
	if r := b.reserve("k:1", "user:1", "hold"); r.Outcome != "already_reserved" || *r.RetryAfterMS < 50_000 || *r.RetryAfterMS > 60_001 {
		t.Errorf("while held: %q after %v ms", r.Outcome, deref(r.RetryAfterMS))
	}
	b.age(id, "61 s")
	if got := b.deliver(p, "k:1", "user:1", "hold"); got != "delivered" {
		t.Fatalf("takeover: %q", got)
	}
	if got := one[int64](b, "SELECT fence FROM ledger.notification_dispatches"); got != fence+1 || len(p.accepted) != 1 {
		t.Errorf("fence %d after %d, %v sent", got, fence, p.accepted)
	}
	b.answer("lease_over", "SELECT outcome FROM ledger.dispatch_attempts WHERE fence = 1")
}

// A reservation says whether it was taken from a holder that let its lease end: neither a first one nor a retry was.
func TestTakeover_flag(t *testing.T) {
	t.Parallel()
	b := setup(t)
	flags := func(key string) string {
		b.Helper()
		return one[string](b, "SELECT coalesce(takeover::text, 'null') || ' ' || outcome FROM ledger.reserve('', $1, 'user:1', 'hold', 'w', now())", key)
	}
	for _, want := range []string{"false reserved", "null already_reserved"} {
		if got := flags("k:1"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	b.exec("SELECT ledger.fail(id, fence, 'retry', 'x', '0') FROM ledger.notification_dispatches")
	if got := flags("k:1"); got != "false reserved" {
		t.Errorf("a retry: %s", got)
	}
	b.reserved("k:2", "user:1", "hold")
	b.exec("SELECT ledger.register_batch('', 'k:3', ARRAY['user:1'], 'hold', now())")
	past := func() {
		b.exec("UPDATE ledger.notification_dispatches SET due_at = due_at - interval '61 s', lease_until = lease_until - interval '61 s'")
	}
	past()
	if got := flags("k:1"); got != "true reserved" {
		t.Errorf("a takeover: %s", got)
	}
	past()
	got := list[string](b, "SELECT event_key || ' ' || takeover FROM ledger.claim_due('w', ARRAY['hold'], 10) ORDER BY 1")
	if diff := cmp.Diff([]string{"k:1 true", "k:2 true", "k:3 false"}, got); diff != "" {
		t.Errorf("claim_due (-want +got):\n%s", diff)
	}
}

// LI5: one row for each attempt and probe, which stays as it ended; old ones of rows that live on are pruned n a call.
func TestAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "probe")
	b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'x', '0')", id, fence)
	id, fence = b.reserved("k:1", "user:1", "probe")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.age(id, "61 s")
	if r := b.reserve("k:1", "user:1", "probe"); r.Outcome != "uncertain" {
		t.Fatalf("after the lease: %q", r.Outcome)
	}
	b.answer("failed", "SELECT ledger.resolve(id, fence, 'failed', 'p', 'x') FROM ledger.claim_uncertain('p', ARRAY['probe'], 1, NULL)")
	id, fence = b.reserved("k:1", "user:1", "probe")
	b.exec("SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
	const history = "SELECT fence || ' ' || outcome FROM ledger.dispatch_attempts ORDER BY fence"
	if diff := cmp.Diff([]string{"1 failed", "2 uncertain", "3 failed", "4 delivered"}, list[string](b, history)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.exec("UPDATE ledger.dispatch_attempts SET ended_at = ended_at - interval '91 days' WHERE fence < 4")
	for _, want := range [][]string{{"3 failed", "4 delivered"}, {"4 delivered"}, {"4 delivered"}} {
		b.exec("SELECT ledger.purge(2)")
		if diff := cmp.Diff(want, list[string](b, history)); diff != "" {
			t.Errorf("purged (-want +got):\n%s", diff)
		}
	}
}

// T13: whatever the zombie says but success is ignored.
func TestZombie_failure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, zombie := b.reserved("k:1", "user:1", "hold")
	b.age(id, "61 s")
	_, fence := b.reserved("k:1", "user:1", "hold")
	before := one[string](b, "SELECT d::text FROM ledger.notification_dispatches d")
	for _, sql := range []string{
		"SELECT ledger.fail($1, $2, 'retry', 'x')", "SELECT ledger.fail($1, $2, 'permanent', 'x')", "SELECT ledger.fail($1, $2, 'ambiguous', 'x')",
		"SELECT ledger.skip($1, $2, 'x')", "SELECT ledger.release($1, $2)", "SELECT ledger.begin_effect($1, $2)", "SELECT outcome FROM ledger.renew($1, $2)",
	} {
		b.answer("fenced", sql, id, zombie)
	}
	if after := one[string](b, "SELECT d::text FROM ledger.notification_dispatches d"); after != before {
		t.Errorf("the zombie changed\n%s to\n%s", before, after)
	}
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
}

// T14
func TestZombie_success(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, zombie := b.reserved("k:1", "user:1", "resend")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, zombie)
	b.age(id, "61 s")
	_, fence := b.reserved("k:1", "user:1", "resend")
	b.answer("late_accepted", "SELECT ledger.complete($1, $2, 'first')", id, zombie)
	b.answer("fenced", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("already_delivered", "SELECT ledger.complete($1, $2, 'second')", id, fence)
	b.answer("first", "SELECT provider_ref FROM ledger.notification_dispatches")
	got := list[string](b, "SELECT fence || ' ' || outcome FROM ledger.dispatch_attempts ORDER BY fence")
	if len(got) != 2 || got[0] != "1 late_accepted" || got[1] != "2 superseded" {
		t.Errorf("attempts %q", got)
	}
}

// T15
func TestZombie_successTooLate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, zombie := b.reserved("k:1", "user:1", "resend")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, zombie)
	b.age(id, "61 s")
	_, fence := b.reserved("k:1", "user:1", "resend")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("fenced", "SELECT ledger.complete($1, $2, 'first')", id, zombie)
	if n := one[int](b, "SELECT count(*) FROM ledger.dispatch_attempts WHERE late_success_at IS NOT NULL AND fence = 1 AND provider_ref = 'first'"); n != 1 {
		t.Errorf("%d late successes recorded, want 1", n)
	}
	b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
}

// T16
func TestUncertain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, channel := range []string{"hold", "probe"} {
		id, fence := b.reserved("k:1", "user:1", channel)
		b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
		b.age(id, "61 s")
		for range 2 {
			if got := b.reserve("k:1", "user:1", channel).Outcome; got != "uncertain" {
				t.Errorf("%s: %q, want uncertain", channel, got)
			}
		}
	}
	probe := one[int64](b, "SELECT id FROM ledger.claim_uncertain('prober', ARRAY['probe'], 10, '1 min')")
	b.answer("delivered", "SELECT ledger.resolve($1, 2, 'delivered', 'prober', 'provider has it')", probe)
	if got := b.reserve("k:1", "user:1", "probe").Outcome; got != "already_delivered" {
		t.Errorf("after the probe: %q", got)
	}
	b.answer("resolve uncertain delivered prober provider has it postgres",
		"SELECT action || ' ' || from_state || ' ' || to_state || ' ' || actor || ' ' || reason || ' ' || role FROM ledger.audit")

	first := b.reserve("k:1", "user:1", "resend")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", *first.ID, *first.Fence)
	b.age(*first.ID, "61 s")
	second := b.reserve("k:1", "user:1", "resend")
	if second.Outcome != "reserved" || *second.ProviderKey != *first.ProviderKey || *second.Fence != *first.Fence+1 {
		t.Errorf("resend: %q, key the same: %t", second.Outcome, second.ProviderKey != nil && *second.ProviderKey == *first.ProviderKey)
	}
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", *second.ID, *second.Fence)
	b.age(*first.ID, "24 hours")
	if got := b.reserve("k:1", "user:1", "resend").Outcome; got != "uncertain" {
		t.Errorf("past the provider's window: %q, want uncertain", got)
	}
}

// T17
func TestRenew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "hold")
	got := one[int64](b, "SELECT lease_ms FROM ledger.renew($1, $2, '5 min')", id, fence)
	if got < 290_000 || got > 300_000 {
		t.Errorf("renewed for %d ms", got)
	}
	if again := one[int64](b, "SELECT lease_ms FROM ledger.renew($1, $2, '1 s')", id, fence); again < 290_000 {
		t.Errorf("a renewal shortened the lease to %d ms", again)
	}
	// Renewing for ever ends at 15 minutes, counted from the reservation.
	for _, step := range []struct{ span, want string }{{"4 min", "renewed"}, {"4 min", "renewed"}, {"4 min", "renewed"}, {"2 min", "hold_cap"}} {
		b.age(id, step.span)
		b.answer(step.want, "SELECT outcome FROM ledger.renew($1, $2, '5 min')", id, fence)
		if held := one[float64](b, "SELECT extract(epoch FROM lease_until - held_since)::float8 FROM ledger.notification_dispatches"); held > 900 {
			t.Errorf("held for %.0f s", held)
		}
	}
	b.age(id, "10 min")
	b.answer("lease_over", "SELECT outcome FROM ledger.renew($1, $2, '5 min')", id, fence)
	b.reserved("k:1", "user:1", "hold")
	b.answer("fenced", "SELECT outcome FROM ledger.renew($1, $2, '5 min')", id, fence)
}

// The lock may have taken its time: the lease is measured after it, not before.
func TestBeginEffect_waitsForLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "hold")
	tx := b.begin(b.conn)
	if _, err := tx.Exec(t.Context(), "SELECT FROM ledger.notification_dispatches FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	other := b.connect()
	answer := make(chan string, 1)
	go func() {
		var got string
		if err := other.QueryRow(t.Context(), "SELECT ledger.begin_effect($1, $2, '5 s')", id, fence).Scan(&got); err != nil {
			got = err.Error()
		}
		answer <- got
	}()
	b.untilWaiting(other)
	// The lease leaves enough when the call comes, and no longer when it has its lock.
	const since = "(SELECT query_start FROM pg_stat_activity WHERE pid = $1)"
	pid := other.Conn().PgConn().PID()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		return oneOn[bool](b, b.pool, "SELECT clock_timestamp() > "+since+" + interval '600 ms'", pid), "the clock stands still"
	})
	if _, err := tx.Exec(t.Context(), "UPDATE ledger.notification_dispatches SET lease_until = "+since+" + interval '5.5 s', due_at = "+since+" + interval '5.5 s'", pid); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got != "lease_short" {
		t.Errorf("begin_effect after a long wait: %q, want lease_short", got)
	}
}

// T27: leases are the server's clock from end to end. No call that names a lease takes a time from its caller, and one
// that began its transaction long ago still leases from now.
func TestLease_serverClock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := list[string](b, `SELECT DISTINCT a.name FROM pg_proc p, unnest(p.proargnames, p.proargtypes::oid[]) AS a (name, type)
WHERE p.pronamespace = 'ledger'::regnamespace AND p.prosecdef AND a.type = 'timestamptz'::regtype ORDER BY 1`)
	if want := []string{"event_time", "not_before", "occurred_at"}; !slices.Equal(got, want) {
		t.Errorf("times that callers give: %q, want %q", got, want)
	}
	tx := b.begin(b.conn)
	oneOn[int](b, tx, "SELECT 1") // now() stands still from here on
	r, err := tryReserve(t.Context(), tx, "k:1", "user:1", "hold", "w", "1 min")
	if err != nil || r.Outcome != "reserved" {
		t.Fatal(r.Outcome, err)
	}
	if !oneOn[bool](b, tx, "SELECT lease_until > now() + interval '1 min' FROM ledger.notification_dispatches") {
		t.Error("the lease runs from the transaction's start")
	}
}

// T28
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("UPDATE ledger.channels SET max_attempts = 3 WHERE channel = 'hold'")
	id, _ := b.reserved("poison:1", "user:1", "hold")
	for range 2 {
		b.age(id, "61 s")
		b.reserved("poison:1", "user:1", "hold")
	}
	b.age(id, "61 s")
	b.exec("SELECT ledger.register_batch('', 'good:1', ARRAY['user:1'], 'hold', now())")
	if got := list[string](b, "SELECT event_key FROM ledger.claim_due('w', ARRAY['hold'], 10)"); len(got) != 1 || got[0] != "good:1" {
		t.Errorf("claimed %q, want good:1 alone", got)
	}
	b.answer("dead attempts_exhausted", "SELECT state || ' ' || reason FROM ledger.status('', 'poison:1')")
	if got := b.reserve("poison:1", "user:1", "hold").Outcome; got != "dead" {
		t.Errorf("again: %q", got)
	}
}

func TestRelease_refunds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 15 { // more than max_attempts
		id, fence := b.reserved("k:1", "user:1", "hold")
		b.answer("released", "SELECT ledger.release($1, $2)", id, fence)
	}
	if n := one[int](b, "SELECT attempts FROM ledger.notification_dispatches"); n != 0 {
		t.Errorf("%d attempts", n)
	}
}

// T40
func TestResolve_race(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "probe")
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("uncertain", "SELECT ledger.fail($1, $2, 'ambiguous', 'reset')", id, fence)
	const claim = "SELECT coalesce((SELECT fence FROM ledger.claim_uncertain('prober', ARRAY['probe'], 10, '1 min')), 0)"
	slow := one[int64](b, claim)
	if again := one[int64](b, claim); slow == 0 || again != 0 {
		t.Fatalf("claimed with fence %d, then with %d", slow, again)
	}
	b.age(id, "61 s")
	quick := one[int64](b, claim)
	b.answer("fenced", "SELECT ledger.resolve($1, $2, 'failed', 'slow', 'not there')", id, slow)
	b.answer("delivered", "SELECT ledger.resolve($1, $2, 'delivered', 'quick', 'there')", id, quick)
	b.answer("fenced", "SELECT ledger.resolve($1, $2, 'failed', 'slow', 'not there')", id, slow)
	if got := b.state(id); got != "delivered" {
		t.Errorf("state %q", got)
	}
}

// T33
func TestRedrive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "hold")
	key := one[string](b, "SELECT ledger.provider_key('', 'k:1', 'user:1', 'hold', 1)")
	for _, resend := range []bool{false, true} {
		b.answer("refused", "SELECT ledger.redrive($1, 'ann', 'why', $2)", id, resend)
	}
	b.answer("begun", "SELECT ledger.begin_effect($1, $2)", id, fence)
	b.answer("delivered", "SELECT ledger.complete($1, $2, 'ref', '{}')", id, fence)
	b.answer("refused", "SELECT ledger.redrive($1, 'ann', 'why')", id)
	b.answer("redriven", "SELECT ledger.redrive($1, 'ann', 'lost by the provider', true)", id)
	b.answer("redrive_resend delivered pending 2 ann lost by the provider",
		"SELECT action || ' ' || from_state || ' ' || to_state || ' ' || generation || ' ' || actor || ' ' || reason FROM ledger.audit")
	r := b.reserve("k:1", "user:1", "hold")
	if r.Outcome != "reserved" || *r.ProviderKey == key || *r.Attempt != 1 {
		t.Errorf("new generation: %q, old key %t", r.Outcome, r.ProviderKey != nil && *r.ProviderKey == key)
	}
	if got := one[int](b, "SELECT ledger.generation('', 'k:1', 'user:1', 'hold')"); got != 2 {
		t.Errorf("generation %d", got)
	}
	b.answer("fenced", "SELECT ledger.complete($1, $2)", id, fence) // of the generation before
	b.answer("gone", "SELECT ledger.redrive(0, 'ann', 'why')")
}
