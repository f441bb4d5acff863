package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/migrations"
)

// TestEmit_Refuses gives outbox.emit what outbox.publish refuses: both refuse it, for the same reason.
func TestEmit_Refuses(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	long := func(n int) string { return "repeat('x', " + strings.Repeat("1+", n-1) + "1)" }
	for _, args := range []string{
		"NULL, 't', 'i', 'e'", "'k', NULL, 'i', 'e'", "'k', 't', NULL, 'e'", "'k', 't', 'i', NULL",
		"'', 't', 'i', 'e'", "'k', '', 'i', 'e'", "'k', 't', '', 'e'", "'k', 't', 'i', ''",
		long(256) + ", 't', 'i', 'e'", "'k', " + long(65) + ", 'i', 'e'", "'k', 't', " + long(256) + ", 'e'", "'k', 't', 'i', " + long(65),
		"'k', 't', 'i', 'e', '{}', '{}'", "'k', 't', 'i', 'e', headers => '[]'", `'k', 't', 'i', 'e', headers => '{"id": "x"}'`,
		"'k', 't', 'i', 'e', topic => '__x'", "'k', 't', 'i', 'e', topic => 'a b'", "'k', 't', 'i', 'e', topic => '..'", "'k', 't', 'i', 'e', topic => ''",
		"'k', 't', 'i', 'e', partition_key => ''", "'k', 't', 'i', 'e', tenant => " + long(65),
		"'k', 't', 'i', 'e', occurred_at => 'infinity'", "'k', 't', 'i', 'e', occurred_at => '0044-03-15 BC'",
	} {
		refusal := func(function string) [3]string {
			_, err := conn.Exec(t.Context(), "SELECT outbox."+function+"("+args+")")
			pg, ok := errors.AsType[*pgconn.PgError](err)
			if !ok {
				t.Errorf("outbox.%s(%s): %v", function, args, err)
				return [3]string{}
			}
			return [3]string{pg.Code, pg.ConstraintName, pg.ColumnName}
		}
		if diff := cmp.Diff(refusal("publish"), refusal("emit")); diff != "" {
			t.Errorf("%s (-publish +emit):\n%s", args, diff)
		}
	}
}

// TestEmit_Hostile: a search path with functions of the same names in it changes nothing, though the function runs
// with its owner's rights.
func TestEmit_Hostile(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	exec1(t, conn, `
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.pg_logical_emit_message(boolean, text, bytea) RETURNS pg_lsn LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$;
CREATE FUNCTION hostile.uuid_send(uuid) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$;
CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'hostile'; END $$;
SET search_path = hostile, pg_catalog`)
	exec1(t, conn, "SELECT outbox.emit('k', 't', 'i', 'e', '{}')")
}

// TestRoles_RevokeEmit: with the switch on, only outbox.emit can write what outbox.emit writes.
func TestRoles_RevokeEmit(t *testing.T) {
	t.Parallel()
	db, conn, relay, app := withRoles(t)
	forge := []string{
		"SELECT pg_logical_emit_message(true, 'outbox', 'x'::text)", `SELECT pg_logical_emit_message(true, 'outbox', '\x01'::bytea)`,
	}
	other := newRole(t, conn, "NOLOGIN")
	exec1(t, conn, "SET SESSION AUTHORIZATION "+other)
	allowed(t, conn, forge...) // PostgreSQL's own default
	exec1(t, conn, "RESET SESSION AUTHORIZATION")
	var script strings.Builder
	if err := migrations.Outbox().PrintRoles(&script); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		psql(t, db.URL, script.String(), "-v", "relay_role="+relay, "-v", "app_role="+app, "-v", "revoke_emit=1")
	}
	for _, role := range []string{other, app, relay} {
		exec1(t, conn, "SET SESSION AUTHORIZATION "+role)
		denied(t, conn, forge...)
		exec1(t, conn, "RESET SESSION AUTHORIZATION")
	}
	if n := query1[int](t, conn, `
SELECT count(*) FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner)))
WHERE proname = 'pg_logical_emit_message' AND grantee = 0`); n != 0 {
		t.Errorf("PUBLIC may execute %d of the functions", n)
	}
	exec1(t, conn, "SET SESSION AUTHORIZATION "+app)
	allowed(t, conn, "SELECT outbox.emit('k', 't', 'i', 'e', '{}')")
}
