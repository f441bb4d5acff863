package testenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/pgserver"
)

// Database is a fresh database.
type Database struct {
	Name string
	URL  string // a superuser's
}

// Postgres returns the shared server of the configured major version. With RELAY_TEST_POSTGRES_URL there is
// none, and the test is skipped: take NewDatabase unless the server itself is needed.
func Postgres(tb testing.TB) *pgserver.Server {
	tb.Helper()
	if os.Getenv(envPostgresURL) != "" {
		Require(tb, envPostgresURL+" is set, and this test needs a server that it started")
	}
	return PostgresMajor(tb, 0)
}

// PostgresMajor returns the shared server of a major version; 0 is the one that RELAY_TEST_POSTGRES_MAJOR
// names, else any.
func PostgresMajor(tb testing.TB, major int) *pgserver.Server {
	tb.Helper()
	return PostgresWith(tb, major, nil)
}

// PostgresWith returns the shared server of a major version, see PostgresMajor, and of these settings: tests that
// ask for the same get the same.
func PostgresWith(tb testing.TB, major int, settings map[string]string) *pgserver.Server {
	tb.Helper()
	if major == 0 {
		major = configuredMajor(tb)
	}
	name := fmt.Sprintf("postgres %d %q", major, settings) // maps print in the order of their keys
	s, err := share(tb, name, func() (*pgserver.Server, func() error, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), startTimeout)
		defer cancel()
		s, err := pgserver.Start(ctx, pgserver.Config{Major: major, Settings: testSettings(settings)})
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// Dedicated starts a server for one test, which may stop, kill and reconfigure it. It is closed at cleanup. A
// zero Major is the one that RELAY_TEST_POSTGRES_MAJOR names, else any.
func Dedicated(tb testing.TB, cfg pgserver.Config) *pgserver.Server {
	tb.Helper()
	if cfg.Major == 0 {
		cfg.Major = configuredMajor(tb)
	}
	cfg.Settings = testSettings(cfg.Settings)
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	s, err := pgserver.Start(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close PostgreSQL: %v", err)
		}
	})
	return s
}

// testSettings adds what suits many small databases to a test's own settings.
func testSettings(own map[string]string) map[string]string {
	settings := map[string]string{
		"max_connections":       "200",
		"max_replication_slots": "50",
		"max_wal_senders":       "50",
		"shared_buffers":        "64MB",
	}
	maps.Copy(settings, own)
	return settings
}

func configuredMajor(tb testing.TB) int {
	tb.Helper()
	if major := shared.majorOf(tb.Name()); major != 0 {
		return major
	}
	text := os.Getenv(envPostgresMajor)
	if text == "" {
		return 0
	}
	major, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatalf("%s=%q is not a number", envPostgresMajor, text)
	}
	return major
}

// NewDatabase makes a database on the shared server and drops it at cleanup, with its replication slots and
// whoever is connected to it.
func NewDatabase(tb testing.TB) *Database {
	tb.Helper()
	if admin := os.Getenv(envPostgresURL); admin != "" {
		return NewDatabaseOn(tb, admin)
	}
	return NewDatabaseOn(tb, PostgresMajor(tb, 0).DSN("postgres", ""))
}

// NewDatabaseOn makes a database on the server of a superuser's URL and drops it at cleanup. A server that no
// longer answers then is left alone.
func NewDatabaseOn(tb testing.TB, admin string) *Database {
	tb.Helper()
	u, err := url.Parse(admin)
	if err != nil {
		tb.Fatal("parse PostgreSQL URL: it is not one") // err would show the password
	}
	db := &Database{Name: uniqueName(tb, "_", 40)}
	u.Path = "/" + db.Name
	db.URL = u.String()

	if err := withConn(tb.Context(), admin, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+db.Name)
		return err
	}); err != nil {
		tb.Fatalf("create database %q: %v", db.Name, err)
	}
	tb.Cleanup(func() {
		if err := withConn(context.WithoutCancel(tb.Context()), admin, db.drop); err != nil {
			if refused := (*pgconn.ConnectError)(nil); errors.As(err, &refused) {
				tb.Logf("database %q is left behind: its server is gone", db.Name)
				return
			}
			tb.Errorf("drop database %q: %v", db.Name, err)
		}
	})
	return db
}

// drop ends the database's sessions and drops it, which drops its slots.
func (db *Database) drop(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "ALTER DATABASE "+db.Name+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		const endSessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"
		if _, err := conn.Exec(ctx, endSessions, db.Name); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "DROP DATABASE "+db.Name+" WITH (FORCE)")
		// A slot whose walsender was told to go is in use for a moment more.
		const objectInUse = "55006"
		if refused := (*pgconn.PgError)(nil); !errors.As(err, &refused) || refused.Code != objectInUse {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// withConn runs f with a connection of its own, for at most 20 s.
func withConn(ctx context.Context, dsn string, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return f(ctx, conn)
}

// uniqueName derives a name from the test's, in lower-case letters, digits and sep.
func uniqueName(tb testing.TB, sep string, most int) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return rune(sep[0])
	}, strings.TrimPrefix(tb.Name(), "Test"))
	id := strings.ReplaceAll(uuid.NewString(), "-", "")[:12]
	return "t" + sep + name[:min(len(name), most)] + sep + id
}
