package cdc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Criteria select events of the outbox tables. Several combine with AND, the values of one with OR. The JSON form is
// what outbox.requests holds.
type Criteria struct {
	EventIDs      []string  `json:"event_ids,omitempty"` // with the prefix that the configuration gives them
	EventKeys     []string  `json:"event_keys,omitempty"`
	AggregateType string    `json:"aggregate_type,omitempty"`
	AggregateIDs  []string  `json:"aggregate_ids,omitempty"`
	EventTypes    []string  `json:"event_types,omitempty"`
	Since         time.Time `json:"since,omitzero"`      // occurred_at is not before it
	Until         time.Time `json:"until,omitzero"`      // occurred_at is before it
	FirstXact     uint64    `json:"first_xact,omitzero"` // transaction ID, the first that counts
	LastXact      uint64    `json:"last_xact,omitzero"`  // and the last; 0: no bound
	Tables        []string  `json:"tables,omitempty"`    // schema.table
	All           bool      `json:"all,omitempty"`       // every event, where no other criterion is given
}

// Validate returns all problems at once.
func (c *Criteria) Validate() error {
	var errs []error
	some := len(c.EventIDs)+len(c.EventKeys)+len(c.AggregateIDs)+len(c.EventTypes)+len(c.Tables) > 0 ||
		c.AggregateType != "" || !c.Since.IsZero() || !c.Until.IsZero() || c.FirstXact != 0 || c.LastXact != 0
	switch {
	case !some && !c.All:
		errs = append(errs, errors.New("no criterion is given"))
	case some && c.All:
		errs = append(errs, errors.New("all events are asked for, and a criterion is given"))
	}
	if !c.Since.IsZero() && !c.Until.IsZero() && !c.Since.Before(c.Until) {
		errs = append(errs, errors.New("since is not before until"))
	}
	if c.LastXact != 0 && c.LastXact < c.FirstXact {
		errs = append(errs, errors.New("the last transaction is below the first"))
	}
	if c.FirstXact > maxXID || c.LastXact > maxXID {
		errs = append(errs, errors.New("a transaction ID is out of range"))
	}
	for _, list := range [][]string{c.EventIDs, c.EventKeys, {c.AggregateType}, c.AggregateIDs, c.EventTypes} {
		for _, v := range list {
			if strings.ContainsRune(v, 0) {
				errs = append(errs, errors.New("a value has a NUL, which PostgreSQL's text cannot hold"))
			}
		}
	}
	return errors.Join(errs...)
}

// maxXID keeps 64-bit transaction IDs within what SQL's bigint computes with.
const maxXID = 1 << 62

// CriteriaError says why criteria cannot be applied to the tables as they are.
type CriteriaError struct{ Reason string }

func (e *CriteriaError) Error() string { return e.Reason }

// tablesOf returns those of the tables that the criteria can select rows of, in the order of their names.
func (c *Criteria) tablesOf(tables map[string]*rowTable) ([]*rowTable, error) {
	named := map[string]bool{}
	for _, name := range c.Tables {
		t, err := ParseTable(name)
		if err != nil {
			return nil, &CriteriaError{err.Error()}
		}
		if tables[t.String()] == nil {
			return nil, &CriteriaError{fmt.Sprintf("table %s is not one that this relay reads", t)}
		}
		named[t.String()] = true
	}
	var out []*rowTable
	var lacking []string
	for _, t := range sorted(tables) {
		if len(named) > 0 && !named[t.table.String()] {
			continue
		}
		if lack := c.lacks(t); lack != "" {
			lacking = append(lacking, fmt.Sprintf("table %s has no column with the %s", t.table, lack))
			continue
		}
		out = append(out, t)
	}
	// A table that lacks a column has no such events. Where the person has named it, or no table is left, that is a
	// mistake and not an answer.
	if len(lacking) > 0 && (len(out) == 0 || len(named) > 0) {
		return nil, &CriteriaError{strings.Join(lacking, "; ")}
	}
	return out, nil
}

// lacks names a criterion for which the table has no column.
func (c *Criteria) lacks(t *rowTable) string {
	for _, need := range []struct {
		asked bool
		field Field
		name  string
	}{
		{len(c.EventKeys) > 0, FieldEventKey, "event key"},
		{c.AggregateType != "", FieldAggregateType, "aggregate type"},
		{len(c.AggregateIDs) > 0, FieldAggregateID, "aggregate ID"},
		{len(c.EventTypes) > 0, FieldEventType, "event type"},
		{!c.Since.IsZero() || !c.Until.IsZero(), FieldOccurredAt, "event's time"},
	} {
		if need.asked && t.fields[need.field] == "" {
			return need.name
		}
	}
	return ""
}

