package migrations

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

// ErrServerTooOld is returned by Up when the server is older than PostgreSQL 14.
var ErrServerTooOld = errors.New("migrations: server is older than PostgreSQL 14")

// Error says what stopped a migration and how far it had come.
type Error struct {
	Set     string   // name of the set
	Step    string   // what was being done: connect, check server, lock, create schema, apply, ...
	File    string   // the file that failed; nothing of it is applied. Empty: none was begun
	Applied []string // files that this call applied before; they stay
	Hint    string   // what to do about it; empty: nothing better than the cause
	Err     error    // the cause
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "migrate %q: %s", e.Set, e.Step)
	if e.File != "" {
		fmt.Fprintf(&b, " %q", e.File)
	}
	if len(e.Applied) > 0 {
		fmt.Fprintf(&b, " (%s already applied)", strings.Join(e.Applied, ", "))
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func newError(set Set, step string, err error) *Error {
	e := &Error{Set: set.name, Step: step, Err: err, Hint: hint(set, err)}
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		e.File = partial.Failed.Source.Path
		e.Err = partial.Err
		for _, r := range partial.Applied {
			e.Applied = append(e.Applied, r.Source.Path)
		}
	}
	return e
}

// hint knows the causes that an operator meets.
func hint(set Set, err error) string {
	if errors.Is(err, ErrServerTooOld) {
		return "upgrade the server; PostgreSQL 14 is the oldest that works"
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return ""
	}
	switch pg.Code {
	case "42501": // insufficient_privilege
		return fmt.Sprintf("migrate with a role that may create things, not with the relay's: it needs CREATE on the"+
			" database, or to own schema %q; relay migrate print --only %s shows the SQL for somebody who may", set.name, set.name)
	case "25006": // read_only_sql_transaction
		return "this server is a standby or read only; connect to the primary"
	case "55P03": // lock_not_available
		return "another session holds a lock on the table; look for a long transaction in pg_stat_activity and try again"
	}
	return ""
}
