package cdc

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// rowTables describes the configured tables, by their names as Table.String writes them.
func (s *Stream) rowTables(ctx context.Context, db DB) (map[string]*rowTable, error) {
	types, err := s.checkTables(ctx, db)
	if err != nil {
		return nil, err
	}
	types.text = true // in which rows are selected
	tables := map[string]*rowTable{}
	for _, m := range s.cfg.mappings() {
		columns, err := s.loadColumns(ctx, db, m.Table)
		if err != nil {
			return nil, err
		}
		t := &rowTable{table: m.Table, prefix: m.IDPrefix, xact: columns["xact_id"].typ == "xid8", fields: map[Field]string{}}
		rel := relation{schema: m.Table.Schema, name: m.Table.Name}
		for _, name := range m.names() {
			if c, ok := columns[name]; ok {
				rel.columns = append(rel.columns, relationColumn{name, c.oid})
				t.columns = append(t.columns, pgx.Identifier{name}.Sanitize())
			}
		}
		for _, spec := range m.columns() {
			if _, ok := columns[spec.name]; ok {
				t.fields[spec.field] = pgx.Identifier{spec.name}.Sanitize()
			}
			switch c, ok := columns[spec.name]; {
			case !ok:
			case spec.field == FieldID:
				t.id, t.idType = pgx.Identifier{spec.name}.Sanitize(), c.typ
			case spec.field == FieldOccurredAt:
				t.at = pgx.Identifier{spec.name}.Sanitize()
			case spec.field == FieldAggregateType:
				t.kind = pgx.Identifier{spec.name}.Sanitize()
			}
		}
		t.guessFields(columns)
		if t.layout, err = newLayout(rel, &m, types); err != nil {
			return nil, err
		}
		tables[t.table.String()] = t
	}
	return tables, nil
}

// guessFields takes the columns of Debezium's default table for what their names say, where the mapping, whose records
// need no such field, does not.
func (t *rowTable) guessFields(columns map[string]catalogColumn) {
	for field, name := range map[Field]string{FieldAggregateType: "aggregatetype", FieldEventType: "type"} {
		if _, ok := columns[name]; ok && t.fields[field] == "" {
			t.fields[field] = pgx.Identifier{name}.Sanitize()
		}
	}
}
