package cdc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// archived is a bench with three tables, one with all columns, one with a time and no transaction, and one of Debezium's
// form, and with a record as a relay leaves it behind.
func archived(t *testing.T) *bench {
	t.Helper()
	b := setup(t, testenv.NewDatabase(t), func(c *cdc.Config) {
		c.Tables = []cdc.Mapping{
			{Table: cdc.Table{Schema: "outbox", Name: "events"}, Route: 0},
			{Table: cdc.Table{Schema: "app", Name: "Log"}, IDPrefix: "log:", Route: 1, Columns: []cdc.Column{
				{Field: cdc.FieldID, Name: "Id"}, {Field: cdc.FieldAggregateID, Name: "agg"}, {Field: cdc.FieldPayload, Name: "body"},
				{Field: cdc.FieldOccurredAt, Name: "at"},
			}},
			{Table: cdc.Table{Schema: "public", Name: "outboxevent"}, Route: 2, Columns: cdc.DebeziumColumns()},
		}
	})
	b.exec(`create schema app`)
	b.exec(`create table app."Log" ("Id" int primary key, agg text, body bytea, at timestamp)`)
	b.exec(`create table public.outboxevent (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb)`)
	b.exec(`insert into outbox.relay_state (slot, system_identifier, timeline, incarnation, phase, confirmed_lsn)
		select $1, system_identifier::text, 1, 3, 'streaming', '0/1' from pg_control_system()`, b.cfg.Slot)
	return b
}

// vouch makes safe_xid pass what is there now.
func (b *bench) vouch() {
	b.t.Helper()
	b.exec(`update outbox.relay_state set safe_xid = pg_snapshot_xmax(pg_current_snapshot())`)
}

func (b *bench) archive() *cdc.Archive {
	b.t.Helper()
	a, err := b.planner().OpenArchive(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { a.Close(context.WithoutCancel(b.t.Context())) })
	return a
}

