package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/migrations"
)

// What the script grants is what Grants lists: no more and no less.
func TestGrants(t *testing.T) {
	t.Parallel()
	_, super, relay, _ := withRoles(t)
	grants, err := migrations.Outbox().Grants()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range grants {
		name := strings.TrimPrefix(g.Object, "outbox.")
		switch {
		case g.Kind == "DATABASE":
			name = "database"
		case g.Kind == "SCHEMA":
			name = "schema " + g.Object
		}
		if g.Columns != "" {
			for _, c := range strings.Split(g.Columns, ", ") {
				got = append(got, g.Privilege+" "+name+"."+c)
			}
			continue
		}
		got = append(got, g.Privilege+" "+name)
	}
	want := privileges(t, super, relay)
	slices.Sort(got)
	slices.Sort(want)
	// SELECT on the version table depends on whether there is one, so it is no GRANT of its own.
	want = slices.DeleteFunc(want, func(s string) bool { return s == "SELECT migrations" })
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	// The statements give back what was taken.
	quoted, database := pgx.Identifier{relay}.Sanitize(), pgx.Identifier{query1[string](t, super, "SELECT current_database()::text")}.Sanitize()
	exec1(t, super, "DROP OWNED BY "+quoted)
	for _, g := range grants {
		exec1(t, super, g.String(database, quoted))
	}
	again := slices.DeleteFunc(privileges(t, super, relay), func(s string) bool { return s == "SELECT migrations" })
	slices.Sort(again)
	if !slices.Equal(again, want) {
		t.Errorf("granted one by one %q, want %q", again, want)
	}
}

// Every object that a file is said to make is there once the set is applied, and every file makes one.
func TestObjects(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	objects, err := migrations.Outbox().Objects()
	if err != nil {
		t.Fatal(err)
	}
	byFile := map[string]int{}
	for _, o := range objects {
		byFile[o.File]++
		sql := fmt.Sprintf("SELECT to_regclass('%s') IS NOT NULL", o.Name)
		switch o.Kind {
		case "FUNCTION":
			sql = fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_proc WHERE (pronamespace::regnamespace || '.' || proname) = '%s')", o.Name)
		case "COLUMN":
			sql = fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('%s') AND attname = '%s')", o.Name, o.Column)
		}
		if !query1[bool](t, conn, sql) {
			t.Errorf("%s: %s is not there", o.File, o)
		}
	}
	for file := range byFile {
		if byFile[file] == 0 {
			t.Errorf("%s makes nothing that can be looked for", file)
		}
	}
	if len(byFile) < 3 {
		t.Errorf("got objects of %d files: %v", len(byFile), byFile)
	}
}
