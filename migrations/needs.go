package migrations

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Grant is a right that the script of PrintRoles gives the set's service role: the relay, or the ledger's user.
type Grant struct {
	Privilege string // SELECT, INSERT, ...
	Kind      string // TABLE, SCHEMA, SEQUENCE, FUNCTION, DATABASE
	Object    string // schema-qualified; empty for the database
	Columns   string // the columns it is limited to, as they are written; empty: all
}

// String is the statement that gives it to a role, both names quoted by the caller.
func (g Grant) String(database, role string) string {
	columns, object := "", g.Object
	if g.Columns != "" {
		columns = " (" + g.Columns + ")"
	}
	if g.Kind == "DATABASE" {
		object = database
	}
	kind := g.Kind + " "
	if g.Kind == "TABLE" {
		kind = ""
	}
	return fmt.Sprintf("GRANT %s%s ON %s%s TO %s;", g.Privilege, columns, kind, object, role)
}

// Grants lists the rights that the script gives the relay's role, in its order. The script is the one place where they
// are written.
func (s Set) Grants() ([]Grant, error) {
	sql, err := fs.ReadFile(files, s.grants)
	if err != nil {
		return nil, fmt.Errorf("read migration %q: %w", s.grants, err)
	}
	var out []Grant
	for _, m := range regexp.MustCompile(`(?is)\bGRANT\s+([^;]+?)\s+ON\s+(?:(TABLE|SCHEMA|SEQUENCE|FUNCTION|DATABASE)\s+)?([^;]+?)\s+TO\s+:"relay_role"\s*;`).
		FindAllStringSubmatch(withoutComments(string(sql)), -1) {
		kind := strings.ToUpper(m[2])
		if kind == "" {
			kind = "TABLE"
		}
		objects := []string{strings.TrimSpace(m[3])}
		switch kind {
		case "DATABASE":
			objects = []string{""}
		case "TABLE", "SCHEMA", "SEQUENCE":
			objects = splitList(m[3])
		}
		for _, object := range objects {
			for _, p := range splitList(m[1]) {
				g := Grant{Privilege: strings.ToUpper(p), Kind: kind, Object: object}
				if name, columns, ok := strings.Cut(p, "("); ok {
					g.Privilege, g.Columns = strings.ToUpper(strings.TrimSpace(name)), strings.Join(splitList(strings.TrimSuffix(columns, ")")), ", ")
				}
				out = append(out, g)
			}
		}
	}
	return out, nil
}

// splitList splits at the commas that stand in no parentheses.
func splitList(s string) (out []string) {
	depth := 0
	for _, part := range strings.FieldsFunc(s, func(r rune) bool {
		switch r {
		case '(':
			depth++
		case ')':
			depth--
		}
		return r == ',' && depth == 0
	}) {
		out = append(out, strings.Join(strings.Fields(part), " "))
	}
	return out
}

// Object is something that a file of the set makes.
type Object struct {
	File   string
	Kind   string // TABLE, COLUMN or FUNCTION
	Name   string // schema-qualified
	Column string // of a COLUMN
}

func (o Object) String() string {
	if o.Column != "" {
		return "column " + o.Column + " of " + o.Name
	}
	return strings.ToLower(o.Kind) + " " + o.Name
}

// Objects lists the tables, columns and functions that the set's files make: whether they are there shows whether a
// file was applied, by whatever means and to whoever may not read the version table.
func (s Set) Objects() ([]Object, error) {
	names, err := fs.Glob(files, s.name+"/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations %q: %w", s.name, err)
	}
	create := regexp.MustCompile(`(?is)\bCREATE\s+(?:OR\s+REPLACE\s+)?(TABLE|FUNCTION)\s+(?:IF\s+NOT\s+EXISTS\s+)?(` + s.name + `\.[a-z0-9_]+)`)
	alter := regexp.MustCompile(`(?is)\bALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:ONLY\s+)?(` + s.name + `\.[a-z0-9_]+)([^;]*)`)
	column := regexp.MustCompile(`(?is)\bADD\s+COLUMN\s+(?:IF\s+NOT\s+EXISTS\s+)?([a-z0-9_]+)`)
	gone := regexp.MustCompile(`(?is)\bDROP\s+(?:TABLE|FUNCTION)\s+(?:IF\s+EXISTS\s+)?(` + s.name + `\.[a-z0-9_]+)`)
	var out []Object
	for _, name := range names {
		raw, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %q: %w", name, err)
		}
		sql, file := withoutComments(string(raw)), path.Base(name)
		for _, m := range gone.FindAllStringSubmatch(sql, -1) {
			out = slices.DeleteFunc(out, func(o Object) bool { return o.Name == m[1] })
		}
		for _, m := range create.FindAllStringSubmatch(sql, -1) {
			out = append(out, Object{File: file, Kind: strings.ToUpper(m[1]), Name: m[2]})
		}
		for _, m := range alter.FindAllStringSubmatch(sql, -1) {
			for _, c := range column.FindAllStringSubmatch(m[2], -1) {
				out = append(out, Object{File: file, Kind: "COLUMN", Name: m[1], Column: c[1]})
			}
		}
	}
	return out, nil
}

// withoutComments takes comments to the end of the line out. None of our files has the two dashes in a text.
func withoutComments(sql string) string {
	return regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(sql, "")
}
