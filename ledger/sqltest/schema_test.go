package sqltest_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

func TestSchema_comments(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bare := list[string](b, `
SELECT c.relname || coalesce('.' || a.attname, '')
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'ledger'::regnamespace AND c.relkind = 'r' AND c.relname <> 'migrations'
  AND (obj_description(c.oid, 'pg_class') IS NULL OR col_description(c.oid, a.attnum) IS NULL)
UNION ALL
SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL`)
	if len(bare) > 0 {
		t.Errorf("without a comment: %v", bare)
	}
	if n := one[int](b, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'ledger'::regnamespace"); n < 40 {
		t.Errorf("%d functions: the query above looked at nothing", n)
	}
}

// Names of parameters and of result columns are API.
func TestSchema_surface(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := list[string](b, `SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ') ' || pg_get_function_result(p.oid)
FROM pg_proc p
WHERE p.pronamespace = 'ledger'::regnamespace AND p.prosecdef AND p.provolatile = 'v'
ORDER BY 1`)
	want := []string{
		"announce_notification(tenant text, event_key text, recipient text) bigint",
		"begin_effect(id bigint, fence bigint, min_left interval DEFAULT '00:00:05'::interval) text",
		"claim_due(worker text, channels text[], n integer, lease interval DEFAULT NULL::interval) TABLE(id bigint, fence bigint, attempt integer, tenant text, event_key text, recipient text, channel text, provider_key text, lease_ms bigint, event_type text, payload bytea, headers jsonb, occurred_at timestamp with time zone, takeover boolean)",
		"claim_uncertain(worker text, channels text[], n integer, lease interval) TABLE(id bigint, fence bigint, tenant text, event_key text, recipient text, channel text, provider_key text, provider_ref text, first_effect_at timestamp with time zone, lease_ms bigint)",
		"complete(id bigint, fence bigint, provider_ref text DEFAULT NULL::text, result jsonb DEFAULT NULL::jsonb) text",
		"complete_batch(ids bigint[], fences bigint[], refs text[]) TABLE(id bigint, outcome text)",
		"configure_channel(channel text, mode text DEFAULT NULL::text, on_uncertain text DEFAULT NULL::text, provider_window interval DEFAULT NULL::interval, after_channel text DEFAULT NULL::text, max_attempts integer DEFAULT NULL::integer, lease interval DEFAULT NULL::interval, backoff_min interval DEFAULT NULL::interval, backoff_max interval DEFAULT NULL::interval) text",
		"fail(id bigint, fence bigint, kind text, reason text, retry_after interval DEFAULT NULL::interval) text",
		"generation(tenant text, event_key text, recipient text, channel text) integer",
		"list_notifications(tenant text, recipient text, after_id bigint, n integer, up_to bigint DEFAULT NULL::bigint) TABLE(id bigint, created_at timestamp with time zone, read_at timestamp with time zone, type text, data jsonb)",
		"notifications_order() trigger",
		"notifications_settled() bigint",
		"once(tenant text, event_key text, recipient text, channel text, event_time timestamp with time zone, payload_hash text DEFAULT NULL::text, skip_reason text DEFAULT NULL::text) text",
		"once_batch(tenant text, event_key text, recipients text[], channel text, event_time timestamp with time zone, payload_hash text DEFAULT NULL::text) TABLE(recipient text, outcome text)",
		"park_record(topic text, partition integer, record_offset bigint, class text, reason text, record_key bytea, record_value bytea, headers jsonb) boolean",
		"purge(n integer) integer",
		"read_notifications(tenant text, recipient text, ids bigint[]) integer",
		"redrive(id bigint, actor text, reason text, resend boolean DEFAULT false) text",
		"register_batch(tenant text, event_key text, recipients text[], channel text, event_time timestamp with time zone, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone, payload_hash text DEFAULT NULL::text, OUT inserted integer, OUT known integer, OUT expired integer) record",
		"release(id bigint, fence bigint) text",
		"remember(tenant text, event_key text, event_type text, payload bytea, headers jsonb, occurred_at timestamp with time zone, source text) boolean",
		"remembered_type(tenant text, event_key text) text",
		"renew(id bigint, fence bigint, lease interval DEFAULT NULL::interval, OUT outcome text, OUT lease_until timestamp with time zone, OUT lease_ms bigint) record",
		"reserve(tenant text, event_key text, recipient text, channel text, worker text, event_time timestamp with time zone, lease interval DEFAULT NULL::interval, payload_hash text DEFAULT NULL::text, OUT outcome text, OUT id bigint, OUT fence bigint, OUT attempt integer, OUT lease_until timestamp with time zone, OUT lease_ms bigint, OUT provider_key text, OUT retry_after_ms bigint, OUT result jsonb, OUT takeover boolean) record",
		"reserve_batch(tenant text, event_key text, recipients text[], channel text, worker text, event_time timestamp with time zone, lease interval DEFAULT NULL::interval, payload_hash text DEFAULT NULL::text) TABLE(recipient text, outcome text, id bigint, fence bigint, attempt integer, lease_ms bigint, provider_key text)",
		"resolve(id bigint, fence bigint, verdict text, actor text, note text) text",
		"skip(id bigint, fence bigint, reason text) text",
		"stats() TABLE(channel text, state text, n bigint, oldest timestamp with time zone)",
		"status(tenant text, event_key text) TABLE(id bigint, fence bigint, recipient text, channel text, state text, attempts integer, reason text, done_at timestamp with time zone)",
		"sweep(n integer, OUT to_uncertain integer, OUT to_dead integer, OUT to_skipped integer) record",
		"wake_followers(tenant text, event_key text, recipient text, channel text) integer",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// LI1 is a constraint, not a promise.
func TestSchema_boundary(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const insert = "INSERT INTO ledger.notification_dispatches (event_key, channel, state, max_attempts, created_at) VALUES ('k', 'c', 'pending', 1, now())"
	b.exec(insert)
	if _, err := b.conn.Exec(t.Context(), insert); sqlState(err) != "23505" {
		t.Errorf("second row of one boundary: %v", err)
	}
	got := one[string](b, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'notification_dispatches_boundary'")
	if got != "UNIQUE (tenant, event_key, recipient, channel)" {
		t.Errorf("boundary is %s", got)
	}
	if n := one[int](b, `SELECT count(*) FROM pg_attribute WHERE attrelid = 'ledger.notification_dispatches'::regclass AND attname IN ('tenant', 'event_key', 'recipient', 'channel')
AND attnotnull AND attcollation = '"C"'::regcollation`); n != 4 {
		t.Errorf("%d of 4 columns are NOT NULL and in collation C", n)
	}
}

// A repeated event writes nothing at all, whichever call it comes by, and so does a wait that goes on.
func TestDuplicate_writesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "simple")
	b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
	b.reserved("k:1", "user:2", "simple")
	b.reserve("k:9", "user:1", "after")
	b.exec("SELECT ledger.remember('', 'k:1', 'T', 'x', NULL, now(), NULL)")
	const next = "SELECT last_value FROM ledger.notification_dispatches_id_seq"
	before := one[int64](b, next)
	tx := b.begin(b.conn)
	for _, sql := range []string{
		"SELECT ledger.remember('', 'k:1', 'T', 'x', NULL, now(), NULL)",
		"SELECT ledger.reserve('', 'k:1', 'user:1', 'simple', 'w', now())",
		"SELECT ledger.reserve('', 'k:1', 'user:2', 'simple', 'w', now())",
		"SELECT ledger.reserve('', 'k:9', 'user:1', 'after', 'w', now())",
		"SELECT ledger.reserve_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'simple', 'w', now())",
		"SELECT ledger.register_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'simple', now())",
		"SELECT ledger.once('', 'k:1', 'user:1', 'simple', now())",
		"SELECT ledger.once_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'simple', now())",
		"SELECT ledger.claim_due('w', ARRAY['simple'], 10)", "SELECT ledger.sweep(10)", "SELECT ledger.purge(10)",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		// No transaction id: neither a row nor a lock was written.
		if oneOn[bool](b, tx, "SELECT pg_current_xact_id_if_assigned() IS NOT NULL") {
			t.Errorf("%s wrote", sql)
			break
		}
	}
	// Each 32nd id drawn would be written, too.
	if after := oneOn[int64](b, tx, next); after != before {
		t.Errorf("%d ids were drawn for rows that are there", after-before)
	}
}

// reserve, begin_effect and complete: one update that touches an index and one that does not.
func TestHOT(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := list[string](b, `SELECT indexdef FROM pg_indexes WHERE tablename = 'notification_dispatches' ORDER BY indexname`)
	want := []string{
		"CREATE UNIQUE INDEX notification_dispatches_boundary ON ledger.notification_dispatches USING btree (tenant, event_key, recipient, channel)",
		"CREATE INDEX notification_dispatches_due_idx ON ledger.notification_dispatches USING btree (due_at) WHERE (due_at IS NOT NULL)",
		"CREATE UNIQUE INDEX notification_dispatches_pkey ON ledger.notification_dispatches USING btree (id)",
		"CREATE INDEX notification_dispatches_probe_idx ON ledger.notification_dispatches USING btree (probe_until) WHERE (probe_until IS NOT NULL)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("indexes (-want +got):\n%s", diff)
	}
	const n = 50
	tx := b.begin(b.conn)
	if _, err := tx.Exec(t.Context(), "SELECT ledger.begin_effect(r.id, r.fence), ledger.complete(r.id, r.fence) FROM generate_series(1, $1::int) i, ledger.reserve('', 'k:' || i, 'user:1', 'hold', 'w', now()) r", n); err != nil {
		t.Fatal(err)
	}
	var inserted, updated, hot int
	if err := tx.QueryRow(t.Context(), "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'ledger.notification_dispatches'::regclass").
		Scan(&inserted, &updated, &hot); err != nil {
		t.Fatal(err)
	}
	// A page that is full makes an update of another page; nine in ten must fit.
	if inserted != n || updated != 2*n || hot < n*9/10 {
		t.Errorf("%d inserts, %d updates, %d of them heap-only; want %d, %d and about %d", inserted, updated, hot, n, 2*n, n)
	}
}

// T35, in pages instead of time: while an old snapshot keeps every dead version, a reservation reads no more than before.
func TestHeldSnapshot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	deliver := func(from, to int) {
		b.exec("SELECT ledger.begin_effect(r.id, r.fence), ledger.complete(r.id, r.fence) FROM generate_series($1::int, $2::int) i, ledger.reserve('', 'k:' || i, 'user:1', 'hold', 'w', now()) r", from, to)
	}
	b.exec(`CREATE FUNCTION public.pages(key text) RETURNS int LANGUAGE plpgsql AS $$ DECLARE plan json; BEGIN
EXECUTE format('EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ledger.reserve(%L, %L, %L, %L, %L, now())', '', key, 'user:1', 'hold', 'w') INTO plan;
RETURN (plan -> 0 -> 'Plan' ->> 'Shared Hit Blocks')::int + (plan -> 0 -> 'Plan' ->> 'Shared Read Blocks')::int; END $$`)
	// The least of eight, for the first also read the catalogue and make plans. fresh: eight new keys.
	pages := func(key string, fresh bool) int {
		t.Helper()
		least := 1 << 30
		for i := range 8 {
			name := key
			if fresh {
				name = fmt.Sprint(key, i)
			}
			least = min(least, one[int](b, "SELECT public.pages($1)", name))
		}
		return least
	}
	deliver(1, 300)
	duplicate, fresh := pages("k:1", false), pages("fresh:1", true)
	if duplicate < 3 || fresh <= duplicate {
		t.Fatalf("a duplicate reads %d pages, a new reservation %d: nothing is measured", duplicate, fresh)
	}

	old, err := b.connect().BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Rollback(t.Context())
	oneOn[int](b, old, "SELECT 1") // takes the snapshot
	deliver(301, 2000)
	if got := pages("k:2000", false); got > 2*duplicate {
		t.Errorf("a duplicate reads %d pages, %d before", got, duplicate)
	}
	if got := pages("fresh:2", true); got > 2*fresh {
		t.Errorf("a new reservation reads %d pages, %d before", got, fresh)
	}
}

