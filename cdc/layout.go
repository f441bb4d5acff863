package cdc

import (
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// Field is a part of an event that a column fills: the one of the same name in outbox.Committed.
type Field uint8

// The fields.
const (
	fieldNone Field = iota
	FieldID
	FieldTenant
	FieldEventKey
	FieldAggregateType
	FieldAggregateID
	FieldEventType
	FieldPayload
	FieldPayloadBytes
	FieldHeaders
	FieldTopic
	FieldPartitionKey
	FieldOccurredAt
)

// columnSpec says how the outbox table names a field and what may stand in it.
type columnSpec struct {
	name     string
	field    Field
	required bool
	types    []uint32 // accepted type OIDs; nil: all
}

// nativeColumns is the table of migrations/outbox, as far as an event needs it. Other columns are not read. All are
// required: one that has gone was renamed or dropped, and without it events would go where they should not.
var nativeColumns = []columnSpec{
	{"id", FieldID, true, []uint32{oidUUID}},
	{"tenant", FieldTenant, true, []uint32{oidText, oidVarchar}},
	{"event_key", FieldEventKey, true, []uint32{oidText, oidVarchar}},
	{"aggregate_type", FieldAggregateType, true, []uint32{oidText, oidVarchar}},
	{"aggregate_id", FieldAggregateID, true, []uint32{oidText, oidVarchar}},
	{"event_type", FieldEventType, true, []uint32{oidText, oidVarchar}},
	{"payload", FieldPayload, true, []uint32{oidJSON, oidJSONB, oidText}},
	{"payload_bytes", FieldPayloadBytes, true, []uint32{oidBytea}},
	{"headers", FieldHeaders, true, []uint32{oidJSONB, oidJSON}},
	{"topic", FieldTopic, true, []uint32{oidText, oidVarchar}},
	{"partition_key", FieldPartitionKey, true, []uint32{oidText, oidVarchar}},
	{"occurred_at", FieldOccurredAt, true, []uint32{oidTimestamptz}},
}

// set stores a value that is not NULL.
func (f Field) set(ev *outbox.Committed, v []byte) {
	switch f {
	case FieldID:
		ev.ID = v
	case FieldTenant:
		ev.Tenant = v
	case FieldEventKey:
		ev.EventKey = v
	case FieldAggregateType:
		ev.AggregateType = v
	case FieldAggregateID:
		ev.AggregateID = v
	case FieldEventType:
		ev.EventType = v
	case FieldPayload, FieldPayloadBytes: // the table holds at most one of the two
		ev.Payload = v
	case FieldHeaders:
		ev.Headers = v
	case FieldTopic:
		ev.Topic = v
	case FieldPartitionKey:
		ev.PartitionKey = v
	case FieldOccurredAt:
		ev.OccurredAt = v
	}
}

// layout maps the columns of a relation, in the order they are sent, to fields.
type layout struct {
	table   Table
	columns []column
	route   int
	prefix  string // of the ID
	extras  int    // length of Committed.Extra
	grown   int    // most bytes that a row's text has beyond its binary form
}

type column struct {
	name  string
	oid   uint32 // of the built-in type that it is in effect
	field Field
	extra int // place in Committed.Extra, counted from 1; 0: none
	kind  outbox.Kind
}

// newLayout maps a relation by column name. What a required field lacks, or a type that does not fit, is the state
// table_mismatch; a type whose binary form is not known is errUnknownType.
func newLayout(rel relation, m *Mapping, types typeMap) (*layout, error) {
	l := &layout{table: Table{rel.schema, rel.name}, columns: make([]column, len(rel.columns)), route: m.Route, prefix: m.IDPrefix, extras: len(m.Extra)}
	for i, c := range rel.columns {
		l.columns[i] = column{name: c.name, oid: types.effective(c.oid)}
		l.columns[i].kind = kindOf(l.columns[i].oid)
	}
	find := func(name string) *column {
		i := slices.IndexFunc(l.columns, func(c column) bool { return c.name == name })
		if i < 0 {
			return nil
		}
		return &l.columns[i]
	}
	for _, spec := range m.columns() {
		c := find(spec.name)
		switch {
		case c == nil && spec.required:
			return nil, missingColumn(l.table, spec.name)
		case c == nil:
		case spec.types != nil && !slices.Contains(spec.types, c.oid) && types.knows(c.oid):
			return nil, wrongType(l.table, spec.name, fmt.Sprintf("oid %d", c.oid))
		default:
			c.field = spec.field
		}
	}
	for i, name := range m.Extra {
		c := find(name)
		switch {
		case c != nil:
			c.extra = i + 1
		case !m.IgnoreMissing:
			return nil, missingColumn(l.table, name)
		}
	}
	for i := range l.columns {
		c := &l.columns[i]
		if c.field == fieldNone && c.extra == 0 {
			continue
		}
		if !types.text && !binaryKnown(c.oid) {
			return nil, &unknownTypeError{table: l.table, column: c.name, oid: c.oid}
		}
		l.grown += grownBy(c.oid)
	}
	l.grown += len(l.prefix)
	return l, nil
}

func missingColumn(t Table, column string) error {
	return &state.Error{
		State:  state.TableMismatch,
		Reason: fmt.Sprintf("table %s has no column %q in what the publication sends", t, column),
		Hint:   "add the column to the table and to the publication's column list, or correct the table's columns in the configuration; rows written while it was missing are not in the stream as events: relay recover publishes them from the table",
	}
}

func wrongType(t Table, column, typ string) error {
	return &state.Error{
		State:  state.TableMismatch,
		Reason: fmt.Sprintf("column %q of table %s has type %s, which the relay cannot read", column, t, typ),
		Hint:   "relay migrate print shows the table as it should be",
	}
}

// room is how many bytes a row may take beyond those of its tuple.
func (l *layout) room() int { return l.grown }