func (b *bench) safe(a *cdc.Archive) uint64 {
	b.t.Helper()
	below, err := a.SafeXID(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return below
}

// replayed reads a whole replay, most rows a page, and returns what names the events.
func (b *bench) replayed(a *cdc.Archive, c cdc.Criteria, from cdc.Mark, most int) (names []string, marks []cdc.Mark) {
	b.t.Helper()
	r, err := a.Replay(b.t.Context(), c, b.safe(a), from)
	if err != nil {
		b.t.Fatal(err)
	}
	for {
		page, ok, err := r.Next(b.t.Context(), most)
		if err != nil {
			b.t.Fatal(err)
		}
		if !ok {
			return names, marks
		}
		for _, e := range page.Events {
			names = append(names, name(&e))
			marks = append(marks, page.Mark)
			if e.Position != (outbox.Position{Incarnation: 3}) || e.CommitTime.IsZero() {
				b.t.Errorf("position %v, commit time %v", e.Position, e.CommitTime)
			}
		}
	}
}

func name(e *outbox.Committed) string {
	switch e.Route {
	case 0:
		return string(e.EventKey)
	case 1:
		return string(e.ID)
	}
	return "dbz:" + string(e.AggregateID)
}

// TestArchive_Criteria selects by each criterion and by several.
func TestArchive_Criteria(t *testing.T) {
	b := archived(t)
	const nasty = `'; drop table outbox.events; --`
	const uuid1, uuid2 = "018f0000-0000-7000-8000-0000000000a1", "018f0000-0000-7000-8000-0000000000b2"
	var xids []uint64
	add := func(key, kind, aggregate, typ string, day int) {
		t.Helper()
		var xid uint64
		if err := b.app.QueryRow(t.Context(), `
			insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload, occurred_at)
			values ($1, $2, $3, $4, '{}', '2026-01-01Z'::timestamptz + make_interval(days => $5)) returning xact_id::text::bigint`, key, kind, aggregate, typ, day).Scan(&xid); err != nil {
			t.Fatal(err)
		}
		xids = append(xids, xid)
	}
	add("a", "Order", "1", "Made", 4) // by transaction it is the first, by time the last
	add("b", "Order", "2", "Made", 1)
	add("c", "Invoice", "1", "Made", 2)
	add(nasty, "Order", "1", "Paid", 3)
	b.exec(`insert into app."Log" values (2, 'x', '\x00', '2026-01-03'), (1, 'x', null, '2026-01-04'), (3, 'y', '', null)`)
	b.exec(`insert into public.outboxevent values ($1, 'Order', '8', 'Paid', '1'), ($2, 'Order', '9', 'Made', '2')`, uuid1, uuid2)
	b.vouch()
	a := b.archive()
	day := func(n int) time.Time { return time.Date(2026, 1, 1+n, 0, 0, 0, 0, time.UTC) }
	var id string
	if err := b.app.QueryRow(t.Context(), `select id::text from outbox.events where event_key = 'b'`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		cdc.Criteria
		want []string
	}{
		{"all", cdc.Criteria{All: true}, []string{"log:3", "log:2", "log:1", "a", "b", "c", nasty, "dbz:8", "dbz:9"}},
		{"event IDs of three tables", cdc.Criteria{EventIDs: []string{strings.ToUpper(id), "log:2", uuid2, "2", "log:x", "no uuid"}}, []string{"log:2", "b", "dbz:9"}},
		{"event ID that is SQL", cdc.Criteria{EventIDs: []string{nasty, "log:" + nasty}}, nil},
		{"event keys", cdc.Criteria{EventKeys: []string{"c", "a"}}, []string{"a", "c"}},
		{"event key that is SQL", cdc.Criteria{EventKeys: []string{nasty}}, []string{nasty}},
		{"aggregate", cdc.Criteria{AggregateType: "Order", AggregateIDs: []string{"1"}}, []string{"a", nasty}},
		{"aggregate type of Debezium's table too", cdc.Criteria{AggregateType: "Order"}, []string{"a", "b", nasty, "dbz:8", "dbz:9"}},
		{"aggregate ID of all tables", cdc.Criteria{AggregateIDs: []string{"x", "8", "2"}}, []string{"log:2", "log:1", "b", "dbz:8"}},
		{"event type", cdc.Criteria{EventTypes: []string{"Paid"}}, []string{nasty, "dbz:8"}},
		{"type and aggregate", cdc.Criteria{EventTypes: []string{"Made", "Paid"}, AggregateType: "Invoice"}, []string{"c"}},
		{"since", cdc.Criteria{Since: day(3)}, []string{"log:1", "a", nasty}},
		{"until", cdc.Criteria{Until: day(3)}, []string{"log:2", "b", "c"}},
		{"since, until and type", cdc.Criteria{Since: day(2), Until: day(4), EventTypes: []string{"Made"}}, []string{"c"}},
		{"transaction", cdc.Criteria{FirstXact: xids[1], LastXact: xids[1]}, []string{"b"}},
		{"transactions", cdc.Criteria{FirstXact: xids[1], LastXact: xids[2]}, []string{"b", "c"}},
		{"later transactions", cdc.Criteria{FirstXact: xids[3]}, []string{"log:3", "log:2", "log:1", nasty, "dbz:8", "dbz:9"}},
		{"earlier transactions", cdc.Criteria{LastXact: xids[0]}, []string{"a"}},
		{"table", cdc.Criteria{Tables: []string{"app.Log"}}, []string{"log:3", "log:2", "log:1"}},
		{"tables and aggregate", cdc.Criteria{Tables: []string{"app.Log", "public.outboxevent"}, AggregateIDs: []string{"y", "9", "1"}}, []string{"log:3", "dbz:9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &bench{t: t, cfg: b.cfg, app: b.app, db: b.db}
			for _, most := range []int{1, 100} {
				got, _ := b.replayed(a, c.Criteria, cdc.Mark{}, most)
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%d a page (-want +got):\n%s", most, diff)
				}
			}
			sel, err := a.Survey(t.Context(), c.Criteria, b.safe(a), 2)
			if err != nil {
				t.Fatal(err)
			}
			var first, last []string
			for i := range sel.First {
				first = append(first, name(&sel.First[i]))
			}
			for i := range sel.Last {
				last = append(last, name(&sel.Last[i]))
			}
			n := len(c.want)
			if sel.Events != int64(n) || !slices.Equal(first, c.want[:min(n, 2)]) || !slices.Equal(last, c.want[max(0, n-2):]) {
				t.Errorf("survey: %d events, first %q, last %q, want of %q", sel.Events, first, last, c.want)
			}
		})
	}
	for _, c := range []cdc.Criteria{
		{}, {All: true, EventTypes: []string{"Made"}}, {Since: day(2), Until: day(2)}, {FirstXact: 3, LastXact: 2}, {FirstXact: 1 << 63},
		{EventKeys: []string{"a\x00"}}, {Tables: []string{"app.log"}}, {Tables: []string{"a.b.c"}}, {Tables: []string{"app.Log"}, EventTypes: []string{"Made"}},
	} {
		if _, err := a.Replay(t.Context(), c, 3, cdc.Mark{}); !errors.As(err, new(*cdc.CriteriaError)) {
			t.Errorf("%+v: got %v, want an error", c, err)
		}
	}
}

