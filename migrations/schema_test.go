package migrations_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func TestSchema_comments(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	bare := query1[[]string](t, conn, `
SELECT coalesce(array_agg(c.relname || coalesce('.' || a.attname, '')), '{}')
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum >= 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND c.relname <> 'migrations'
  AND (obj_description(c.oid, 'pg_class') IS NULL OR col_description(c.oid, a.attnum) IS NULL)`)
	if len(bare) > 0 {
		t.Errorf("without a comment: %v", bare)
	}
	if n := query1[int](t, conn, `SELECT count(*) FROM pg_description d JOIN pg_class c ON c.oid = d.objoid
WHERE c.relnamespace = 'outbox'::regnamespace AND d.objsubid > 0`); n < 20 {
		t.Errorf("%d columns with a comment: the query above looked at nothing", n)
	}
}

func TestSchema_grantsNothingToPublic(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	const sql = `
SELECT coalesce(array_agg(name || ' ' || privilege_type), '{}') FROM (
    SELECT p.oid::regprocedure::text AS name, a.* FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    WHERE p.pronamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT c.relname, a.* FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
    UNION ALL
    SELECT n.nspname, a.* FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
    WHERE n.nspname = 'outbox'
) granted WHERE grantee = 0`
	if got := query1[[]string](t, conn, sql); len(got) > 0 {
		t.Errorf("granted to PUBLIC: %v", got)
	}
}

func TestSchema_namedConstraints(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	got := query1[[]string](t, conn, `SELECT array_agg(conname::text ORDER BY conname) FROM pg_constraint
WHERE conrelid IN ('outbox.events'::regclass, 'outbox.relay_state'::regclass) AND contype <> 'n'`)
	want := []string{
		"events_aggregate_id_length", "events_aggregate_type_characters", "events_aggregate_type_length",
		"events_event_key_length", "events_event_key_one_line", "events_event_type_length", "events_event_type_one_line",
		"events_headers_valid", "events_occurred_at_range", "events_partition_key_length", "events_payload_single",
		"events_pkey", "events_tenant_length", "events_tenant_one_line", "events_topic_valid",
		"relay_state_confirmed", "relay_state_phase_known", "relay_state_pkey",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("constraints (-want +got):\n%s", diff)
	}
}

// Once a second for ever: an update of relay_state must not grow an index.
func TestSchema_relayStateUpdatesInPlace(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	exec1(t, conn, `INSERT INTO outbox.relay_state (slot, system_identifier, timeline, incarnation, phase, confirmed_lsn)
VALUES ('relay', '7', 1, 1, 'streaming', '0/1')`)
	if got := query1[[]string](t, conn, "SELECT reloptions FROM pg_class WHERE oid = 'outbox.relay_state'::regclass"); len(got) != 1 || got[0] != "fillfactor=50" {
		t.Errorf("storage parameters %v", got)
	}
	// pg_stat_xact_user_tables counts within the transaction, so nothing waits for the statistics to arrive.
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	for range 20 {
		if _, err := tx.Exec(t.Context(), "UPDATE outbox.relay_state SET confirmed_lsn = confirmed_lsn + 8, updated_at = clock_timestamp()"); err != nil {
			t.Fatal(err)
		}
	}
	updated, hot := 0, 0
	if err := tx.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'outbox.relay_state'::regclass").
		Scan(&updated, &hot); err != nil {
		t.Fatal(err)
	}
	if updated != 20 || hot != updated {
		t.Errorf("%d of %d updates were heap-only, want 20 of 20", hot, updated)
	}
}

func TestUUIDv7(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	checkUUIDs(t, conn)
}

func checkUUIDs(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	const n = 20_000
	var before, after time.Time
	var ids []uuid.UUID
	// The clock is the server's, read on both sides of the series; ids go as text, being no type of pgx's.
	var texts []string
	if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&before); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY i) FROM
(SELECT i, outbox.uuid_v7()::text AS id FROM generate_series(1, $1) AS i) made`, n).Scan(&texts); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&after); err != nil {
		t.Fatal(err)
	}
	for _, s := range texts {
		ids = append(ids, uuid.MustParse(s))
	}

	seen := make(map[uuid.UUID]bool, n)
	fractions := map[uint16]bool{}
	for i, id := range ids {
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
			t.Fatalf("%s: version %d, variant %v", id, id.Version(), id.Variant())
		}
		ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
		if ms < before.UnixMilli() || ms > after.UnixMilli() {
			t.Fatalf("%s is of %v, made between %v and %v", id, time.UnixMilli(ms), before, after)
		}
		if i > 0 && bytes.Compare(ids[i-1][:8], id[:8]) > 0 {
			t.Fatalf("%s came after %s", id, ids[i-1])
		}
		if seen[id] {
			t.Fatalf("%s came twice", id)
		}
		seen[id] = true
		fractions[uint16(id[6]&0xf)<<8|uint16(id[7])] = true
	}
	if len(fractions) < 100 {
		t.Errorf("%d different fractions of a millisecond in %d ids", len(fractions), n)
	}
}

func TestPublish(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	checkPublish(t, conn)
}

func checkPublish(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	// Whoever can make objects in a schema of the caller's search_path must not change what publish writes.
	exec1(t, conn, `CREATE SCHEMA hostile;
CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01'::timestamptz $$;
CREATE FUNCTION hostile.uuid_v7() RETURNS uuid LANGUAGE sql AS $$ SELECT '00000000-0000-0000-0000-000000000001'::uuid $$;
CREATE FUNCTION hostile.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT 'object' $$;
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01'::timestamptz $$;
SET search_path = hostile, pg_catalog, outbox`)
	defer exec1(t, conn, "RESET search_path")

	type row struct {
		ID, Tenant, EventKey, AggregateType, AggregateID, EventType, Payload, Bytes, Headers, Topic, PartitionKey string
		Recent, OurXID                                                                                            bool
		OccurredAt                                                                                                string
	}
	read := func(id string) row {
		var r row
		if err := conn.QueryRow(t.Context(), `SELECT id::text, tenant, event_key, aggregate_type, aggregate_id, event_type, coalesce(payload::text, 'NULL'),
coalesce(payload_bytes::text, 'NULL'), coalesce(headers::text, 'NULL'), coalesce(topic, 'NULL'), coalesce(partition_key, 'NULL'),
pg_catalog.clock_timestamp() - occurred_at < '1 minute', xact_id < pg_snapshot_xmax(pg_current_snapshot()),
(occurred_at AT TIME ZONE 'UTC')::text FROM outbox.events WHERE id = $1::text::uuid`, id).Scan(
			&r.ID, &r.Tenant, &r.EventKey, &r.AggregateType, &r.AggregateID, &r.EventType, &r.Payload, &r.Bytes, &r.Headers, &r.Topic,
			&r.PartitionKey, &r.Recent, &r.OurXID, &r.OccurredAt); err != nil {
			t.Fatal(err)
		}
		return r
	}

	id := query1[string](t, conn, `SELECT outbox.publish(event_key => 'order-placed:42', aggregate_type => 'order',
aggregate_id => '42', event_type => 'OrderPlaced', payload => '{"b" : 1.10, "a":1e2, "b":2}')::text`)
	got := read(id)
	if v := uuid.MustParse(id); v.Version() != 7 {
		t.Errorf("made ID %s of version %d", id, v.Version())
	}
	want := row{ID: id, EventKey: "order-placed:42", AggregateType: "order", AggregateID: "42", EventType: "OrderPlaced",
		Payload: `{"b" : 1.10, "a":1e2, "b":2}`, Bytes: "NULL", Headers: "NULL", Topic: "NULL", PartitionKey: "NULL",
		Recent: true, OurXID: true, OccurredAt: got.OccurredAt}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}

	const own = "0190b5a2-7c3e-7abc-9def-0123456789ab"
	id = query1[string](t, conn, `SELECT outbox.publish(id => '`+own+`', occurred_at => '2026-11-30 18:57:22.123456+00', tenant => 'acme',
partition_key => 'p', topic => 'orders.v1', headers => '{"traceparent": "00-01"}', payload_bytes => '\x00ff', event_type => 'OrderPlaced',
aggregate_id => '42', aggregate_type => 'order', event_key => 'order-placed:43')::text`)
	want = row{ID: own, Tenant: "acme", EventKey: "order-placed:43", AggregateType: "order", AggregateID: "42", EventType: "OrderPlaced",
		Payload: "NULL", Bytes: `\x00ff`, Headers: `{"traceparent": "00-01"}`, Topic: "orders.v1", PartitionKey: "p", OurXID: true,
		OccurredAt: "2026-11-30 18:57:22.123456"}
	got = read(id)
	got.Recent = false // the time given may be near
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all parameters (-want +got):\n%s", diff)
	}

	_, err := conn.Exec(t.Context(), "SELECT outbox.publish('k', 't', 'i', 'e', headers => '[]')")
	if err == nil {
		t.Error("headers that are no object were taken")
	}
	if n := query1[int](t, conn, "SELECT count(*) FROM outbox.events"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
