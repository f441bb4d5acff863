package cdc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
)

// catalogColumn is a column as the catalog has it.
type catalogColumn struct {
	oid       uint32 // its type's
	effective uint32 // the built-in type that it is in effect; another one's OID where there is none such
	typ       string // for people
}

// checkTables refuses tables that lack what an event needs, and learns the types of their columns.
func (s *Stream) checkTables(ctx context.Context, db DB) (typeMap, error) {
	s.mu.Lock()
	types := typeMap{users: map[uint32]uint32{}, text: s.text}
	s.mu.Unlock()
	for _, m := range s.cfg.mappings() {
		columns, err := s.loadColumns(ctx, db, m.Table)
		if err != nil {
			return types, err
		}
		if err := m.check(columns); err != nil {
			return types, err
		}
		for _, name := range m.names() {
			c, ok := columns[name]
			if !ok {
				continue
			}
			types.users[c.oid] = c.effective
			types.text = types.text || !binaryKnown(c.effective)
		}
	}
	return types, nil
}

// loadColumns reads a table's columns from the catalog; none when there is no such table.
func (s *Stream) loadColumns(ctx context.Context, db DB, t Table) (map[string]catalogColumn, error) {
	rows, err := db.Query(ctx, `
		select a.attname::text, a.atttypid::bigint, format_type(a.atttypid, a.atttypmod),
			case when base.typtype = 'e' then $2::bigint else base.oid::bigint end
		from pg_attribute a
		cross join lateral (
			with recursive d (oid, typtype, typbasetype) as (
				select t.oid, t.typtype, t.typbasetype from pg_type t where t.oid = a.atttypid
				union all
				select t.oid, t.typtype, t.typbasetype from d join pg_type t on t.oid = d.typbasetype where d.typtype = 'd'
			) select d.oid, d.typtype from d where d.typtype <> 'd'
		) base
		where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped`, t.String(), int64(oidText))
	if err != nil {
		return nil, s.serverError("read table", err)
	}
	columns := map[string]catalogColumn{}
	var name string
	var oid, effective int64
	var c catalogColumn
	if _, err := pgx.ForEachRow(rows, []any{&name, &oid, &c.typ, &effective}, func() error {
		c.oid, c.effective = uint32(oid), uint32(effective)
		columns[name] = c
		return nil
	}); err != nil {
		return nil, s.serverError("read table", err)
	}
	return columns, nil
}

// check refuses columns that cannot make events.
func (m *Mapping) check(have map[string]catalogColumn) error {
	if len(have) == 0 {
		return &state.Error{State: state.TableMismatch,
			Reason: fmt.Sprintf("table %s does not exist", m.Table),
			Hint:   "run relay migrate up on this database, or correct the table's name in the configuration"}
	}
	for _, spec := range m.columns() {
		c, ok := have[spec.name]
		switch {
		case !ok && spec.required:
			return missingColumn(m.Table, spec.name)
		case ok && spec.types != nil && !slices.Contains(spec.types, c.effective):
			return wrongType(m.Table, spec.name, c.typ)
		case ok && spec.field == FieldID && c.effective != oidUUID && m.IDPrefix == "" && !m.BareID:
			return &state.Error{State: state.TableMismatch,
				Reason: fmt.Sprintf("column %q of table %s, the event's ID, has type %s, whose values are unique in their table only", spec.name, m.Table, c.typ),
				Hint:   `set id_prefix for the table: it is put before each ID; "" says that the values are unique everywhere`}
		}
	}
	for _, name := range m.Extra {
		if _, ok := have[name]; !ok && !m.IgnoreMissing {
			return missingColumn(m.Table, name)
		}
	}
	return nil
}

// published is the table as CREATE PUBLICATION takes it: from PostgreSQL 15 on with the columns that are read. A
// table whose columns may come later has no list, which would keep them out.
func (m *Mapping) published(version int) string {
	if version < 150000 || m.IgnoreMissing {
		return m.Table.String()
	}
	return fmt.Sprintf("%s (%s)", m.Table, m.quotedNames())
}

func (m *Mapping) quotedNames() string {
	names := m.names()
	for i, name := range names {
		names[i] = pgx.Identifier{name}.Sanitize()
	}
	return strings.Join(names, ", ")
}

// publishedTables lists the tables as CREATE PUBLICATION takes them.
func (s *Stream) publishedTables(version int) string {
	var list []string
	for _, m := range s.cfg.mappings() {
		list = append(list, m.published(version))
	}
	return strings.Join(list, ", ")
}

// checkPublished refuses a publication that does not bring every insert of this table, whole.
func (s *Stream) checkPublished(ctx context.Context, db DB, version int, m Mapping, viaRoot bool, fail func(reason, hint string) error) error {
	pub := pgx.Identifier{s.cfg.Publication}.Sanitize()
	var columns []string
	var filter *string
	query := `select array[]::text[], null::text from pg_publication_tables where pubname = $1 and schemaname = $2 and tablename = $3`
	if version >= 150000 {
		query = `select attnames::text[], rowfilter from pg_publication_tables where pubname = $1 and schemaname = $2 and tablename = $3`
	}
	err := db.QueryRow(ctx, query, s.cfg.Publication, m.Table.Schema, m.Table.Name).Scan(&columns, &filter)
	if errors.Is(err, pgx.ErrNoRows) {
		var partitioned bool
		if err := db.QueryRow(ctx, `select coalesce((select relkind = 'p' from pg_class where oid = to_regclass($1)), false)`, m.Table.String()).Scan(&partitioned); err != nil {
			return s.serverError("read table", err)
		}
		if partitioned && !viaRoot {
			return fail(fmt.Sprintf("publishes the partitions of %s under their own names", m.Table), fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true);", pub))
		}
		return fail(fmt.Sprintf("does not contain table %s", m.Table), fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s; rows that were written before it are not in the stream", pub, m.published(version)))
	}
	if err != nil {
		return s.serverError("read publication", err)
	}
	if filter != nil {
		return fail(fmt.Sprintf("filters the rows of %s (WHERE %s)", m.Table, *filter), "a filtered outbox loses events: remove the WHERE clause")
	}
	if version < 150000 {
		return nil
	}
	var needed []string
	for _, spec := range m.columns() {
		if spec.required {
			needed = append(needed, spec.name)
		}
	}
	if !m.IgnoreMissing {
		needed = append(needed, m.Extra...)
	}
	needed = slices.DeleteFunc(needed, func(name string) bool { return slices.Contains(columns, name) })
	if len(needed) > 0 {
		return fail(fmt.Sprintf("leaves out of table %s what is read: %q", m.Table, needed),
			fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s;", pub, s.publishedTables(version)))
	}
	return nil
}
