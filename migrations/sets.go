package migrations

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"path"
)

//go:embed outbox/*.sql ledger/*.sql roles/*.sql
var files embed.FS

// Set is one series of SQL files, numbered from 1 without gaps. It brings one schema to its newest form and keeps
// its version in a table of its own inside that schema, so that sets apply independently of one another.
type Set struct {
	name   string // of the folder and of the schema
	grants string // file with the rights of the roles
}

// Outbox is the set for the database that holds the events: schema outbox.
func Outbox() Set { return Set{name: "outbox", grants: "roles/relay.sql"} }

// Ledger is the set for the database that holds the deliveries, which may be another one: schema ledger.
func Ledger() Set { return Set{name: "ledger", grants: "roles/ledger.sql"} }

// String returns the set's name, which is also its schema's.
func (s Set) String() string { return s.name }

// versionTable is where goose records what it applied.
func (s Set) versionTable() string { return s.name + ".migrations" }

// Print writes the set's SQL to w in the order of its files, ready for psql --single-transaction.
func (s Set) Print(w io.Writer) error {
	names, err := fs.Glob(files, s.name+"/*.sql") // sorted: ReadDir sorts, and Glob keeps its order
	if err != nil {
		return fmt.Errorf("list migrations %q: %w", s.name, err)
	}
	for i, name := range names {
		separator := "\n"
		if i == 0 {
			separator = ""
		}
		if err := printFile(w, separator+"-- "+path.Base(name)+"\n\n", name); err != nil {
			return err
		}
	}
	return nil
}

// PrintRoles writes the psql script to w that makes the set's roles and grants them exactly what they need.
func (s Set) PrintRoles(w io.Writer) error { return printFile(w, "", s.grants) }

func printFile(w io.Writer, before, name string) error {
	sql, err := fs.ReadFile(files, name)
	if err != nil {
		return fmt.Errorf("read migration %q: %w", name, err)
	}
	if _, err := fmt.Fprintf(w, "%s%s", before, sql); err != nil {
		return fmt.Errorf("print migration %q: %w", name, err)
	}
	return nil
}
