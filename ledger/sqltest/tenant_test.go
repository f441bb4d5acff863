package sqltest_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// role makes a login role with rights on everything a worker, an operator and a reader have together, and logs in.
func (b *bundle) role() (name string, conn *pgx.Conn) {
	b.Helper()
	name, password := "t_"+uuid.NewString()[:8], uuid.NewString()
	b.exec("CREATE ROLE " + name + " LOGIN PASSWORD '" + password + "'")
	b.Cleanup(func() {
		if _, err := b.pool.Exec(context.WithoutCancel(b.Context()), "DROP OWNED BY "+name+"; DROP ROLE "+name); err != nil {
			b.Errorf("drop role: %v", err)
		}
	})
	b.exec("GRANT USAGE ON SCHEMA ledger TO " + name + "; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ledger TO " + name +
		"; GRANT SELECT ON ALL TABLES IN SCHEMA ledger TO " + name + "; GRANT INSERT ON ledger.notifications TO " + name)
	cfg, err := pgx.ParseConfig(b.db.URL)
	if err != nil {
		b.Fatal(err)
	}
	cfg.User, cfg.Password = name, password
	conn, err = pgx.ConnectConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close(context.WithoutCancel(b.Context())) })
	return name, conn
}

// T32
func TestTenants_sameKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tenant := range []string{"", "a", "b"} {
		b.answer("delivered", "SELECT ledger.once($1, 'k:1', 'user:1', 'simple', now())", tenant)
	}
	if rows(b) != 3 {
		t.Errorf("%d rows, want 3", rows(b))
	}
}

