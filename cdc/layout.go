package cdc

import (
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// field is a part of an event that a column fills.
type field uint8

const (
	fieldNone field = iota
	fieldID
	fieldTenant
	fieldEventKey
	fieldAggregateType
	fieldAggregateID
	fieldEventType
	fieldPayload
	fieldPayloadBytes
	fieldHeaders
	fieldTopic
	fieldPartitionKey
	fieldOccurredAt
)

// columnSpec says how the outbox table names a field and what may stand in it.
type columnSpec struct {
	name     string
	field    field
	required bool
	types    []uint32 // accepted type OIDs
}

// OIDs of built-in types: the same on every server.
const (
	oidBytea       = 17
	oidText        = 25
	oidJSON        = 114
	oidVarchar     = 1043
	oidTimestamptz = 1184
	oidUUID        = 2950
	oidJSONB       = 3802
)

// nativeColumns is the table of migrations/outbox, as far as an event needs it. Other columns are not read.
var nativeColumns = []columnSpec{
	{"id", fieldID, true, []uint32{oidUUID}},
	{"tenant", fieldTenant, false, []uint32{oidText, oidVarchar}},
	{"event_key", fieldEventKey, true, []uint32{oidText, oidVarchar}},
	{"aggregate_type", fieldAggregateType, true, []uint32{oidText, oidVarchar}},
	{"aggregate_id", fieldAggregateID, true, []uint32{oidText, oidVarchar}},
	{"event_type", fieldEventType, true, []uint32{oidText, oidVarchar}},
	{"payload", fieldPayload, true, []uint32{oidJSON, oidJSONB, oidText}},
	{"payload_bytes", fieldPayloadBytes, false, []uint32{oidBytea}},
	{"headers", fieldHeaders, false, []uint32{oidJSONB, oidJSON}},
	{"topic", fieldTopic, false, []uint32{oidText, oidVarchar}},
	{"partition_key", fieldPartitionKey, false, []uint32{oidText, oidVarchar}},
	{"occurred_at", fieldOccurredAt, false, []uint32{oidTimestamptz}},
}

// set stores a value that is not NULL.
func (f field) set(ev *outbox.Committed, v []byte) {
	switch f {
	case fieldID:
		ev.ID = v
	case fieldTenant:
		ev.Tenant = v
	case fieldEventKey:
		ev.EventKey = v
	case fieldAggregateType:
		ev.AggregateType = v
	case fieldAggregateID:
		ev.AggregateID = v
	case fieldEventType:
		ev.EventType = v
	case fieldPayload, fieldPayloadBytes: // the table holds at most one of the two
		ev.Payload = v
	case fieldHeaders:
		ev.Headers = v
	case fieldTopic:
		ev.Topic = v
	case fieldPartitionKey:
		ev.PartitionKey = v
	case fieldOccurredAt:
		ev.OccurredAt = v
	}
}

// layout maps the columns of a relation, in the order they are sent, to fields.
type layout struct {
	table   Table
	columns []column
}

type column struct {
	name  string
	oid   uint32
	field field
}

// newLayout maps a relation by column name. What a required field lacks, or a type that does not fit, is the state
// table_mismatch.
func newLayout(rel relation) (*layout, error) {
	l := &layout{table: Table{rel.schema, rel.name}, columns: make([]column, len(rel.columns))}
	for i, c := range rel.columns {
		l.columns[i] = column{name: c.name, oid: c.oid}
	}
	for _, spec := range nativeColumns {
		i := slices.IndexFunc(l.columns, func(c column) bool { return c.name == spec.name })
		if i < 0 {
			if spec.required {
				return nil, missingColumn(l.table, spec.name)
			}
			continue
		}
		if !slices.Contains(spec.types, l.columns[i].oid) {
			return nil, wrongType(l.table, spec.name, fmt.Sprintf("oid %d", l.columns[i].oid))
		}
		l.columns[i].field = spec.field
	}
	return l, nil
}

func missingColumn(t Table, column string) error {
	return &state.Error{
		State:  state.TableMismatch,
		Reason: fmt.Sprintf("table %s has no column %q in what the publication sends", t, column),
		Hint:   "add the column to the table or to the publication's column list; relay migrate print shows the table as it should be",
	}
}

func wrongType(t Table, column, typ string) error {
	return &state.Error{
		State:  state.TableMismatch,
		Reason: fmt.Sprintf("column %q of table %s has type %s, which the relay cannot read", column, t, typ),
		Hint:   "relay migrate print shows the table as it should be",
	}
}
