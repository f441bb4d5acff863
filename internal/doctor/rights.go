package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/migrations"
)

const sectionRights = "Rights"

func (p *patient) rights() []step {
	return []step{
		{sectionRights, "role", []string{"version"}, p.withDB(p.role, "role")},
		{sectionRights, "grants", []string{"version"}, p.withDB(p.grants, "grants")},
		{sectionRights, "no more than needed", []string{"version", "grants"}, p.withDB(p.excess, "no more than needed")},
	}
}

func (p *patient) role(ctx context.Context, s *sheet, db cdc.DB) error {
	var super, bypass, createRole, createDB bool
	// BYPASSRLS is needed where a table has row security.
	err := db.QueryRow(ctx, `
		select rolsuper, rolbypassrls and not exists (select from pg_class where relrowsecurity), rolcreaterole, rolcreatedb
		from pg_roles where rolname = current_user`).Scan(&super, &bypass, &createRole, &createDB)
	if err != nil {
		return err
	}
	role := quote(p.server.Role)
	if super {
		// No ALTER ROLE here: who is looking may be the server's only superuser.
		s.warn("role", do("run the relay as a role of its own, which this makes:", "relay migrate print --roles | psql -v ON_ERROR_STOP=1 -v relay_role=relay -d <database>"),
			"%q is a superuser, which the relay does not need", p.server.Role)
		return nil
	}
	var more []string
	for name, has := range map[string]bool{"BYPASSRLS": bypass, "CREATEROLE": createRole, "CREATEDB": createDB} {
		if has {
			more = append(more, name)
		}
	}
	slices.Sort(more)
	if len(more) > 0 {
		s.warn("role", do("", fmt.Sprintf("ALTER ROLE %s NO%s;", role, strings.Join(more, " NO"))), "%q has %s, which the relay does not need", p.server.Role, strings.Join(more, ", "))
		return nil
	}
	s.ok("role", "%q: no superuser, no further attributes", p.server.Role)
	return nil
}

// grants holds what the role may do against the script that gives it its rights, as far as the objects exist.
func (p *patient) grants(ctx context.Context, s *sheet, db cdc.DB) error {
	needed, err := migrations.Outbox().Grants()
	if err != nil {
		return err
	}
	role, database := quote(p.server.Role), quote(p.server.Database)
	var run, lacks []string
	lack := func(what, statement string) {
		lacks, run = append(lacks, what), append(run, statement)
	}
	for _, g := range needed {
		if g.Kind == "TABLE" && g.Privilege == "SELECT" && slices.ContainsFunc(p.x.Tables(), func(m cdc.Mapping) bool { return label(m.Table) == g.Object }) {
			continue // column by column, below
		}
		if g.Kind == "TABLE" && g.Object == "outbox.events" && !slices.ContainsFunc(p.x.Tables(), func(m cdc.Mapping) bool { return m.Table == cdc.Table{Schema: "outbox", Name: "events"} }) {
			continue // not read
		}
		has, err := p.has(ctx, db, g)
		if err != nil {
			return err
		}
		if !has {
			what := g.Privilege + " on " + strings.TrimSpace(strings.ToLower(g.Kind)+" "+g.Object)
			lack(what, g.String(database, role))
		}
	}
	for _, m := range p.x.Tables() {
		if err := p.readable(ctx, db, m, lack); err != nil {
			return err
		}
	}
	if len(lacks) > 0 {
		s.fail("grants", do("as the owner or a superuser (relay migrate print --roles gives them all)", run...), "%q lacks %s", p.server.Role, strings.Join(lacks, ", "))
		return nil
	}
	s.ok("grants", "%q may do what the relay does", p.server.Role)
	return p.rowSecurity(ctx, s, db)
}

// has asks for one right; true where the object does not exist, which is another check's news. Names are resolved by the
// catalog and not by to_regclass, which needs rights of its own.
func (p *patient) has(ctx context.Context, db cdc.DB, g migrations.Grant) (has bool, err error) {
	schema, name, _ := strings.Cut(g.Object, ".")
	switch g.Kind {
	case "DATABASE":
		err = db.QueryRow(ctx, `select has_database_privilege(current_database(), $1)`, g.Privilege).Scan(&has)
	case "SCHEMA":
		err = db.QueryRow(ctx, `select coalesce((select has_schema_privilege(oid, $2) from pg_namespace where nspname = $1), true)`, g.Object, g.Privilege).Scan(&has)
	case "TABLE":
		if g.Columns != "" {
			err = db.QueryRow(ctx, `
				select coalesce(bool_and(has_column_privilege(c.oid, a.attnum, $3)), true)
				from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
				where n.nspname = $1 and c.relname = $2 and a.attname = any(string_to_array($4, ', '))`, schema, name, g.Privilege, g.Columns).Scan(&has)
			break
		}
		err = db.QueryRow(ctx, `
			select coalesce(bool_and(has_table_privilege(c.oid, $3)), true)
			from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2`, schema, name, g.Privilege).Scan(&has)
	case "SEQUENCE":
		err = db.QueryRow(ctx, `
			select coalesce(bool_and(has_sequence_privilege(c.oid, $3)), true)
			from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2`, schema, name, g.Privilege).Scan(&has)
	default:
		name, _, _ = strings.Cut(name, "(")
		err = db.QueryRow(ctx, `
			select coalesce(bool_and(has_function_privilege(f.oid, $3)), true)
			from pg_proc f join pg_namespace n on n.oid = f.pronamespace where n.nspname = $1 and f.proname = $2`, schema, name, g.Privilege).Scan(&has)
	}
	return has, err
}

