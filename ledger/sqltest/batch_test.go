package sqltest_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (b *bundle) batch(sql string, args ...any) map[string]string {
	b.Helper()
	rows, err := b.conn.Query(b.Context(), sql, args...)
	if err != nil {
		b.Fatal(err)
	}
	got := map[string]string{}
	for rows.Next() {
		var who, outcome string
		if err := rows.Scan(&who, &outcome); err != nil {
			b.Fatal(err)
		}
		if _, twice := got[who]; twice {
			b.Errorf("two rows for %q", who)
		}
		got[who] = outcome
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return got
}

// T22
func TestBatch_outcomes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for user, prepare := range map[string]string{
		"user:delivered": "SELECT ledger.complete($1, $2)",
		"user:failed":    "SELECT ledger.fail($1, $2, 'retry', 'x')",
		"user:dead":      "SELECT ledger.fail($1, $2, 'permanent', 'x')",
		"user:skipped":   "SELECT ledger.skip($1, $2, 'x')",
		"user:free":      "SELECT ledger.release($1, $2)",
		"user:held":      "",
		"user:over":      "",
	} {
		id, fence := b.reserved("k:1", user, "simple")
		if prepare != "" {
			b.exec(prepare, id, fence)
		}
		if user == "user:over" {
			b.age(id, "61 s")
		}
	}
	users := []string{"user:new", "user:over", "user:free", "user:new", "user:held", "user:skipped", "user:dead", "user:failed", "user:delivered", "user:Z", "user:é"}
	want := map[string]string{"user:new": "reserved", "user:over": "reserved", "user:free": "reserved", "user:held": "already_reserved", "user:Z": "reserved", "user:é": "reserved",
		"user:skipped": "already_skipped", "user:dead": "dead", "user:failed": "not_due", "user:delivered": "already_delivered"}
	first := maps.Clone(want)
	if diff := cmp.Diff(first, b.batch("SELECT recipient, outcome FROM ledger.reserve_batch('', 'k:1', $1, 'simple', 'w', now())", users)); diff != "" {
		t.Errorf("reserve_batch (-want +got):\n%s", diff)
	}
	for who, outcome := range want {
		if outcome == "reserved" {
			want[who] = "already_reserved"
		}
	}
	if diff := cmp.Diff(want, b.batch("SELECT recipient, outcome FROM ledger.reserve_batch('', 'k:1', $1, 'simple', 'w', now())", users)); diff != "" {
		t.Errorf("again (-want +got):\n%s", diff)
	}
	want["user:failed"], want["user:more"] = "delivered", "delivered"
	if diff := cmp.Diff(want, b.batch("SELECT recipient, outcome FROM ledger.once_batch('', 'k:1', $1, 'simple', now())", append(users, "user:more"))); diff != "" {
		t.Errorf("once_batch (-want +got):\n%s", diff)
	}
	// What the batch hands out is as good as what reserve does.
	n := one[int](b, "SELECT count(*) FROM ledger.reserve_batch('', 'k:2', ARRAY['user:1', 'user:2'], 'simple', 'w', now()) r WHERE lease_ms BETWEEN 59000 AND 60000 AND attempt = 1 AND provider_key = ledger.provider_key('', 'k:2', recipient, 'simple', 1) AND ledger.complete(id, fence) = 'delivered'")
	if n != 2 {
		t.Errorf("%d of 2 reservations held good", n)
	}
	b.whole()
}

func TestCompleteBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var ids, fences []int64
	for i := range 4 {
		id, fence := b.reserved("k:1", fmt.Sprintf("user:%d", i), "simple")
		ids, fences = append(ids, id), append(fences, fence)
	}
	b.exec("SELECT ledger.complete($1, $2)", ids[2], fences[2])
	ids, fences = append(ids, 4711, ids[0]), append(fences, 1, 1)
	fences[1] = 7
	got := list[string](b, "SELECT outcome FROM ledger.complete_batch($1, $2, $3)", ids, fences, []string{"a", "b", "c", "d", "e", "f"})
	if diff := cmp.Diff([]string{"delivered", "fenced", "already_delivered", "delivered", "gone", "already_delivered"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.answer("d", "SELECT provider_ref FROM ledger.notification_dispatches WHERE id = $1", ids[3])
}

// T23
func TestBatch_large(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const recipients, chunk = 100_000, 1000
	sent := 0
	// A worker reserves and completes chunk after chunk; run returns after the given number, as one that crashed.
	run := func(chunks int) {
		for i := range chunks {
			sent += one[int](b, `
WITH r AS MATERIALIZED (SELECT * FROM ledger.reserve_batch('', 'k:1', (SELECT array_agg('user:' || i) FROM generate_series($1::int, $2::int) i), 'simple', 'w', now()) WHERE outcome = 'reserved'),
     a AS (SELECT array_agg(id) AS ids, array_agg(fence) AS fences FROM r)
SELECT count(*) FROM a, ledger.complete_batch(a.ids, a.fences, NULL) c WHERE a.ids IS NOT NULL AND c.outcome = 'delivered'`, i*chunk, i*chunk+chunk-1)
		}
	}
	run(recipients / chunk / 2)
	if sent != recipients/2 {
		t.Fatalf("%d sent before the crash", sent)
	}
	run(recipients / chunk)
	if sent != recipients {
		t.Errorf("%d sent, want %d", sent, recipients)
	}
	if n := one[int](b, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'delivered' AND fence = 1"); n != recipients {
		t.Errorf("%d rows delivered once, want %d", n, recipients)
	}
}

// T25
func TestPayloadMismatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, other := one[string](b, "SELECT ledger.payload_hash('a')"), one[string](b, "SELECT ledger.payload_hash('b')")
	const reserve = "SELECT outcome FROM ledger.reserve('', 'k:1', 'user:1', 'simple', 'w', now(), payload_hash => $1)"
	b.answer("reserved", reserve, nil)
	b.answer("already_reserved", reserve, other) // none stored, none compared, none stored by an answer that changes nothing
	id := one[int64](b, "SELECT id FROM ledger.notification_dispatches")
	b.answer("released", "SELECT ledger.release($1, 1)", id)
	b.answer("reserved", reserve, first)
	b.answer("released", "SELECT ledger.release($1, 2)", id)
	before := one[string](b, "SELECT d::text FROM ledger.notification_dispatches d")
	for _, sql := range []string{reserve,
		"SELECT outcome FROM ledger.reserve_batch('', 'k:1', ARRAY['user:1'], 'simple', 'w', now(), payload_hash => $1)",
		"SELECT ledger.once('', 'k:1', 'user:1', 'simple', now(), $1)",
		"SELECT outcome FROM ledger.once_batch('', 'k:1', ARRAY['user:1'], 'simple', now(), $1)",
	} {
		b.answer("payload_mismatch", sql, other)
	}
	if after := one[string](b, "SELECT d::text FROM ledger.notification_dispatches d"); after != before {
		t.Errorf("changed\n%s to\n%s", before, after)
	}
	b.answer("delivered", "SELECT ledger.once('', 'k:1', 'user:1', 'simple', now(), $1)", first)
	b.answer("payload_mismatch", reserve, other)
	b.answer("already_delivered", reserve, first)
	b.answer("already_delivered", reserve, nil)
}

// T26
func TestPurge_expired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("SELECT ledger.remember('', 'k:1', 'T', 'x', NULL, now(), NULL), ledger.remember('', 'k:2', 'T', 'x', NULL, now(), NULL)")
	for _, user := range []string{"user:1", "user:2"} {
		id, fence := b.reserved("k:1", user, "simple")
		b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
	}
	id := one[int64](b, "SELECT min(id) FROM ledger.notification_dispatches")
	for _, step := range []struct {
		age                               string
		purged, rows, attempts, ownEvents int
	}{{"89 days", 0, 2, 2, 1}, {"2 days", 1, 1, 1, 1}} {
		b.age(id, step.age)
		if n := one[int](b, "SELECT ledger.purge(100)"); n != step.purged {
			t.Errorf("purged %d, want %d", n, step.purged)
		}
		var rows, attempts, events int
		if err := b.conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ledger.notification_dispatches), (SELECT count(*) FROM ledger.dispatch_attempts),
(SELECT count(*) FROM ledger.events WHERE event_key = 'k:1')`).Scan(&rows, &attempts, &events); err != nil {
			t.Fatal(err)
		}
		if rows != step.rows || attempts != step.attempts || events != step.ownEvents {
			t.Errorf("%d rows, %d attempts, %d events, want %+v", rows, attempts, events, step)
		}
	}
	b.age(id+1, "91 days")
	b.exec("UPDATE ledger.events SET remembered_at = remembered_at - interval '91 days' WHERE event_key = 'k:2'")
	if n := one[int](b, "SELECT ledger.purge(100) * 10 + (SELECT count(*) FROM ledger.notification_dispatches)"); n != 11 {
		t.Errorf("purged %d", n) // the count is of the statement's own snapshot
	}
	if n := one[int](b, "SELECT (SELECT count(*) FROM ledger.events) + (SELECT count(*) FROM ledger.dispatch_attempts)"); n != 0 {
		t.Errorf("%d events and attempts left without rows", n)
	}
	for _, sql := range []string{
		"SELECT outcome FROM ledger.reserve('', 'k:1', 'user:1', 'simple', 'w', now() - interval '31 days')",
		"SELECT outcome FROM ledger.reserve_batch('', 'k:1', ARRAY['user:1'], 'simple', 'w', now() - interval '31 days')",
		"SELECT ledger.once('', 'k:1', 'user:1', 'simple', now() - interval '31 days')",
		"SELECT outcome FROM ledger.once_batch('', 'k:1', ARRAY['user:1'], 'simple', now() - interval '31 days')",
	} {
		b.answer("expired", sql)
	}
	if rows(b) != 0 {
		t.Error("an expired event made a row")
	}
	// A channel that keeps its rows for ever keeps them.
	b.exec("INSERT INTO ledger.channels (channel, retention, horizon) VALUES ('kept', '0', '0')")
	b.answer("delivered", "SELECT ledger.once('', 'k:3', 'user:1', 'kept', NULL)")
	b.age(one[int64](b, "SELECT id FROM ledger.notification_dispatches"), "20 years")
	if n := one[int](b, "SELECT ledger.purge(100)"); n != 0 {
		t.Errorf("purged %d rows that are kept", n)
	}
}