// params are the values of a statement. Nothing that a person has written is ever a part of the statement itself.
type params []any

// add returns the placeholder of one more value.
func (p *params) add(v any) string {
	*p = append(*p, v)
	return "$" + strconv.Itoa(len(*p))
}

// where is the criteria as a condition on a row t of the table. below has the meaning that it has for xid.
func (c *Criteria) where(t *rowTable, below uint64, p *params) string {
	conds := []string{"true"}
	and := func(format string, args ...any) { conds = append(conds, fmt.Sprintf(format, args...)) }
	if len(c.EventIDs) > 0 {
		ids, castable := t.rowIDs(c.EventIDs)
		if castable { // so that an index on the column serves
			and("t.%s = any(%s::text[]::%s[])", t.id, p.add(ids), t.idType)
		} else {
			and("t.%s::text = any(%s::text[])", t.id, p.add(ids))
		}
	}
	text := func(f Field, values []string) {
		if len(values) > 0 {
			and("t.%s::text = any(%s::text[])", t.fields[f], p.add(values))
		}
	}
	text(FieldEventKey, c.EventKeys)
	if c.AggregateType != "" {
		text(FieldAggregateType, []string{c.AggregateType})
	}
	text(FieldAggregateID, c.AggregateIDs)
	text(FieldEventType, c.EventTypes)
	if !c.Since.IsZero() {
		and("%s >= %s::text::timestamptz", t.order(), p.add(c.Since.UTC().Format(time.RFC3339Nano)))
	}
	if !c.Until.IsZero() {
		and("%s < %s::text::timestamptz", t.order(), p.add(c.Until.UTC().Format(time.RFC3339Nano)))
	}
	if c.FirstXact != 0 {
		and("%s >= %s::text::bigint", t.xid(below, p), p.add(fmt.Sprint(c.FirstXact)))
	}
	if c.LastXact != 0 {
		and("%s <= %s::text::bigint", t.xid(below, p), p.add(fmt.Sprint(c.LastXact)))
	}
	return strings.Join(conds, " and ")
}

// rowIDs makes of event IDs what stands in the table's ID column. castable says that each is a value of the column's
// type; what cannot be one is left out then.
func (t *rowTable) rowIDs(eventIDs []string) (ids []string, castable bool) {
	ids = []string{}
	for _, id := range eventIDs {
		id, ok := strings.CutPrefix(id, t.prefix)
		if !ok {
			continue
		}
		switch t.idType {
		case "uuid":
			u, err := uuid.Parse(id)
			if err != nil {
				continue
			}
			id = u.String()
		case "bigint", "integer", "smallint":
			bits := map[string]int{"bigint": 64, "integer": 32, "smallint": 16}[t.idType]
			if _, err := strconv.ParseInt(id, 10, bits); err != nil {
				continue
			}
		case "text":
		default:
			ids = append(ids, id)
			continue
		}
		ids = append(ids, id)
	}
	switch t.idType {
	case "uuid", "bigint", "integer", "smallint", "text":
		return ids, true
	}
	return ids, false
}

// xid is the ID of the transaction that wrote a row which below vouches for, as a bigint. A table without xact_id has
// only xmin, the lower half of it; the upper one is such that the result is below below. For a row that was frozen and
// has seen the counter go round since, that is too high by a multiple of 2^32.
func (t *rowTable) xid(below uint64, p *params) string {
	if t.xact {
		return "t.xact_id::text::bigint"
	}
	b := p.add(fmt.Sprint(below)) + "::text::bigint"
	return fmt.Sprintf("(%[1]s - mod(%[1]s - t.xmin::text::bigint + %[2]d, %[2]d))", b, uint64(1)<<32)
}

// vouched is the condition that a row's transaction is below a transaction ID, for which everything below is
// published or was aborted.
//
// xmin is compared modulo 2^32 and by the statement's own snapshot: the rows that are not below are those with an xmin
// from below up to the snapshot's xmax, for what is beyond cannot be seen. Everything else is older, frozen rows
// included, whose xmin may be of an earlier round of the counter. age() would do for neither: its present may be older
// than the snapshot, and a frozen row is in its future after half a round.
func (t *rowTable) vouched(below uint64, p *params) string {
	if t.xact {
		return "t.xact_id < " + p.add(fmt.Sprint(below)) + "::text::xid8"
	}
	b := p.add(fmt.Sprint(below)) + "::text::bigint"
	return fmt.Sprintf("mod(t.xmin::text::bigint - mod(%[1]s, %[2]d) + %[2]d, %[2]d) >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint - %[1]s",
		b, uint64(1)<<32)
}
