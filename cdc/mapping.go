package cdc

import (
	"errors"
	"fmt"
	"slices"
)

// Mapping says how to make events of the rows of one table.
type Mapping struct {
	// Table is the table; of a partitioned one the root.
	Table Table
	// Columns name the columns that fill an event's fields. Default NativeColumns, with the types of
	// migrations/outbox; other columns may have any type that the field can hold.
	Columns []Column
	// IDPrefix is put before the value of the ID column; both together are the event's ID. A column that is not a
	// uuid needs one, for its values are unique in their table only.
	IDPrefix string
	// BareID says that the ID column's values are unique everywhere without a prefix, whatever their type.
	BareID bool
	// Extra names further columns; Committed.Extra has their values in this order.
	Extra []string
	// IgnoreMissing accepts a table that lacks columns of Extra. Committed.Extra then has KindAbsent in their
	// place, until they are added.
	IgnoreMissing bool
	// Route is what Committed.Route of these events is.
	Route int
}

// Column says which column fills a field.
type Column struct {
	Field    Field
	Name     string
	Optional bool // the table may lack it
}

// MessageMapping says how to make events of logical messages, written with pg_logical_emit_message.
type MessageMapping struct {
	// Prefix is the messages' prefix, the whole of it.
	Prefix string
	// Emitted says that they are written by outbox.emit and have the content that it makes. Otherwise the content
	// is the payload, the prefix is the aggregate ID, and the event's ID is its position.
	Emitted bool
	// Route is what Committed.Route of these events is.
	Route int
}

// EmitPrefix is the prefix of the messages that outbox.emit writes.
const EmitPrefix = "outbox"

// NativeColumns are those of migrations/outbox.
func NativeColumns() []Column {
	out := make([]Column, len(nativeColumns))
	for i, s := range nativeColumns {
		out[i] = Column{s.field, s.name, !s.required}
	}
	return out
}

// DebeziumColumns are those of the table that Debezium's outbox event router expects by default. Aggregate type and
// event type are not among them: the router makes no header of them, so they are read as Mapping.Extra.
func DebeziumColumns() []Column {
	return []Column{{FieldID, "id", false}, {FieldAggregateID, "aggregateid", false}, {FieldPayload, "payload", false}}
}

// mappings returns the tables to read.
func (c *Config) mappings() []Mapping {
	if len(c.Tables) > 0 {
		return c.Tables
	}
	return []Mapping{{Table: c.Table}}
}

// columns returns what a row must and may have. Every type is accepted where types is nil.
func (m *Mapping) columns() []columnSpec {
	if len(m.Columns) == 0 {
		return nativeColumns
	}
	out := make([]columnSpec, len(m.Columns))
	for i, c := range m.Columns {
		out[i] = columnSpec{name: c.Name, field: c.Field, required: !c.Optional, types: fieldTypes(c.Field)}
	}
	return out
}

// names lists the columns that the mapping reads, each once.
func (m *Mapping) names() []string {
	var out []string
	for _, s := range m.columns() {
		out = append(out, s.name)
	}
	for _, name := range m.Extra {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// fieldTypes lists the types that a field can be made of; nil is every type.
func fieldTypes(f Field) []uint32 {
	switch f {
	case FieldPayload, FieldPayloadBytes:
		return []uint32{oidJSON, oidJSONB, oidText, oidVarchar, oidBpchar, oidBytea}
	case FieldHeaders:
		return []uint32{oidJSONB, oidJSON, oidText, oidVarchar}
	case FieldOccurredAt:
		return []uint32{oidTimestamptz, oidTimestamp}
	}
	return nil
}

// validate returns all problems at once.
func (m *Mapping) validate() error {
	var errs []error
	if m.Table.Schema == "" || m.Table.Name == "" {
		errs = append(errs, errors.New("cdc: a table is not named"))
	}
	seen := map[Field]bool{}
	for _, c := range m.Columns {
		switch {
		case c.Name == "":
			errs = append(errs, fmt.Errorf("cdc: table %s: a column is not named", m.Table))
		case c.Field == fieldNone || c.Field > FieldOccurredAt:
			errs = append(errs, fmt.Errorf("cdc: table %s: column %q fills no field", m.Table, c.Name))
		case seen[c.Field]:
			errs = append(errs, fmt.Errorf("cdc: table %s: column %q fills a field that another one fills", m.Table, c.Name))
		}
		seen[c.Field] = true
	}
	if len(m.Columns) > 0 && !seen[FieldID] {
		errs = append(errs, fmt.Errorf("cdc: table %s: no column is the ID", m.Table))
	}
	if slices.Contains(m.Extra, "") {
		errs = append(errs, fmt.Errorf("cdc: table %s: a further column is not named", m.Table))
	}
	return errors.Join(errs...)
}

// validateMappings checks the mappings by themselves and against one another.
func (c *Config) validateMappings() error {
	var errs []error
	tables := map[Table]bool{}
	for _, m := range c.mappings() {
		errs = append(errs, m.validate())
		if tables[m.Table] {
			errs = append(errs, fmt.Errorf("cdc: table %s is mapped twice", m.Table))
		}
		tables[m.Table] = true
	}
	prefixes := map[string]bool{}
	for _, m := range c.Messages {
		switch {
		case m.Prefix == "":
			errs = append(errs, errors.New("cdc: a message prefix is empty"))
		case prefixes[m.Prefix]:
			errs = append(errs, fmt.Errorf("cdc: message prefix %q is mapped twice", m.Prefix))
		}
		prefixes[m.Prefix] = true
	}
	return errors.Join(errs...)
}