// Settings in force are those of the table, whatever was changed.
func TestSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	same := func() {
		t.Helper()
		diff := one[int](b, `SELECT count(*) FROM (
(SELECT (s).* FROM ledger.channels c, ledger.settings(c.channel) s WHERE c.channel <> '*' EXCEPT SELECT channel, mode, on_uncertain, provider_window, after_channel, max_attempts, lease, hold_cap, backoff_min, backoff_max, retention, horizon FROM ledger.channels_in_force)
UNION ALL
(SELECT channel, mode, on_uncertain, provider_window, after_channel, max_attempts, lease, hold_cap, backoff_min, backoff_max, retention, horizon FROM ledger.channels_in_force EXCEPT SELECT (s).* FROM ledger.channels c, ledger.settings(c.channel) s WHERE c.channel <> '*')) d`)
		if diff != 0 {
			t.Errorf("%d rows differ", diff)
		}
	}
	same()
	b.exec("UPDATE ledger.channels SET lease = '7 s', max_attempts = 4 WHERE channel = '*'")
	same()
	if r := b.reserve("k:1", "user:1", "hold"); *r.LeaseMS != 7000 {
		t.Errorf("lease of %d ms, want the new default", *r.LeaseMS)
	}
	b.exec("DELETE FROM ledger.channels WHERE channel IN ('after', 'simple'); UPDATE ledger.channels SET on_uncertain = 'hold'")
	same()
	if n := one[int](b, "SELECT max_attempts FROM ledger.notification_dispatches"); n != 4 {
		t.Errorf("max_attempts %d, want 4", n)
	}
	// Rows outlive their channel's row, and end by the defaults.
	b.exec("DELETE FROM ledger.channels WHERE channel = 'hold'")
	b.answer("begun", "SELECT ledger.begin_effect(id, fence) FROM ledger.notification_dispatches")
	b.answer("delivered", "SELECT ledger.complete(id, fence) FROM ledger.notification_dispatches")
}
