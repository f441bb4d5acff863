package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/migrations"
)

const sectionSchema = "Schema"

func (p *patient) schema() []step {
	return []step{
		{sectionSchema, "migrations", []string{"version"}, p.withDB(p.migrations, "migrations")},
		{sectionSchema, "tables", []string{"version"}, p.withDB(p.mapped, "tables")},
		{sectionSchema, "publication", []string{"tables"}, p.withDB(p.publication, "publication")},
		{sectionSchema, "replica identity", []string{"tables"}, p.withDB(p.replicaIdentity, "replica identity")},
	}
}

// migrations looks for what each file makes, since the relay's role may not read the version table.
func (p *patient) migrations(ctx context.Context, s *sheet, db cdc.DB) error {
	objects, err := migrations.Outbox().Objects()
	if err != nil {
		return err
	}
	var files []string
	made, lacks := map[string]int{}, map[string][]string{} // by file
	for _, o := range objects {
		if !slices.Contains(files, o.File) {
			files = append(files, o.File)
		}
		there, err := exists(ctx, db, o)
		if err != nil {
			return err
		}
		if there {
			made[o.File]++
		} else {
			lacks[o.File] = append(lacks[o.File], o.String())
		}
	}
	var missing []string
	for _, f := range files {
		switch {
		case len(lacks[f]) == 0:
		case made[f] == 0:
			missing = append(missing, f+" is not applied")
		default:
			missing = append(missing, f+" lacks "+strings.Join(lacks[f], ", "))
		}
	}
	if len(missing) > 0 {
		s.fail("migrations", do("as a role that may create them", "relay migrate up"), "%s", strings.Join(missing, "; "))
		return nil
	}
	for i, f := range files {
		files[i], _, _ = strings.Cut(f, "_")
	}
	s.ok("migrations", "%s%s", strings.Join(files, ", "), p.recorded(ctx, db))
	return nil
}

// exists looks in the catalog: to_regclass would need a right on the schema.
func exists(ctx context.Context, db cdc.DB, o migrations.Object) (there bool, err error) {
	schema, name, _ := strings.Cut(o.Name, ".")
	sql, args := `select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2)`, []any{schema, name}
	switch o.Kind {
	case "FUNCTION":
		sql = `select exists (select from pg_proc f join pg_namespace n on n.oid = f.pronamespace where n.nspname = $1 and f.proname = $2)`
	case "COLUMN":
		sql = `select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
			where n.nspname = $1 and c.relname = $2 and a.attname = $3 and not a.attisdropped)`
		args = append(args, o.Column)
	}
	err = db.QueryRow(ctx, sql, args...).Scan(&there)
	return there, err
}

// recorded is what the version table says, for those who may read it.
func (p *patient) recorded(ctx context.Context, db cdc.DB) string {
	var last int64
	err := db.QueryRow(ctx, `select coalesce(max(version_id), 0) from outbox.migrations where is_applied`).Scan(&last)
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "42P01":
		return ", applied by other means than relay migrate"
	case err != nil:
		return ", as far as their tables, columns and functions show"
	}
	return fmt.Sprintf(", recorded up to %05d", last)
}

func (p *patient) mapped(ctx context.Context, s *sheet, _ cdc.DB) error {
	for _, m := range p.x.Tables() {
		t, err := p.x.Table(ctx, m)
		if err != nil {
			s.broken("table "+label(m.Table), plain(ctx, err))
			continue
		}
		p.tables = append(p.tables, t)
		if len(t.Missing) > 0 {
			s.ok("table "+label(m.Table), "%d columns are read; it has no %s, which it need not", len(t.Columns), strings.Join(t.Missing, ", "))
			continue
		}
		s.ok("table "+label(m.Table), "%d columns are read, and have types that fit", len(t.Columns))
	}
	return nil
}