// TestArchive_Resume goes on behind every mark, and repeats and leaves out nothing.
func TestArchive_Resume(t *testing.T) {
	b := archived(t)
	for i := range 9 { // three events a transaction; times that are no order
		b.exec(`insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload, occurred_at)
			select 'n' || $1::int * 3 + i, 'Order', '1', 'Made', '{}', now() - make_interval(secs => $1::int) from generate_series(0, 2) i`, i)
	}
	b.exec(`insert into app."Log" select i, 'x', '\x00', case when i % 3 > 0 then '2026-01-03'::timestamp + make_interval(days => i / 4) end from generate_series(1, 20) i`)
	b.exec(`insert into public.outboxevent select gen_random_uuid(), 'Order', i, 'Paid', '1' from generate_series(1, 10) i`)
	b.exec(`insert into public.outboxevent select gen_random_uuid(), 'Order', i, 'Paid', '1' from generate_series(11, 20) i`)
	b.vouch()
	a := b.archive()
	all := cdc.Criteria{All: true}
	want, marks := b.replayed(a, all, cdc.Mark{}, 1)
	if len(want) != 67 {
		t.Fatalf("%d events, want 67", len(want))
	}
	for i, m := range marks {
		if got, _ := b.replayed(a, all, m, 7); !slices.Equal(got, want[i+1:]) {
			t.Errorf("behind %v: got %q, want %q", m, got, want[i+1:])
		}
	}
	// Rows of the table that knows neither time nor transaction come by transaction.
	for i := 1; i <= 10; i++ {
		if n := slices.Index(want, fmt.Sprint("dbz:", i)); slices.Index(want, fmt.Sprint("dbz:", i+10)) < n {
			t.Errorf("event dbz:%d comes before dbz:%d", i+10, i)
		}
	}
	// What has gone meanwhile is counted.
	r, err := a.Replay(t.Context(), all, b.safe(a), cdc.Mark{})
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := r.Next(t.Context(), 1)
	if err != nil || len(first.Events) != 1 {
		t.Fatalf("got %v, %v", first, err)
	}
	b.exec(`delete from app."Log" where "Id" in (4, 5, 6)`)
	next, _, err := r.Next(t.Context(), 100)
	if err != nil || next.Gone != 3 || len(next.Events) != 16 {
		t.Errorf("%d events, %d gone, %v, want 16 and 3", len(next.Events), next.Gone, err)
	}
}

