package sqltest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// What no caller may give, and what it is told. Nothing of it leaves a trace.
func TestBadInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "simple")
	b.exec("INSERT INTO ledger.channels (channel, retention, horizon) VALUES ('kept', '0', '0')")
	before := one[string](b, "SELECT string_agg(d::text, '|') FROM ledger.notification_dispatches d")
	const hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	long := func(n int) string { return strings.Repeat("é", n) }

	for _, c := range []struct {
		sql   string
		args  []any
		names string // argument in the message, and its limit
	}{
		{"SELECT ledger.reserve(NULL, 'k', 'r', 'simple', 'w', now())", nil, "tenant 64"},
		{"SELECT ledger.reserve('', NULL, 'r', 'simple', 'w', now())", nil, "event_key 255"},
		{"SELECT ledger.reserve('', '', 'r', 'simple', 'w', now())", nil, "event_key 255"},
		{"SELECT ledger.reserve('', 'k', NULL, 'simple', 'w', now())", nil, "recipient 255"},
		{"SELECT ledger.reserve('', 'k', 'r', NULL, 'w', now())", nil, "channel 64"},
		{"SELECT ledger.reserve($1, 'k', 'r', 'simple', 'w', now())", []any{long(65)}, "tenant 64"},
		{"SELECT ledger.reserve('', $1, 'r', 'simple', 'w', now())", []any{long(256)}, "event_key 255"},
		{"SELECT ledger.reserve('', 'k', $1, 'simple', 'w', now())", []any{long(256)}, "recipient 255"},
		{"SELECT ledger.reserve('', 'k', 'r', $1, 'w', now())", []any{long(65)}, "channel 64"},
		{"SELECT ledger.reserve('', 'k', 'r', 'nope', 'w', now())", nil, "channel ledger.channels"},
		{"SELECT ledger.reserve('', 'k', 'r', '*', 'w', now())", nil, "channel ledger.channels"},
		{"SELECT ledger.reserve('', 'k', 'r', 'listener:', 'w', now())", nil, "channel ledger.channels"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', NULL, now())", nil, "worker 255"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', $1, now())", []any{long(256)}, "worker 255"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', NULL)", nil, "event_time NULL"},
		{"SELECT ledger.reserve('', 'k', 'r', 'listener:x', 'w', NULL)", nil, "event_time NULL"},
		{"SELECT ledger.reserve('', 'k', 'r', 'kept', 'w', 'infinity')", nil, "event_time finite"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', '-infinity')", nil, "event_time finite"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', now(), '0')", nil, "lease 00:15:00"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', now(), '-1 min')", nil, "lease 00:15:00"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', now(), '16 min')", nil, "lease 00:15:00"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', now(), '100000 years')", nil, "lease 00:15:00"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', now(), NULL, 'md5:abc')", nil, "payload_hash 64"},
		{"SELECT ledger.reserve('', 'k', 'r', 'simple', 'w', now(), NULL, $1)", []any{strings.ToUpper(hash)}, "payload_hash 64"},
		{"SELECT ledger.reserve('', 'k', 'r', 'listener:x', 'w', now(), NULL, 'x')", nil, "payload_hash 64"},
		{"SELECT ledger.reserve_batch('', 'k', NULL, 'simple', 'w', now())", nil, "recipients 10000"},
		{"SELECT ledger.reserve_batch('', 'k', ARRAY['a', NULL], 'simple', 'w', now())", nil, "recipients 255"},
		{"SELECT ledger.reserve_batch('', 'k', ARRAY[$1], 'simple', 'w', now())", []any{long(256)}, "recipients 255"},
		{"SELECT ledger.reserve_batch('', 'k', ARRAY[['a'], ['b']], 'simple', 'w', now())", nil, "recipients dimension"},
		{"SELECT ledger.reserve_batch('', 'k', array_fill('a'::text, ARRAY[10001]), 'simple', 'w', now())", nil, "recipients 10000"},
		{"SELECT ledger.reserve_batch('', 'k', ARRAY['a'], 'simple', 'w', now(), '1 h')", nil, "lease 00:15:00"},
		{"SELECT ledger.reserve_batch('', 'k', ARRAY['a'], 'simple', '', now())", nil, "worker 255"},
		{"SELECT ledger.register_batch('', 'k', ARRAY['a'], 'nope', now())", nil, "channel ledger.channels"},
		{"SELECT ledger.register_batch('', 'k', ARRAY['a'], 'simple', NULL)", nil, "event_time NULL"},
		{"SELECT ledger.register_batch('', 'k', ARRAY['a'], 'simple', now(), 'infinity')", nil, "not_before finite"},
		{"SELECT ledger.once('', 'k', 'r', 'nope', now())", nil, "channel ledger.channels"},
		{"SELECT ledger.once('', 'k', 'r', 'simple', NULL)", nil, "event_time NULL"},
		{"SELECT ledger.once_batch('', '', ARRAY['r'], 'simple', now())", nil, "event_key 255"},
		{"SELECT ledger.once_batch('', 'k', ARRAY['r', NULL], 'simple', now())", nil, "recipients 255"},
		{"SELECT ledger.remember('', 'k', 'T', NULL, NULL, NULL, NULL)", nil, "occurred_at NULL"},
		{"SELECT ledger.remember('', 'k', NULL, NULL, NULL, now(), NULL)", nil, "event_type 64"},
		{"SELECT ledger.remember('', 'k', 'T', NULL, '[]', now(), NULL)", nil, "headers object"},
		{"SELECT ledger.remember('', 'k', 'T', NULL, NULL, now(), $1)", []any{long(256)}, "source 255"},
		{"SELECT ledger.claim_due('w', NULL, 1)", nil, "channels NULL"},
		{"SELECT ledger.claim_due('w', ARRAY['simple', 'nope'], 1)", nil, "channels ledger.channels"},
		{"SELECT ledger.claim_due('w', ARRAY['simple', NULL], 1)", nil, "channels NULL"},
		{"SELECT ledger.claim_due('w', ARRAY['simple'], 0)", nil, "n 10000"},
		{"SELECT ledger.claim_due('w', ARRAY['simple'], NULL)", nil, "n 10000"},
		{"SELECT ledger.claim_due('w', ARRAY['simple'], 10001)", nil, "n 10000"},
		{"SELECT ledger.claim_due(NULL, ARRAY['simple'], 1)", nil, "worker 255"},
		{"SELECT ledger.claim_due('w', ARRAY['simple'], 1, '-1 s')", nil, "lease 00:15:00"},
		{"SELECT ledger.claim_uncertain('w', ARRAY['simple'], 1, '1 h')", nil, "lease 00:15:00"},
		{"SELECT ledger.begin_effect(NULL, 1)", nil, "id NULL"},
		{"SELECT ledger.begin_effect($1, NULL)", []any{id}, "fence NULL"},
		{"SELECT ledger.begin_effect($1, $2, NULL)", []any{id, fence}, "min_left 7"},
		{"SELECT ledger.begin_effect($1, $2, '-1 s')", []any{id, fence}, "min_left 7"},
		{"SELECT ledger.renew($1, $2, '16 min')", []any{id, fence}, "lease 00:15:00"},
		{"SELECT ledger.renew($1, NULL)", []any{id}, "fence NULL"},
		{"SELECT ledger.complete($1, $2, repeat('x', 1025))", []any{id, fence}, "provider_ref 1024"},
		{"SELECT ledger.complete($1, $2, NULL, to_jsonb(repeat('x', 10000000)))", []any{id, fence}, "result 65536"},
		{"SELECT ledger.complete(NULL, NULL)", nil, "id NULL"},
		{"SELECT ledger.complete_batch(NULL, NULL, NULL)", nil, "ids 10000"},
		{"SELECT ledger.complete_batch(ARRAY[1, NULL], ARRAY[1, 1], NULL)", nil, "ids NULL"},
		{"SELECT ledger.complete_batch(ARRAY[1, 2], ARRAY[1], NULL)", nil, "fences ids"},
		{"SELECT ledger.complete_batch(ARRAY[1, 2], ARRAY[1, NULL], NULL)", nil, "fences NULL"},
		{"SELECT ledger.complete_batch(ARRAY[1, 2], NULL, NULL)", nil, "fences ids"},
		{"SELECT ledger.complete_batch(ARRAY[1, 2], ARRAY[1, 1], ARRAY['a'])", nil, "refs ids"},
		{"SELECT ledger.complete_batch(ARRAY[1], ARRAY[1], ARRAY[repeat('x', 1025)])", nil, "refs 1024"},
		{"SELECT ledger.fail($1, $2, 'maybe', 'x')", []any{id, fence}, "kind retry"},
		{"SELECT ledger.fail($1, $2, NULL, 'x')", []any{id, fence}, "kind retry"},
		{"SELECT ledger.fail($1, $2, 'retry', 'x', '-1 s')", []any{id, fence}, "retry_after 365"},
		{"SELECT ledger.fail($1, $2, 'retry', 'x', '366 days')", []any{id, fence}, "retry_after 365"},
		{"SELECT ledger.resolve($1, $2, 'skipped', 'ann', 'x')", []any{id, fence}, "verdict delivered"},
		{"SELECT ledger.resolve($1, $2, NULL, 'ann', 'x')", []any{id, fence}, "verdict delivered"},
		{"SELECT ledger.resolve($1, $2, 'dead', NULL, 'x')", []any{id, fence}, "actor 255"},
		{"SELECT ledger.redrive($1, '', 'x')", []any{id}, "actor 255"},
		{"SELECT ledger.redrive($1, 'ann', NULL)", []any{id}, "reason 1000"},
		{"SELECT ledger.redrive($1, 'ann', 'x', NULL)", []any{id}, "resend NULL"},
		{"SELECT ledger.sweep(0)", nil, "n 10000"},
		{"SELECT ledger.purge(NULL)", nil, "n 10000"},
		{"SELECT ledger.status(NULL, 'k')", nil, "tenant 64"},
	} {
		_, err := b.conn.Exec(t.Context(), c.sql, c.args...)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "22023" {
			t.Errorf("%s: %v, want SQLSTATE 22023", c.sql, err)
			continue
		}
		argument, limit, _ := strings.Cut(c.names, " ")
		if pg.ColumnName != argument || !strings.HasPrefix(pg.Message, argument+": ") || !strings.Contains(pg.Message, limit) {
			t.Errorf("%s: column %q, %q, want them to name %s", c.sql, pg.ColumnName, pg.Message, c.names)
		}
	}
	for _, c := range []struct{ sql, state string }{
		{"SELECT ledger.complete(1, 1, NULL, '{]')", "22P02"},
		{"INSERT INTO ledger.channels (channel, mode) VALUES ('x', 'careless')", "23514"},
		{"INSERT INTO ledger.channels (channel, on_uncertain) VALUES ('x', 'guess')", "23514"},
		{"INSERT INTO ledger.channels (channel, lease) VALUES ('x', '-1 s')", "23514"},
		{"INSERT INTO ledger.channels (channel, max_attempts) VALUES ('x', 0)", "23514"},
		{"INSERT INTO ledger.channels (channel, retention) VALUES ('x', '29 days')", "22023"}, // T26: below the horizon
		{"INSERT INTO ledger.channels (channel, horizon) VALUES ('x', '91 days')", "22023"},
		{"INSERT INTO ledger.channels (channel, horizon) VALUES ('x', '0')", "22023"},
		{"INSERT INTO ledger.channels (channel, lease) VALUES ('x', '1 hour')", "22023"},
		{"INSERT INTO ledger.channels (channel, after_channel) VALUES ('x', 'nope')", "22023"},
		{"INSERT INTO ledger.channels (channel, after_channel) VALUES ('x', 'x')", "22023"},
		{"UPDATE ledger.channels SET after_channel = 'after' WHERE channel = 'simple'", "22023"},
		{"UPDATE ledger.channels SET retention = '1 day' WHERE channel = '*'", "22023"},
		{"UPDATE ledger.channels SET lease = NULL WHERE channel = '*'", "23514"},
		{"DELETE FROM ledger.channels WHERE channel = '*'", "22023"},
	} {
		_, err := b.conn.Exec(t.Context(), c.sql)
		if got := sqlState(err); got != c.state {
			t.Errorf("%s: %v, want SQLSTATE %s", c.sql, err, c.state)
		}
	}
	// Fences that were never given are answers, not errors.
	for _, f := range []int64{-1, 0, fence + 1, 1 << 62} {
		b.answer("fenced", "SELECT ledger.complete($1, $2)", id, f)
		b.answer("fenced", "SELECT ledger.begin_effect($1, $2)", id, f)
	}
	b.answer("gone", "SELECT ledger.complete(-1, 1)")
	if after := one[string](b, "SELECT string_agg(d::text, '|') FROM ledger.notification_dispatches d"); after != before {
		t.Errorf("bad input changed\n%s to\n%s", before, after)
	}
	if n := one[int](b, "SELECT count(*) FROM ledger.events"); n != 0 {
		t.Errorf("%d events", n)
	}
}

// The longest of everything is taken, and found again by the index.
func TestLongestKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	wide := func(n int) string { return strings.Repeat("\U0001f600", n) }
	channel := "listener:" + wide(55)
	for _, want := range []string{"reserved", "already_reserved"} {
		b.answer(want, "SELECT outcome FROM ledger.reserve($1, $2, $3, $4, $5, now())", wide(64), wide(255), wide(255), channel, wide(255))
	}
	b.answer("failed", "SELECT ledger.fail(id, fence, 'retry', repeat('x', 1000000)) FROM ledger.notification_dispatches")
	if n := one[int](b, "SELECT char_length(reason) FROM ledger.notification_dispatches"); n != 1000 {
		t.Errorf("reason of %d characters, want it cut to 1000", n)
	}
}
