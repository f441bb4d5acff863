package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// stored is a row as the relay gets it: the columns' own text.
type stored struct {
	ID, Tenant, EventKey, AggregateType, AggregateID, EventType string
	Payload, PayloadBytes, Headers, Topic, PartitionKey         *string
	OccurredAt                                                  string
}

// storedEvents returns the rows in the order they were inserted in: no row of these tests is ever updated or
// deleted, so it is the order they lie in.
func storedEvents(tb testing.TB, q interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}) []stored {
	tb.Helper()
	rows, err := q.Query(tb.Context(), `SELECT id::text, tenant, event_key, aggregate_type, aggregate_id, event_type, payload::text,
payload_bytes::text, headers::text, topic, partition_key, (occurred_at AT TIME ZONE 'UTC')::text FROM outbox.events ORDER BY ctid`)
	if err != nil {
		tb.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[stored])
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

// awkward are events that go wrong where quoting, NULL, JSON or time is handled with less than full care, and the
// rows they must become.
func awkward() (events []outbox.Event, rows []stored) {
	at := time.Date(2026, 11, 30, 19, 57, 22, 123456789, time.FixedZone("", 3600))
	const atText = "2026-11-30 18:57:22.123456"
	add := func(e outbox.Event, s stored) {
		id := uuid.MustParse(fmt.Sprintf("0190b5a2-7c3e-7abc-9def-%012d", 99-len(events))) // not rising: order is not the ids'
		e.ID, e.OccurredAt, s.ID = id, cmpOr(e.OccurredAt, at), id.String()
		if s.OccurredAt == "" {
			s.OccurredAt = atText
		}
		events, rows = append(events, e), append(rows, s)
	}
	ptr := func(s string) *string { return &s }
	plain := stored{EventKey: "k", AggregateType: "t", AggregateID: "i", EventType: "e"}
	event := outbox.Event{EventKey: "k", AggregateType: "t", AggregateID: "i", EventType: "e"}

	add(event, plain)
	for _, s := range []string{
		`{"b" : 1.10,  "a":1e2, "b":12345678901234567890.12345678901234567890}`, " {}\r\n\t", `null`, `"NULL"`, `"\u0000\\ \" ' {,} é😀` + "\u2028" + `"`,
		`"` + strings.Repeat(`\\"`[:2], 100_000) + `"`,
	} {
		e, row := event, plain
		e.Payload, row.Payload = []byte(s), ptr(s)
		add(e, row)
	}
	for b, text := range map[string]string{"": `\x`, "\x00\xff\\\"x": `\x00ff5c2278`} {
		e, row := event, plain
		e.PayloadBytes, row.PayloadBytes = []byte(b), ptr(text)
		add(e, row)
	}
	for _, s := range []string{`NULL`, `null`, `{}`, `"`, `\`, `a","b`, `\"}`, " ", "\t", "'", `$1`, "é😀", "?"} {
		e, row := event, plain
		e.Tenant, e.EventKey, e.AggregateID, e.EventType, e.PartitionKey = s, s, s, s, s
		row.Tenant, row.EventKey, row.AggregateID, row.EventType, row.PartitionKey = s, s, s, s, ptr(s)
		e.AggregateType, row.AggregateType, e.Topic, row.Topic = "NULL", "NULL", "NULL", ptr("NULL")
		add(e, row)
	}
	e, row := event, plain
	e.AggregateID, row.AggregateID, e.PartitionKey, row.PartitionKey = "\r\n", "\r\n", "\r\n", ptr("\r\n")
	add(e, row)
	e, row = event, plain
	e.Headers = map[string]string{"traceparent": "00-01", `a"\`: "\t<&>\u2028", "empty": ""}
	row.Headers = ptr(`{"a\"\\": "\t<&>` + "\u2028" + `", "empty": "", "traceparent": "00-01"}`)
	add(e, row)
	e, row = event, plain
	e.OccurredAt, row.OccurredAt = time.Date(1, 1, 1, 0, 0, 0, 1000, time.UTC), "0001-01-01 00:00:00.000001"
	add(e, row)
	e.OccurredAt, row.OccurredAt = time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), "9999-12-31 23:59:59.999999"
	add(e, row)
	return events, rows
}

func cmpOr(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}
