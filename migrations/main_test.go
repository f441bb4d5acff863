package migrations_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func config(tb testing.TB, url string) *pgx.ConnConfig {
	tb.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	return cfg
}

func connect(tb testing.TB, cfg *pgx.ConnConfig) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.ConnectConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec1(tb testing.TB, conn *pgx.Conn, sql string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

func query1[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// migrated returns a superuser's connection to a fresh database with the set applied.
func migrated(tb testing.TB) (*testenv.Database, *pgx.Conn) {
	tb.Helper()
	db := testenv.NewDatabase(tb)
	cfg := config(tb, db.URL)
	if _, err := migrations.Up(tb.Context(), cfg, migrations.Outbox()); err != nil {
		tb.Fatal(err)
	}
	return db, connect(tb, cfg)
}

// psql feeds script to psql, with its variables set, in one transaction.
func psql(tb testing.TB, url, script string, args ...string) {
	tb.Helper()
	program, err := exec.LookPath("psql")
	if err != nil {
		testenv.Require(tb, "psql is not installed")
	}
	args = append([]string{"-X", "-q", "--single-transaction", "-v", "ON_ERROR_STOP=1", "-d", url}, args...)
	cmd := exec.CommandContext(tb.Context(), program, args...)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("psql: %v\n%s", err, out)
	}
}

func printed(tb testing.TB) string {
	tb.Helper()
	var b strings.Builder
	if err := migrations.Outbox().Print(&b); err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// fingerprint describes everything in schema outbox, see fingerprintOf.
func fingerprint(tb testing.TB, conn *pgx.Conn) string {
	tb.Helper()
	return fingerprintOf(tb, conn, "outbox")
}

// fingerprintOf describes everything in a schema except the version table: columns, constraints, indexes, functions,
// rights and comments, one a line.
func fingerprintOf(tb testing.TB, conn *pgx.Conn, schema string) string {
	tb.Helper()
	sql := `
WITH rel AS (
    SELECT c.* FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname NOT LIKE 'migrations%'
), fact AS (
    SELECT format('relation %s kind %s options %s acl %s: %s', relname, relkind, reloptions, relacl, obj_description(oid, 'pg_class')) AS line FROM rel
    UNION ALL
    SELECT format('column %s.%s %s null %s default %s acl %s: %s', rel.relname, a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull,
                  pg_get_expr(d.adbin, d.adrelid), a.attacl, col_description(a.attrelid, a.attnum))
    FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    SELECT format('constraint %s: %s', c.conname, pg_get_constraintdef(c.oid)) FROM rel JOIN pg_constraint c ON c.conrelid = rel.oid
    UNION ALL
    SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM rel JOIN pg_index i ON i.indrelid = rel.oid
    UNION ALL
    SELECT format('function %s acl %s: %s %s', p.oid::regprocedure, p.proacl, pg_get_functiondef(p.oid), obj_description(p.oid, 'pg_proc'))
    FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace
    UNION ALL
    SELECT format('schema %s acl %s: %s', nspname, nspacl, obj_description(oid, 'pg_namespace')) FROM pg_namespace WHERE nspname = 'outbox'
)
SELECT string_agg(line, E'\n' ORDER BY line) FROM fact`
	sql = strings.ReplaceAll(sql, "'outbox'", "'"+schema+"'")
	return query1[string](tb, conn, sql)
}
