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
		t := &rowTable{table: m.Table, xact: columns["xact_id"].typ == "xid8"}
		rel := relation{schema: m.Table.Schema, name: m.Table.Name}
		for _, name := range m.names() {
			if c, ok := columns[name]; ok {
				rel.columns = append(rel.columns, relationColumn{name, c.oid})
				t.columns = append(t.columns, pgx.Identifier{name}.Sanitize())
			}
		}
		for _, spec := range m.columns() {
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
		if t.layout, err = newLayout(rel, &m, types); err != nil {
			return nil, err
		}
		tables[t.table.String()] = t
	}
	return tables, nil
}
