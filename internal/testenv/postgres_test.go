package testenv_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// stream starts replication from a new slot of the database and leaves its connection open. The caller keeps it:
// an unreachable one would be closed by the garbage collector.
func stream(t *testing.T, db *testenv.Database, slot string) *pgconn.PgConn {
	t.Helper()
	conn := connect(t, db.URL)
	for _, sql := range []string{
		"CREATE PUBLICATION p",
		"SELECT pg_create_logical_replication_slot('" + slot + "', 'pgoutput')",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	repl, err := pgconn.Connect(t.Context(), db.URL+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}
	repl.Frontend().SendQuery(&pgproto3.Query{
		String: "START_REPLICATION SLOT " + slot + " LOGICAL 0/0 (proto_version '1', publication_names 'p')",
	})
	if err := repl.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := repl.ReceiveMessage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			t.Fatal(m.Message)
		case *pgproto3.CopyBothResponse:
			return repl
		}
	}
}

// A database is fresh, and gone afterwards whatever the test left open: sessions, slots, a running stream.
func TestNewDatabase(t *testing.T) {
	t.Parallel()
	admin := connect(t, testenv.NewDatabase(t).URL)
	defer admin.Close(context.WithoutCancel(t.Context()))
	slot := fmt.Sprintf("s_%d", time.Now().UnixNano())

	var names []string
	var open *pgconn.PgConn
	t.Run("use", func(t *testing.T) {
		a, b := testenv.NewDatabase(t), testenv.NewDatabase(t)
		names = []string{a.Name, b.Name}
		if a.Name == b.Name {
			t.Errorf("two databases of one name %q", a.Name)
		}
		conn := connect(t, a.URL)
		if got := query[string](t, conn, "SELECT current_database()"); got != a.Name {
			t.Errorf("connected to %q, want %q", got, a.Name)
		}
		if got := query[string](t, conn, "SHOW wal_level"); got != "logical" {
			t.Errorf("wal_level: got %q, want logical", got)
		}
		if !query[bool](t, conn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") {
			t.Error("not a superuser")
		}
		open = stream(t, a, slot)
		walsender := query[int](t, admin, "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1 AND active", slot)
		if os.Getenv("RELAY_TEST_POSTGRES_URL") == "" { // one of ours, so on this machine: be slow to go
			if err := syscall.Kill(walsender, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(500*time.Millisecond, func() { syscall.Kill(walsender, syscall.SIGCONT) })
		}
	})
	if got := query[int](t, admin, "SELECT count(*) FROM pg_database WHERE datname = ANY($1)", names); got != 0 {
		t.Errorf("%d databases left", got)
	}
	if got := query[int](t, admin, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", slot); got != 0 {
		t.Errorf("%d slots left", got)
	}
	open.Close(context.WithoutCancel(t.Context()))
}

func TestPostgres_shared(t *testing.T) {
	t.Parallel()
	a, b := testenv.Postgres(t), testenv.PostgresMajor(t, 0)
	if a != b {
		t.Error("two servers of one configuration")
	}
	settings := map[string]string{"wal_sender_timeout": "7s", "work_mem": "5MB"}
	c := testenv.PostgresWith(t, 0, settings)
	if c == a {
		t.Error("one server of two configurations")
	}
	if testenv.PostgresWith(t, 0, settings) != c {
		t.Error("two servers of one configuration")
	}
	conn := connect(t, testenv.NewDatabaseOn(t, c.DSN("postgres", "")).URL)
	if got := query[string](t, conn, "SHOW wal_sender_timeout"); got != "7s" {
		t.Errorf("wal_sender_timeout: got %q, want 7s", got)
	}
}

// A server of the test's own may die: the databases on it are no longer cleaned up, and no failure.
func TestDedicated(t *testing.T) {
	t.Parallel()
	var s *pgserver.Server
	t.Run("use", func(t *testing.T) {
		s = testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"max_connections": "30"}})
		conn := connect(t, testenv.NewDatabaseOn(t, s.DSN("postgres", "")).URL)
		if got := query[string](t, conn, "SHOW max_connections"); got != "30" {
			t.Errorf("max_connections: got %q, want 30", got)
		}
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	})
	if err := s.Restart(t.Context()); err == nil {
		t.Error("the server was not closed with its test")
	}
}

func TestNewDatabase_elsewhere(t *testing.T) {
	s := testenv.PostgresMajor(t, 0)
	u, err := url.Parse(s.DSN("postgres", ""))
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery += "&application_name=elsewhere"
	t.Setenv("RELAY_TEST_POSTGRES_URL", u.String())
	t.Setenv("RELAY_TEST_REQUIRE", "")
	conn := connect(t, testenv.NewDatabase(t).URL)
	defer conn.Close(context.WithoutCancel(t.Context()))
	if got := query[string](t, conn, "SHOW application_name"); got != "elsewhere" {
		t.Errorf("application_name: got %q; the URL was not used", got)
	}
	if r := record(t, func(tb testing.TB) { testenv.Postgres(tb) }); r.skipped == "" {
		t.Error("a test that needs a server of ours was not skipped")
	}

	t.Setenv("RELAY_TEST_POSTGRES_URL", "")
	t.Setenv("RELAY_TEST_POSTGRES_MAJOR", "eighteen")
	if r := record(t, func(tb testing.TB) { testenv.NewDatabase(tb) }); r.failed == "" {
		t.Error("a major version that is no number was taken")
	}
}
