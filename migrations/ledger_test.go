package migrations_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

func printedLedger(tb testing.TB) string {
	tb.Helper()
	var b strings.Builder
	if err := migrations.Ledger().Print(&b); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

func migratedLedger(tb testing.TB) (*testenv.Database, *pgx.Conn) {
	tb.Helper()
	db := testenv.NewDatabase(tb)
	cfg := config(tb, db.URL)
	if _, err := migrations.Up(tb.Context(), cfg, migrations.Ledger()); err != nil {
		tb.Fatal(err)
	}
	return db, connect(tb, cfg)
}

func TestLedger_afterPsql(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	conn := connect(t, cfg)
	psql(t, db.URL, printedLedger(t))
	shape := fingerprintOf(t, conn, "ledger")
	applied, err := migrations.Up(t.Context(), cfg, migrations.Ledger())
	if err != nil {
		t.Fatal(err)
	}
	if len(applied) == 0 || applied[0].Set != "ledger" {
		t.Errorf("Up recorded %+v", applied)
	}
	if diff := cmp.Diff(shape, fingerprintOf(t, conn, "ledger")); diff != "" {
		t.Errorf("Up after psql changed the schema (-psql +Up):\n%s", diff)
	}
	psql(t, db.URL, printedLedger(t))
	if diff := cmp.Diff(shape, fingerprintOf(t, conn, "ledger")); diff != "" {
		t.Errorf("psql after Up changed the schema (-psql +again):\n%s", diff)
	}
}

// Settings, rows and rights of an installation outlive the files being applied again.
func TestLedger_keepsWhatIsThere(t *testing.T) {
	t.Parallel()
	_, conn := migratedLedger(t)
	exec1(t, conn, "UPDATE ledger.channels SET lease = '7 s' WHERE channel = '*'")
	exec1(t, conn, "INSERT INTO ledger.channels (channel) VALUES ('email')")
	exec1(t, conn, "SELECT ledger.reserve('', 'k:1', 'user:1', 'email', 'w', now())")
	exec1(t, conn, "GRANT EXECUTE ON FUNCTION ledger.stats() TO pg_monitor")
	shape := fingerprintOf(t, conn, "ledger")
	exec1(t, conn, printedLedger(t))
	if diff := cmp.Diff(shape, fingerprintOf(t, conn, "ledger")); diff != "" {
		t.Errorf("the files changed an installation (-before +after):\n%s", diff)
	}
	if got := query1[string](t, conn, "SELECT lease::text || ' ' || (SELECT count(*) FROM ledger.notification_dispatches) FROM ledger.channels_in_force WHERE channel = 'email'"); got != "00:00:07 1" {
		t.Errorf("settings and rows left: %s", got)
	}
}

// Both sets live side by side, or apart.
func TestLedger_besideOutbox(t *testing.T) {
	t.Parallel()
	db, conn := migrated(t)
	shape := fingerprint(t, conn)
	if _, err := migrations.Up(t.Context(), config(t, db.URL), migrations.Ledger()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(shape, fingerprint(t, conn)); diff != "" {
		t.Errorf("the ledger changed the outbox (-before +after):\n%s", diff)
	}
}

func TestLedger_grantsNothingToPublic(t *testing.T) {
	t.Parallel()
	_, conn := migratedLedger(t)
	const sql = `
SELECT coalesce(array_agg(name || ' ' || privilege_type), '{}') FROM (
    SELECT p.oid::regprocedure::text AS name, a.* FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    WHERE p.pronamespace = 'ledger'::regnamespace
    UNION ALL
    SELECT c.relname, a.* FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a
    WHERE c.relnamespace = 'ledger'::regnamespace AND c.relkind IN ('r', 'S')
    UNION ALL
    SELECT n.nspname, a.* FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
    WHERE n.nspname = 'ledger'
) granted WHERE grantee = 0`
	if got := query1[[]string](t, conn, sql); len(got) > 0 {
		t.Errorf("granted to PUBLIC: %v", got)
	}
}

func TestLedger_encoding(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	conn := connect(t, config(t, db.URL))
	name := db.Name + "_latin"
	exec1(t, conn, "CREATE DATABASE "+name+" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	defer exec1(t, conn, "DROP DATABASE "+name+" WITH (FORCE)")
	cfg := config(t, db.URL)
	cfg.Database = name
	_, err := migrations.Up(t.Context(), cfg, migrations.Ledger())
	if err == nil || !strings.Contains(err.Error(), "UTF8") {
		t.Errorf("in LATIN1: %v, want it to ask for UTF8", err)
	}
}

// ledgerRoles applies the script for fresh roles and returns their names.
func ledgerRoles(tb testing.TB) (conn *pgx.Conn, worker, operator, reader string) {
	tb.Helper()
	db, conn := migratedLedger(tb)
	var script strings.Builder
	if err := migrations.Ledger().PrintRoles(&script); err != nil {
		tb.Fatal(err)
	}
	worker, operator, reader = roleName(), roleName(), roleName()
	for range 2 { // the second time changes nothing, and must not fail
		psql(tb, db.URL, script.String(), "-v", "worker_role="+worker, "-v", "operator_role="+operator, "-v", "reader_role="+reader)
	}
	for _, role := range []string{worker, operator, reader} {
		forget(tb, conn, role)
	}
	exec1(tb, conn, "INSERT INTO ledger.channels (channel, mode) VALUES ('email', 'simple')")
	exec1(tb, conn, "SELECT ledger.remember('', 'k:1', 'T', 'secret', NULL, now(), NULL), ledger.reserve('', 'k:1', 'user:1', 'email', 'w', now())")
	return conn, worker, operator, reader
}

// What nobody may: write past the functions, or call what only functions call.
var deniedToAll = []string{
	"INSERT INTO ledger.notification_dispatches (event_key, channel, state, max_attempts, created_at) VALUES ('k', 'email', 'pending', 1, now())",
	"UPDATE ledger.notification_dispatches SET state = 'delivered'",
	"DELETE FROM ledger.notification_dispatches",
	"TRUNCATE ledger.notification_dispatches",
	"DELETE FROM ledger.dispatch_attempts",
	"UPDATE ledger.channels SET on_uncertain = 'resend'",
	"DELETE FROM ledger.role_tenants",
	"SELECT * FROM ledger.role_tenants",
	"DELETE FROM ledger.audit",
	"INSERT INTO ledger.events (event_key, event_type, occurred_at, remembered_at) VALUES ('k', 'T', now(), now())",
	"SELECT payload FROM ledger.events",
	"SELECT ledger.put_in_force()",
	"SELECT ledger.end_attempt(NULL, 'failed', 'x', now())",
	"SELECT ledger.locked_row(1, 1)",
	"SELECT ledger.complete_row(NULL, 1, NULL, NULL)",
	"SELECT ledger.record(NULL, 'resolve', 'dead', 1, 'x', 'x', now())",
	"UPDATE ledger.notifications SET data = '{}'",
	"INSERT INTO ledger.parked_records (parked_at, record_offset, partition, topic, class, reason, digest, headers) VALUES (now(), 1, 0, 't', 'c', 'r', '', '{}')",
	"DELETE FROM ledger.parked_records",
	"SELECT record_value FROM ledger.parked_records",
	"DELETE FROM ledger.notifications",
	"CREATE TABLE ledger.mine (a int)",
}

func TestLedgerRoles_worker(t *testing.T) {
	t.Parallel()
	conn, worker, _, _ := ledgerRoles(t)
	exec1(t, conn, "SET SESSION AUTHORIZATION "+worker)
	denied(t, conn, deniedToAll...)
	denied(t, conn,
		"SELECT 1 FROM ledger.notification_dispatches", "SELECT 1 FROM ledger.events", "SELECT 1 FROM ledger.channels_in_force", "SELECT 1 FROM ledger.dispatch_attempts", "SELECT 1 FROM ledger.audit",
		"SELECT ledger.redrive(1, 'x', 'x')", "SELECT ledger.sweep(1)", "SELECT ledger.purge(1)", "SELECT ledger.stats()", "SELECT ledger.status('', 'k:1')",
		"INSERT INTO ledger.notifications (event_key, recipient, type, created_at) VALUES ('k:2', 'user:1', 'T', now())",
	)
	allowed(t, conn,
		"SELECT ledger.remember('', ledger.event_key('k', ARRAY['2']), 'T', 'x', NULL, now(), NULL)",
		"SELECT ledger.reserve('', 'k:2', ledger.recipient('user', '1'), 'email', 'w', now(), payload_hash => ledger.payload_hash('x'))",
		"SELECT ledger.reserve_batch('', 'k:2', ARRAY['user:2'], 'email', 'w', now())",
		"SELECT ledger.register_batch('', 'k:2', ARRAY['user:3'], 'email', now())",
		"SELECT ledger.once('', 'k:2', 'user:4', 'email', now())",
		"SELECT ledger.once_batch('', 'k:2', ARRAY['user:5'], 'email', now())",
		"SELECT ledger.claim_due('w', ARRAY['email'], 1)",
		"SELECT ledger.begin_effect(1, 1), ledger.renew(1, 1), ledger.complete(1, 1), ledger.fail(1, 1, 'retry', 'x'), ledger.skip(1, 1, 'x'), ledger.release(1, 1)",
		"SELECT ledger.complete_batch(ARRAY[1], ARRAY[1], NULL)",
		"SELECT ledger.claim_uncertain('w', ARRAY['email'], 1, NULL), ledger.resolve(1, 1, 'dead', 'w', 'x')",
		"SELECT ledger.park_record('t', 0, 1, 'foreign', 'x', 'k', 'v', '{}'), ledger.remembered_type('', 'k:1'), ledger.wake_followers('', 'k:1', 'user:1', 'email'), ledger.configure_channel('push', mode => 'guarded')",
		"INSERT INTO ledger.notifications (event_key, recipient, type, generation) VALUES ('k:2', 'user:4', 'T', ledger.generation('', 'k:2', 'user:4', 'email')) ON CONFLICT (tenant, event_key, recipient, generation) DO NOTHING",
		"SELECT * FROM ledger.notifications", "SELECT * FROM ledger.channels",
	)
}

func TestLedgerRoles_operator(t *testing.T) {
	t.Parallel()
	conn, _, operator, _ := ledgerRoles(t)
	exec1(t, conn, "SET SESSION AUTHORIZATION "+operator)
	denied(t, conn, deniedToAll...)
	denied(t, conn,
		"SELECT 1 FROM ledger.notification_dispatches", "SELECT 1 FROM ledger.notifications", "SELECT ledger.reserve('', 'k:2', 'user:1', 'email', 'w', now())",
		"SELECT ledger.complete(1, 1)", "SELECT ledger.claim_due('w', ARRAY['email'], 1)", "INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ('k', 'r', 'T')",
	)
	allowed(t, conn, "SELECT ledger.resolve(1, 1, 'dead', 'ann', 'x'), ledger.redrive(1, 'ann', 'x')", "SELECT ledger.sweep(1), ledger.purge(1)",
		"SELECT ledger.status('', 'k:1')", "SELECT ledger.stats()")
}

func TestLedgerRoles_reader(t *testing.T) {
	t.Parallel()
	conn, _, _, reader := ledgerRoles(t)
	exec1(t, conn, "SET SESSION AUTHORIZATION "+reader)
	denied(t, conn, deniedToAll...)
	denied(t, conn, "SELECT 1 FROM ledger.notifications", "SELECT ledger.reserve('', 'k:2', 'user:1', 'email', 'w', now())", "SELECT ledger.complete(1, 1)",
		"SELECT ledger.resolve(1, 1, 'dead', 'x', 'x')", "SELECT ledger.redrive(1, 'x', 'x')", "SELECT ledger.sweep(1)", "SELECT ledger.purge(1)")
	allowed(t, conn, "SELECT ledger.status('', 'k:1')", "SELECT ledger.stats()", "SELECT * FROM ledger.notification_dispatches", "SELECT * FROM ledger.dispatch_attempts",
		"SELECT * FROM ledger.audit", "SELECT * FROM ledger.channels", "SELECT event_key, event_type, occurred_at FROM ledger.events")
	if n := query1[int](t, conn, "SELECT count(*) FROM ledger.notification_dispatches"); n != 1 {
		t.Errorf("reads %d rows, want 1", n)
	}
}

// The three roles are the whole of what is granted: exactly these calls, and no more.
func TestLedgerRoles_grants(t *testing.T) {
	t.Parallel()
	conn, worker, operator, reader := ledgerRoles(t)
	const sql = `SELECT array_agg(p.proname ORDER BY p.proname) FROM pg_proc p, aclexplode(p.proacl) a WHERE p.pronamespace = 'ledger'::regnamespace AND a.grantee = $1::text::regrole`
	for role, want := range map[string]string{
		worker:   "announce_notification begin_effect claim_due claim_uncertain complete complete_batch configure_channel event_key fail generation list_notifications notifications_settled once once_batch own_tenants park_record payload_hash read_notifications recipient register_batch release remember remembered_type renew reserve reserve_batch resolve skip wake_followers",
		operator: "purge redrive resolve stats status sweep",
		reader:   "own_tenants stats status",
	} {
		if diff := cmp.Diff(strings.Fields(want), query1[[]string](t, conn, sql, role)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	other := newRole(t, conn, "NOLOGIN")
	exec1(t, conn, "SET SESSION AUTHORIZATION "+other)
	defer exec1(t, conn, "RESET SESSION AUTHORIZATION")
	denied(t, conn, deniedToAll...)
	denied(t, conn, "SELECT ledger.reserve('', 'k:2', 'user:1', 'email', 'w', now())", "SELECT ledger.own_tenants()", "SELECT ledger.event_key('e', ARRAY['1'])")
}