// withheld prepares, for each reason why a row is not to be touched, rows with that reason, and rows without: those that
// are named free.
func withheld(t *testing.T) (b *bench, reasons []string) {
	b = archived(t)
	insert := func(key string, n int) {
		b.exec(`insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload, occurred_at)
			values ($1, 'Order', '1', 'Made', '{}', '2026-01-01Z')`, key)
		b.exec(`insert into app."Log" values ($1, $2, '\x00', '2026-01-01')`, n, key)
	}
	for i, key := range []string{"parked", "held", "requeued", "listed", "free", "published", "discarded", "letter of another table"} {
		insert(key, i)
	}
	b.exec(`insert into outbox.dead_letters (slot, source_table, event_id, position, is_null, headers, class, reason, state)
		select $1, '"outbox"."events"', id::text, '0000000000000000-00000001-0000000000000001-00000001', true, '[]'::jsonb, 'too_large', 'x', event_key
		from outbox.events where event_key in ('parked', 'held', 'requeued', 'published', 'discarded')
		union all select $1, '"app"."Log"', 'log:' || "Id", '0000000000000000-00000001-0000000000000001-00000001', true, '[]'::jsonb, 'too_large', 'x', agg
		from app."Log" where agg in ('parked', 'held', 'requeued', 'published', 'discarded')
		union all select $1, 'message x', id::text, '0000000000000000-00000001-0000000000000001-00000001', true, '[]'::jsonb, 'too_large', 'x', 'parked'
		from outbox.events where event_key = 'letter of another table'`, b.cfg.Slot)
	b.exec(`insert into outbox.backlog (slot, ordinal, source_table, event_id)
		select $1, 1, '"outbox"."events"', id::text from outbox.events where event_key = 'listed'
		union all select $1, 2, '"app"."Log"', "Id"::text from app."Log" where agg = 'listed'`, b.cfg.Slot)
	b.vouch()
	insert("not vouched for", 20)
	return b, []string{"parked", "held", "requeued", "listed", "not vouched for"}
}

// TestArchive_Withheld never gives out what is not published, or waits as a dead letter.
func TestArchive_Withheld(t *testing.T) {
	b, reasons := withheld(t)
	a := b.archive()
	got, _ := b.replayed(a, cdc.Criteria{Tables: []string{"outbox.events"}}, cdc.Mark{}, 100)
	if diff := cmp.Diff([]string{"free", "published", "discarded", "letter of another table"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got, _ = b.replayed(a, cdc.Criteria{Tables: []string{"app.Log"}}, cdc.Mark{}, 100)
	if diff := cmp.Diff([]string{"log:4", "log:5", "log:6", "log:7"}, got); diff != "" {
		t.Errorf("mapped (-want +got):\n%s", diff)
	}
	sel, err := a.Survey(t.Context(), cdc.Criteria{EventKeys: reasons}, b.safe(a), 3)
	if err != nil || sel.Events != 0 || sel.Withheld != int64(len(reasons)) {
		t.Errorf("survey: %+v, %v", sel, err)
	}
}

// TestArchive_NotVouched refuses where safe_xid says nothing.
func TestArchive_NotVouched(t *testing.T) {
	b := archived(t)
	b.vouch()
	a := b.archive()
	b.safe(a)
	for _, harm := range []string{
		`set safe_xid = null`, `set system_identifier = '7'`, `set phase = 'creating'`, `set safe_xid = '9000000000000'`, `set slot = 'other'`,
	} {
		b.exec(`create temp table kept as select * from outbox.relay_state`)
		b.exec(`update outbox.relay_state ` + harm)
		if _, err := a.SafeXID(t.Context()); !errors.Is(err, cdc.ErrNotVouched) {
			t.Errorf("%s: got %v", harm, err)
		}
		b.exec(`delete from outbox.relay_state`)
		b.exec(`insert into outbox.relay_state select * from kept`)
		b.exec(`drop table kept`)
	}
}
