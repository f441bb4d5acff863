package migrations

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// lockID is the key of the advisory lock that a migrating process holds: "relay" in ASCII.
const lockID = 0x72656c6179

// Migration is one file of a set.
type Migration struct {
	Set       string    // name of its set
	File      string    // for example 00001_events_and_relay_state.sql
	Version   int64     // the number its name begins with
	AppliedAt time.Time // zero: not applied, as far as the set's version table knows
}

// Up applies the files of a set that the database has not seen yet, each in a transaction of its own, and returns
// them; none is not an error. Files applied before by psql run once more, which changes nothing, and are recorded.
//
// Up is safe to call from several processes at once: an advisory lock lets one through after the other, and each
// waits for its turn until ctx ends, five minutes at most. It opens two connections of its own from cfg, which must
// reach the primary and not through a pooler that shares sessions between transactions.
//
// Errors are of type *Error; Up never leaves a file half applied.
func Up(ctx context.Context, cfg *pgx.ConnConfig, set Set) ([]Migration, error) {
	db := open(cfg)
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, newError(set, "connect", err)
	}
	defer conn.Close()
	if err := checkServer(ctx, conn); err != nil {
		return nil, newError(set, "check server", err)
	}

	// Held round everything and not given to the provider, which looks at its version table, and makes it, before
	// it takes its lock. The session's end releases it.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(lockID), lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, newError(set, "lock", err)
	}
	if err := locker.SessionLock(ctx, conn); err != nil {
		return nil, newError(set, "lock", err)
	}

	if err := ensureSchema(ctx, conn, set); err != nil {
		return nil, newError(set, "create schema", err)
	}
	provider, err := newProvider(db, set)
	if err != nil {
		return nil, newError(set, "read files", err)
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, newError(set, "apply", err)
	}
	var applied []Migration
	now := time.Now()
	for _, r := range results {
		applied = append(applied, Migration{Set: set.name, File: r.Source.Path, Version: r.Source.Version, AppliedAt: now})
	}
	return applied, nil
}

// Status lists the files of a set in order and says which are applied. It changes nothing, not even in an empty
// database. Errors are of type *Error.
func Status(ctx context.Context, cfg *pgx.ConnConfig, set Set) ([]Migration, error) {
	db := open(cfg)
	defer db.Close()
	provider, err := newProvider(db, set)
	if err != nil {
		return nil, newError(set, "read files", err)
	}
	var tracked bool
	err = db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", set.versionTable()).Scan(&tracked)
	if err != nil {
		return nil, newError(set, "read status", err)
	}
	var list []Migration
	if !tracked { // the provider would make its table
		for _, s := range provider.ListSources() {
			list = append(list, Migration{Set: set.name, File: s.Path, Version: s.Version})
		}
		return list, nil
	}
	statuses, err := provider.Status(ctx)
	if err != nil {
		return nil, newError(set, "read status", err)
	}
	for _, s := range statuses {
		m := Migration{Set: set.name, File: s.Source.Path, Version: s.Source.Version}
		if s.State == goose.StateApplied {
			m.AppliedAt = s.AppliedAt
		}
		list = append(list, m)
	}
	return list, nil
}

// open returns a pool of sessions that see no schema of a user, that keep time in UTC, because the version table's
// column has no time zone, and that give up on a table lock after some seconds, unless cfg says otherwise: while a
// migration waits for one, every writer waits behind it.
func open(cfg *pgx.ConnConfig) *sql.DB {
	settings := "SET search_path = pg_catalog, pg_temp; SET timezone = 'UTC'"
	if _, ok := cfg.RuntimeParams["lock_timeout"]; !ok {
		settings += "; SET lock_timeout = '5s'"
	}
	return stdlib.OpenDB(*cfg, stdlib.OptionAfterConnect(func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, settings)
		return err
	}))
}

// checkServer refuses a server on which the files cannot work.
func checkServer(ctx context.Context, conn *sql.Conn) error {
	var version int
	var name string
	err := conn.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int, current_setting('server_version')").
		Scan(&version, &name)
	if err != nil {
		return err
	}
	if version < 140000 {
		return fmt.Errorf("%w: it is %s", ErrServerTooOld, name)
	}
	return nil
}

// ensureSchema makes the schema, for the version table is in it and comes before the first file. CREATE SCHEMA IF
// NOT EXISTS would ask for CREATE on the database even where the schema exists.
func ensureSchema(ctx context.Context, conn *sql.Conn, set Set) error {
	var exists bool
	if err := conn.QueryRowContext(ctx, "SELECT to_regnamespace($1) IS NOT NULL", set.name).Scan(&exists); err != nil {
		return err
	}
	if exists {
		return nil
	}
	_, err := conn.ExecContext(ctx, "CREATE SCHEMA "+pgx.Identifier{set.name}.Sanitize())
	return err
}

func newProvider(db *sql.DB, set Set) (*goose.Provider, error) {
	fsys, err := fs.Sub(files, set.name)
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, fsys, goose.WithTableName(set.versionTable()),
		goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true))
}
