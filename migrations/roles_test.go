package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

func roleName() string { return "t_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:16] }

// forget drops a role with all its rights in conn's database at cleanup.
func forget(tb testing.TB, conn *pgx.Conn, role string) {
	tb.Helper()
	tb.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "RESET SESSION AUTHORIZATION; DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role); err != nil {
			tb.Errorf("drop role: %v", err)
		}
	})
}

func newRole(tb testing.TB, conn *pgx.Conn, options string) string {
	tb.Helper()
	role := roleName()
	exec1(tb, conn, "CREATE ROLE "+role+" "+options)
	forget(tb, conn, role)
	return role
}

// asRole returns a configuration that logs in as role.
func asRole(tb testing.TB, db *testenv.Database, conn *pgx.Conn, role string) *pgx.ConnConfig {
	tb.Helper()
	password := roleName()
	exec1(tb, conn, "ALTER ROLE "+role+" PASSWORD '"+password+"'")
	cfg := config(tb, db.URL)
	cfg.User, cfg.Password = role, password
	return cfg
}

// withRoles applies the script for two fresh roles and returns their names.
func withRoles(tb testing.TB) (db *testenv.Database, conn *pgx.Conn, relay, app string) {
	tb.Helper()
	db, conn = migrated(tb)
	var script strings.Builder
	if err := migrations.Outbox().PrintRoles(&script); err != nil {
		tb.Fatal(err)
	}
	relay, app = roleName(), roleName()
	for range 2 { // the second time changes nothing, and must not fail
		psql(tb, db.URL, script.String(), "-v", "relay_role="+relay, "-v", "app_role="+app)
	}
	forget(tb, conn, relay)
	forget(tb, conn, app)
	return db, conn, relay, app
}

// privileges lists what was granted to a role on things of schema outbox and on the database.
func privileges(tb testing.TB, conn *pgx.Conn, role string) []string {
	tb.Helper()
	return query1[[]string](tb, conn, `
SELECT array_agg(a.privilege_type || ' ' || name ORDER BY name, a.privilege_type) FROM (
    SELECT relname::text AS name, relacl AS acl FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT relname || '.' || attname, attacl FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT proname, proacl FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT 'schema ' || nspname, nspacl FROM pg_namespace
    UNION ALL
    SELECT 'database', datacl FROM pg_database WHERE datname = current_database()
) object, aclexplode(acl) a WHERE a.grantee = $1::text::regrole`, role)
}

func allowed(tb testing.TB, conn *pgx.Conn, statements ...string) {
	tb.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(tb.Context(), sql); err != nil {
			tb.Errorf("%s: %v", sql, err)
		}
	}
}

func denied(tb testing.TB, conn *pgx.Conn, statements ...string) {
	tb.Helper()
	for _, sql := range statements {
		_, err := conn.Exec(tb.Context(), sql)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
			tb.Errorf("%s: got %v, want permission denied", sql, err)
		}
	}
}