// publication is what a session asks of it, and what it brings beyond that.
func (p *patient) publication(ctx context.Context, s *sheet, db cdc.DB) error {
	if err := p.x.Publication(ctx); err != nil {
		s.broken("publication", plain(ctx, err))
		return nil
	}
	pub := quote(p.cfg.Publication)
	var updates, viaRoot bool
	err := db.QueryRow(ctx, `select pubupdate or pubdelete or pubtruncate, pubviaroot from pg_publication where pubname = $1`, p.cfg.Publication).Scan(&updates, &viaRoot)
	if err != nil {
		return err
	}
	names := make([]string, len(p.tables))
	for i, t := range p.tables {
		names[i] = label(t.Table)
	}
	s.ok("publication", "%q brings every insert into %s", p.cfg.Publication, strings.Join(names, ", "))
	if updates {
		s.warn("publication inserts only", do("", fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert');", pub)),
			"%q also publishes updates, deletes or truncates: each is decoded and sent for nothing, and UPDATE and DELETE of a table without a replica identity fail", p.cfg.Publication)
	} else {
		s.ok("publication inserts only", "yes")
	}
	if !viaRoot {
		var partitioned bool
		if err := db.QueryRow(ctx, `select exists (select from pg_publication_tables t join pg_class c on c.relname = t.tablename join pg_namespace n on n.oid = c.relnamespace and n.nspname = t.schemaname
			where t.pubname = $1 and c.relispartition)`, p.cfg.Publication).Scan(&partitioned); err != nil {
			return err
		}
		if partitioned {
			s.warn("publish_via_partition_root", do("", fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true);", pub)), "off, and a table is a partition: its rows come under its own name")
		}
	}
	if err := p.others(ctx, s, db); err != nil {
		return err
	}
	return p.columnLists(ctx, s, db)
}

// others finds tables of the publication that nobody reads.
func (p *patient) others(ctx context.Context, s *sheet, db cdc.DB) error {
	rows, err := db.Query(ctx, `select schemaname::text, tablename::text from pg_publication_tables where pubname = $1 order by 1, 2`, p.cfg.Publication)
	if err != nil {
		return err
	}
	var t cdc.Table
	var list, run []string
	_, err = pgx.ForEachRow(rows, []any{&t.Schema, &t.Name}, func() error {
		if !slices.ContainsFunc(p.tables, func(m cdc.MappedTable) bool { return m.Table == t }) {
			list, run = append(list, t.String()), append(run, fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s;", quote(p.cfg.Publication), t))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(list) > 0 {
		s.warn("publication tables", do("", run...), "%q has tables that are not read, and whose rows are sent all the same: %s", p.cfg.Publication, strings.Join(list, ", "))
	}
	return nil
}

// columnLists compares the columns that are sent with those that are read. A required one that is not sent was found above.
func (p *patient) columnLists(ctx context.Context, s *sheet, db cdc.DB) error {
	if p.server.Version < 150000 {
		return nil
	}
	for _, t := range p.tables {
		var sent []string
		err := db.QueryRow(ctx, `select attnames::text[] from pg_publication_tables where pubname = $1 and schemaname = $2 and tablename = $3`,
			p.cfg.Publication, t.Table.Schema, t.Table.Name).Scan(&sent)
		if err != nil {
			return err
		}
		var lacks, more []string
		for _, c := range t.Columns {
			if !slices.Contains(sent, c) {
				lacks = append(lacks, c)
			}
		}
		for _, c := range sent {
			if !slices.Contains(t.Columns, c) {
				more = append(more, c)
			}
		}
		name := "columns of " + label(t.Table)
		switch {
		case len(lacks) > 0:
			s.warn(name, do("", p.setTables()),
				"the publication leaves out %s: they are taken for NULL", strings.Join(lacks, ", "))
		case len(more) > 0:
			s.ok(name, "all that are read are sent, and %s as well", strings.Join(more, ", "))
		default:
			s.ok(name, "just those that are read are sent")
		}
	}
	return nil
}

// setTables is the statement that gives the publication just the tables and columns that are read.
func (p *patient) setTables() string {
	var tables []string
	for _, t := range p.tables {
		var list []string
		for _, c := range t.Columns {
			list = append(list, quote(c))
		}
		tables = append(tables, fmt.Sprintf("%s (%s)", t.Table, strings.Join(list, ", ")))
	}
	return fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", quote(p.cfg.Publication), strings.Join(tables, ", "))
}

// replicaIdentity finds tables whose updates another publication wants and cannot have: PostgreSQL then refuses the
// application's UPDATE. The relay's own, of inserts only, needs none.
func (p *patient) replicaIdentity(ctx context.Context, s *sheet, db cdc.DB) error {
	for _, t := range p.tables {
		rows, err := db.Query(ctx, `
			select p.pubname::text
			from pg_publication p join pg_publication_tables pt on pt.pubname = p.pubname
			join pg_namespace n on n.nspname = pt.schemaname
			join pg_class c on c.relnamespace = n.oid and c.relname = pt.tablename
			where pt.schemaname = $1 and pt.tablename = $2 and (p.pubupdate or p.pubdelete)
			and (c.relreplident = 'n' or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary))
			order by 1`, t.Table.Schema, t.Table.Name)
		if err != nil {
			return err
		}
		pubs, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		name := "replica identity of " + label(t.Table)
		if len(pubs) > 0 {
			s.warn(name, do("give it a primary key, or", fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL;", t.Table)),
				"it has none, and publications of updates contain it: %s. The application's UPDATE and DELETE fail", strings.Join(pubs, ", "))
			continue
		}
		s.ok(name, "none is needed for inserts, and no other publication wants one that is missing")
	}
	return nil
}