// T32
func TestTenants_limitedRole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	name, conn := b.role()
	b.exec("INSERT INTO ledger.role_tenants VALUES ($1, 'a')", name)
	ids := map[string]int64{}
	for _, tenant := range []string{"a", "b"} {
		b.exec("SELECT ledger.remember($1, 'k:1', 'T', 'x', NULL, now(), NULL)", tenant)
		ids[tenant] = one[int64](b, "SELECT id FROM ledger.reserve($1, 'k:1', 'user:1', 'simple', 'w', now())", tenant)
		b.exec("INSERT INTO ledger.notifications (tenant, event_key, recipient, type) VALUES ($1, 'k:1', 'user:1', 'T')", tenant)
		b.exec("SELECT ledger.register_batch($1, 'k:2', ARRAY['user:1'], 'simple', now())", tenant)
		b.exec("SELECT ledger.end_attempt(d, 'failed', 'x', now()) FROM ledger.notification_dispatches d WHERE tenant = $1", tenant)
	}
	keyed := []string{
		"SELECT ledger.remember($1, 'k:3', 'T', 'x', NULL, now(), NULL)",
		"SELECT ledger.reserve($1, 'k:3', 'user:1', 'simple', 'w', now())",
		"SELECT ledger.reserve_batch($1, 'k:4', ARRAY['user:1'], 'simple', 'w', now())",
		"SELECT ledger.register_batch($1, 'k:5', ARRAY['user:1'], 'simple', now())",
		"SELECT ledger.once($1, 'k:6', 'user:1', 'simple', now())",
		"SELECT ledger.once_batch($1, 'k:7', ARRAY['user:1'], 'simple', now())",
		"SELECT ledger.status($1, 'k:1')",
		"SELECT ledger.generation($1, 'k:1', 'user:1', 'simple')",
		"INSERT INTO ledger.notifications (tenant, event_key, recipient, type) VALUES ($1, 'k:9', 'user:1', 'T')",
	}
	byID := []string{
		"SELECT ledger.begin_effect($1, 1)", "SELECT ledger.renew($1, 1)", "SELECT ledger.complete_batch(ARRAY[$1::bigint], ARRAY[9], NULL)",
		"SELECT ledger.complete($1, 9)", "SELECT ledger.fail($1, 9, 'retry', 'x')", "SELECT ledger.skip($1, 9, 'x')", "SELECT ledger.release($1, 9)",
		"SELECT ledger.resolve($1, 9, 'dead', 'ann', 'x')", "SELECT ledger.redrive($1, 'ann', 'x')",
	}
	// The role may become another by SET ROLE; what counts is who logged in.
	try := func(sql string, arg any, want string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, arg); sqlState(err) != want {
			t.Errorf("%s with %v: %v, want SQLSTATE %q", sql, arg, err, want)
		}
	}
	for _, sql := range keyed {
		try(sql, "b", "42501")
		try(sql, "", "42501")
		try(sql, "a", "")
	}
	before := one[string](b, "SELECT d::text FROM ledger.notification_dispatches d WHERE id = $1", ids["b"])
	for _, sql := range byID {
		try(sql, ids["b"], "42501")
		try(sql, ids["a"], "")
	}
	if after := one[string](b, "SELECT d::text FROM ledger.notification_dispatches d WHERE id = $1", ids["b"]); after != before {
		t.Errorf("another tenant's row changed\n%s to\n%s", before, after)
	}

	// Calls without a key see only their own.
	b.exec("UPDATE ledger.notification_dispatches SET due_at = due_at - interval '1 hour', lease_until = lease_until - interval '1 hour'")
	if got := oneOn[[]string](t, conn, "SELECT array_agg(DISTINCT tenant) FROM ledger.claim_due('w', ARRAY['simple'], 100)"); !cmp.Equal(got, []string{"a"}) {
		t.Errorf("claimed of tenants %q", got)
	}
	b.exec("UPDATE ledger.notification_dispatches SET state = 'uncertain', due_at = NULL, lease_until = NULL, probe_until = now() WHERE due_at IS NOT NULL")
	if got := oneOn[[]string](t, conn, "SELECT array_agg(DISTINCT tenant) FROM ledger.claim_uncertain('w', ARRAY['simple'], 100, '1 min')"); !cmp.Equal(got, []string{"a"}) {
		t.Errorf("claimed uncertain of tenants %q", got)
	}
	all := one[int](b, "SELECT sum(n) FROM ledger.stats()")
	own := oneOn[int](t, conn, "SELECT sum(n) FROM ledger.stats()")
	if want := one[int](b, "SELECT count(*) FROM ledger.notification_dispatches WHERE tenant = 'a'"); own != want || all <= own {
		t.Errorf("stats of %d rows, want %d of %d", own, want, all)
	}
	for _, table := range []string{"notification_dispatches", "events", "notifications"} {
		got := oneOn[[]string](t, conn, "SELECT array_agg(DISTINCT tenant) FROM ledger."+table)
		if !cmp.Equal(got, []string{"a"}) {
			t.Errorf("reads %s of tenants %q", table, got)
		}
	}
	if n := oneOn[int](t, conn, "SELECT count(*) FROM ledger.dispatch_attempts WHERE dispatch_id = $1", ids["b"]); n != 0 {
		t.Errorf("reads %d attempts of another tenant", n)
	}
	b.exec("UPDATE ledger.notification_dispatches SET state = 'dead', due_at = NULL, lease_until = NULL, probe_until = NULL, done_at = now() - interval '1 year'")
	oneOn[int](t, conn, "SELECT ledger.purge(100)")
	if got := list[string](b, "SELECT DISTINCT tenant FROM ledger.notification_dispatches ORDER BY 1"); !cmp.Equal(got, []string{"b"}) {
		t.Errorf("rows left of tenants %q, want b", got)
	}
}

// A schema in the caller's search_path must not change what the functions, which run as their owner, call.
func TestSearchPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`CREATE SCHEMA hostile; CREATE FUNCTION hostile.eq(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.eq);
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '1999-01-01'::timestamptz $$;
CREATE FUNCTION hostile.char_length(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
SET search_path = hostile, pg_catalog`)
	b.answer("reserved", "SELECT outcome FROM ledger.reserve('', 'k:1', 'user:1', 'simple', 'w', now())")
	b.answer("reserved", "SELECT outcome FROM ledger.reserve('', 'k:2', 'user:1', 'simple', 'w', now())")
	b.answer("delivered", "SELECT ledger.complete(min(id), 1) FROM ledger.notification_dispatches")
	b.exec("RESET search_path")
	if n := one[int](b, "SELECT count(*) FROM ledger.notification_dispatches WHERE created_at > '2001-01-01'"); n != 2 {
		t.Errorf("%d rows made now, want 2", n)
	}
	loose := list[string](b, `SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'ledger'::regnamespace AND p.prosecdef
AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)`)
	if len(loose) > 0 {
		t.Errorf("run as their owner without a fixed search_path: %v", loose)
	}
}