func TestRoles_relay(t *testing.T) {
	t.Parallel()
	db, super, relay, _ := withRoles(t)
	exec1(t, super, "SELECT outbox.publish('key', 'order', '1', 'OrderPlaced', '{}')")
	exec1(t, super, "CREATE TABLE public.customers (name text)")
	cfg := asRole(t, db, super, relay)
	conn := connect(t, cfg)

	allowed(t, conn,
		"SELECT count(*) FROM outbox.events",
		"INSERT INTO outbox.relay_state (slot, system_identifier, timeline, incarnation, phase) VALUES ('relay', '7', 1, 1, 'creating')",
		"UPDATE outbox.relay_state SET phase = 'streaming', confirmed_lsn = '0/1', owner = 'x'",
		"DELETE FROM outbox.relay_state",
		"INSERT INTO outbox.backlog (slot, ordinal, source_table, event_id) VALUES ('relay', 1, 'outbox.events', 'x')",
		"UPDATE outbox.backlog SET ordinal = 2",
		"DELETE FROM outbox.backlog",
		"INSERT INTO outbox.recoveries (slot, actor, cause, scope, events, to_system_identifier, to_incarnation, to_lsn) VALUES ('relay', 'x', 'slot_lost', 'all', 0, '7', 2, '0/1')",
		"SELECT count(*) FROM outbox.recoveries",
		"INSERT INTO outbox.dead_letters (slot, source_table, event_id, position, is_null, headers, class, reason, state) VALUES ('relay', 't', 'x', '00112233aabbccdd-00000001-0000000000000001-00000001', true, '[]', 'no_key', 'r', 'parked')",
		"UPDATE outbox.dead_letters SET state = 'published'",
		"DELETE FROM outbox.dead_letters",
		"UPDATE outbox.requests SET state = 'done'",
	)
	denied(t, conn,
		"INSERT INTO outbox.events (event_key, aggregate_type, aggregate_id, event_type) VALUES ('k', 't', 'i', 'e')",
		"SELECT outbox.publish('k', 't', 'i', 'e')",
		"UPDATE outbox.events SET tenant = 'other'",
		"DELETE FROM outbox.events",
		"TRUNCATE outbox.relay_state",
		"UPDATE outbox.recoveries SET actor = 'nobody'",
		"DELETE FROM outbox.recoveries",
		"CREATE TABLE outbox.mine (a int)",
		"CREATE SCHEMA mine",
		"CREATE PUBLICATION mine FOR TABLE outbox.events",
		"ALTER TABLE outbox.relay_state ADD COLUMN mine int",
		"SELECT name FROM public.customers",
	)
	if query1[int](t, super, "SELECT current_setting('server_version_num')::int") >= 150000 { // before, PUBLIC may
		denied(t, conn, "CREATE TABLE public.mine (a int)")
	}
	wantPrivileges := []string{
		"DELETE backlog", "INSERT backlog", "SELECT backlog", "UPDATE backlog", "CONNECT database",
		"DELETE dead_letters", "INSERT dead_letters", "SELECT dead_letters", "UPDATE dead_letters", "SELECT events",
		"INSERT recoveries", "SELECT recoveries", "DELETE relay_state", "INSERT relay_state", "SELECT relay_state", "UPDATE relay_state",
		"DELETE requests", "INSERT requests", "SELECT requests", "UPDATE requests", "USAGE schema outbox",
	}
	if diff := cmp.Diff(wantPrivileges, privileges(t, super, relay)); diff != "" {
		t.Errorf("privileges (-want +got):\n%s", diff)
	}
	var superuser, createrole, createdb, replication bool
	if err := super.QueryRow(t.Context(), "SELECT rolsuper, rolcreaterole, rolcreatedb, rolreplication FROM pg_roles WHERE rolname = $1", relay).
		Scan(&superuser, &createrole, &createdb, &replication); err != nil {
		t.Fatal(err)
	}
	if superuser || createrole || createdb || !replication {
		t.Errorf("role: superuser %t, createrole %t, createdb %t, replication %t", superuser, createrole, createdb, replication)
	}

	// What it is for: a logical replication session on this database.
	cfg.RuntimeParams["replication"] = "database"
	walsender, err := pgconn.ConnectConfig(t.Context(), &cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer walsender.Close(context.WithoutCancel(t.Context()))
	if _, err := walsender.Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll(); err != nil {
		t.Errorf("IDENTIFY_SYSTEM: %v", err)
	}
}

func TestRoles_application(t *testing.T) {
	t.Parallel()
	_, conn, _, app := withRoles(t)
	want := []string{
		"EXECUTE emit", "INSERT events.aggregate_id", "INSERT events.aggregate_type", "INSERT events.event_key", "INSERT events.event_type",
		"INSERT events.headers", "INSERT events.id", "INSERT events.occurred_at", "INSERT events.partition_key", "INSERT events.payload",
		"INSERT events.payload_bytes", "INSERT events.tenant", "INSERT events.topic", "EXECUTE headers_fault", "EXECUTE headers_valid", "EXECUTE publish",
		"USAGE schema outbox", "EXECUTE uuid_v7",
	}
	if diff := cmp.Diff(want, privileges(t, conn, app)); diff != "" {
		t.Errorf("privileges (-want +got):\n%s", diff)
	}
	exec1(t, conn, "SET SESSION AUTHORIZATION "+app)
	allowed(t, conn,
		`SELECT outbox.publish(event_key => 'k', aggregate_type => 't', aggregate_id => 'i', event_type => 'e', payload => '{}', headers => '{"a": "b"}')`,
		`INSERT INTO outbox.events (event_key, aggregate_type, aggregate_id, event_type, headers) VALUES ('k', 't', 'i', 'e', '{"a": "b"}')`,
		`SELECT outbox.emit(event_key => 'k', aggregate_type => 't', aggregate_id => 'i', event_type => 'e', payload => '{}', headers => '{"a": "b"}')`,
	)
	denied(t, conn,
		"SELECT count(*) FROM outbox.events",
		"SELECT count(*) FROM outbox.relay_state",
		"INSERT INTO outbox.relay_state (slot, system_identifier, timeline, incarnation, phase) VALUES ('relay', '7', 1, 1, 'creating')",
		"UPDATE outbox.events SET tenant = 'other'",
		"DELETE FROM outbox.events",
		"CREATE TABLE outbox.mine (a int)",
		`SELECT outbox.emit_field('')`,
		"INSERT INTO outbox.events (event_key, aggregate_type, aggregate_id, event_type, xact_id) VALUES ('k', 't', 'i', 'e', '1')",
	)
}

func TestRoles_others(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	other := newRole(t, conn, "NOLOGIN")
	exec1(t, conn, "SET SESSION AUTHORIZATION "+other)
	denied(t, conn, "SELECT outbox.publish('k', 't', 'i', 'e')", "SELECT outbox.emit('k', 't', 'i', 'e')", "SELECT outbox.uuid_v7()", "SELECT 1 FROM outbox.events", "SELECT 1 FROM outbox.relay_state")
}

// TestRoles_operator wants an operator to see dead letters and to ask, and to change nothing by hand.
func TestRoles_operator(t *testing.T) {
	t.Parallel()
	db, super := migrated(t)
	var script strings.Builder
	if err := migrations.Outbox().PrintRoles(&script); err != nil {
		t.Fatal(err)
	}
	relay, app, operator := roleName(), roleName(), roleName()
	for range 2 {
		psql(t, db.URL, script.String(), "-v", "relay_role="+relay, "-v", "app_role="+app, "-v", "operator_role="+operator)
	}
	for _, role := range []string{relay, app, operator} {
		forget(t, super, role)
	}
	exec1(t, super, "ALTER ROLE "+operator+" LOGIN")
	conn := connect(t, asRole(t, db, super, operator))
	allowed(t, conn,
		"SELECT count(*) FROM outbox.dead_letters",
		"INSERT INTO outbox.requests (slot, kind, args, actor, reason) VALUES ('relay', 'requeue', '{}', 'me', 'why')",
		"SELECT count(*) FROM outbox.requests",
	)
	denied(t, conn,
		"INSERT INTO outbox.requests (slot, kind, args, actor, reason, state) VALUES ('relay', 'requeue', '{}', 'me', 'why', 'done')",
		"UPDATE outbox.requests SET state = 'done'",
		"DELETE FROM outbox.requests",
		"UPDATE outbox.dead_letters SET state = 'published'",
		"DELETE FROM outbox.dead_letters",
		"SELECT count(*) FROM outbox.events",
		"SELECT outbox.publish('k', 't', 'i', 'e')",
	)
}

// TestRoles_replay gives the rights to replay and to prune to whom they are asked for, and no more.
func TestRoles_replay(t *testing.T) {
	t.Parallel()
	db, conn, relay, _ := withRoles(t)
	var script strings.Builder
	if err := migrations.Outbox().PrintRoles(&script); err != nil {
		t.Fatal(err)
	}
	replayer := roleName()
	psql(t, db.URL, script.String(), "-v", "relay_role="+relay, "-v", "app_role="+relay+"_app", "-v", "replay_role="+replayer, "-v", "prune=1")
	forget(t, conn, replayer)
	forget(t, conn, relay+"_app")
	want := []string{
		"SELECT backlog", "CONNECT database", "SELECT dead_letters", "SELECT events", "SELECT relay_state", "SELECT requests",
		"INSERT requests.actor", "INSERT requests.args", "INSERT requests.kind", "UPDATE requests.progress", "INSERT requests.reason",
		"INSERT requests.slot", "UPDATE requests.state", "UPDATE requests.updated_at", "USAGE schema outbox",
	}
	if diff := cmp.Diff(want, privileges(t, conn, replayer)); diff != "" {
		t.Errorf("privileges (-want +got):\n%s", diff)
	}
	exec1(t, conn, "SET SESSION AUTHORIZATION "+relay)
	allowed(t, conn, "DELETE FROM outbox.events")
	denied(t, conn, "UPDATE outbox.events SET tenant = 'other'", "SELECT id FROM outbox.events FOR UPDATE")
}