// readable looks for SELECT on the columns that are read; a right on the whole table is one on each.
func (p *patient) readable(ctx context.Context, db cdc.DB, m cdc.Mapping, lack func(what, statement string)) error {
	role := quote(p.server.Role)
	var usage bool
	err := db.QueryRow(ctx, `select coalesce((select has_schema_privilege(oid, 'USAGE') from pg_namespace where nspname = $1), true)`, m.Table.Schema).Scan(&usage)
	if err != nil {
		return err
	}
	if !usage {
		if m.Table.Schema != "outbox" { // the script's own, said already
			lack("USAGE on schema "+m.Table.Schema, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", quote(m.Table.Schema), role))
		}
		var may bool
		if err := db.QueryRow(ctx, `
			select coalesce(bool_and(has_table_privilege(c.oid, 'SELECT') or has_any_column_privilege(c.oid, 'SELECT')), true)
			from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2`, m.Table.Schema, m.Table.Name).Scan(&may); err != nil {
			return err
		}
		if !may {
			lack("SELECT on table "+label(m.Table), fmt.Sprintf("GRANT SELECT ON %s TO %s;", m.Table, role))
		}
		return nil
	}
	t, err := p.x.Table(ctx, m)
	if err != nil && len(t.Columns) == 0 {
		return nil // there is no such table, or it cannot be looked at: the next section says so
	}
	columns := t.Columns
	if t.Xact != "" && !slices.Contains(columns, t.Xact) {
		columns = append(slices.Clone(columns), t.Xact)
	}
	rows, err := db.Query(ctx, `
		select a.attname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
		where n.nspname = $1 and c.relname = $2 and a.attname = any($3) and not has_column_privilege(c.oid, a.attnum, 'SELECT')
		order by a.attnum`, m.Table.Schema, m.Table.Name, columns)
	if err != nil {
		return err
	}
	hidden, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case len(hidden) == 0:
	case len(hidden) == len(columns):
		lack("SELECT on table "+label(m.Table), fmt.Sprintf("GRANT SELECT ON %s TO %s;", m.Table, role))
	default:
		for i, c := range hidden {
			hidden[i] = quote(c)
		}
		list := strings.Join(hidden, ", ")
		lack(fmt.Sprintf("SELECT on columns %s of %s.%s", list, m.Table.Schema, m.Table.Name), fmt.Sprintf("GRANT SELECT (%s) ON %s TO %s;", list, m.Table, role))
	}
	return nil
}

// rowSecurity finds tables some of whose rows the role would not see. The relay refuses to read such a table.
func (p *patient) rowSecurity(ctx context.Context, s *sheet, db cdc.DB) error {
	for _, m := range p.x.Tables() {
		var hides bool
		err := db.QueryRow(ctx, `
			select coalesce(bool_or(c.relrowsecurity and not pg_has_role(c.relowner, 'USAGE') and not (select rolbypassrls or rolsuper from pg_roles where rolname = current_user)), false)
			from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2`, m.Table.Schema, m.Table.Name).Scan(&hides)
		if err != nil {
			return err
		}
		if hides {
			s.fail("row security", do("let the relay see every row, with a role that does nothing else", fmt.Sprintf("ALTER ROLE %s BYPASSRLS;", quote(p.server.Role))),
				"table %s has policies that apply to %q: backlog and recovery would miss rows", m.Table, p.server.Role)
		}
	}
	return nil
}

// excess finds rights that a relay has no use for.
func (p *patient) excess(ctx context.Context, s *sheet, db cdc.DB) error {
	var super bool
	if err := db.QueryRow(ctx, `select rolsuper from pg_roles where rolname = current_user`).Scan(&super); err != nil {
		return err
	}
	if super {
		s.add(Skip, "no more than needed", "", nil, "not looked at, because a superuser may do everything")
		return nil
	}
	role := quote(p.server.Role)
	var has, run []string
	var create bool
	if err := db.QueryRow(ctx, `select has_database_privilege(current_database(), 'CREATE')`).Scan(&create); err != nil {
		return err
	}
	if create {
		has, run = append(has, "CREATE on the database"), append(run, fmt.Sprintf("REVOKE CREATE ON DATABASE %s FROM %s;", quote(p.server.Database), role))
	}
	rows, err := db.Query(ctx, `select nspname::text from pg_namespace where nspname = any($1) and has_schema_privilege(oid, 'CREATE')`, p.schemas())
	if err != nil {
		return err
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range list {
		has, run = append(has, "CREATE on schema "+name), append(run, fmt.Sprintf("REVOKE CREATE ON SCHEMA %s FROM %s;", quote(name), role))
	}
	for _, m := range p.x.Tables() {
		rows, err := db.Query(ctx, `
			select v from unnest(array['INSERT', 'UPDATE', 'TRUNCATE', 'TRIGGER']) v, pg_class c join pg_namespace n on n.oid = c.relnamespace
			where n.nspname = $1 and c.relname = $2 and has_table_privilege(c.oid, v)`, m.Table.Schema, m.Table.Name)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		if len(list) > 0 {
			what := strings.Join(list, ", ")
			has, run = append(has, what+" on "+label(m.Table)), append(run, fmt.Sprintf("REVOKE %s ON %s FROM %s;", what, m.Table, role))
		}
	}
	if len(has) > 0 {
		s.warn("no more than needed", do("harmless with postgres.ensure, which needs more; else take away what the role was given itself:", run...), "%q has %s, which the relay does not need", p.server.Role, strings.Join(has, "; "))
		return nil
	}
	s.ok("no more than needed", "nothing beyond that")
	return nil
}

// schemas are those of the tables. In public, everybody may make things before PostgreSQL 15.
func (p *patient) schemas() []string {
	out := []string{"outbox"}
	for _, m := range p.x.Tables() {
		if m.Table.Schema != "public" && !slices.Contains(out, m.Table.Schema) {
			out = append(out, m.Table.Schema)
		}
	}
	return out
}
