package cdc_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// capture is a relay whose events are kept whole.
type capture struct {
	t      *testing.T
	stream *cdc.Stream
	stop   context.CancelFunc
	ended  chan error

	mu     sync.Mutex
	events []outbox.Committed
	state  state.Status
}

// capturing is the sink of one of its sessions.
type capturing struct {
	*memorySink
	to *capture
}

func (c *capturing) Accept(ctx context.Context, first uint64, events []outbox.Committed) error {
	c.to.mu.Lock()
	for _, e := range events {
		c.to.events = append(c.to.events, kept(e))
	}
	c.to.mu.Unlock()
	return c.memorySink.Accept(ctx, first, events)
}

// kept copies an event, whose bytes are borrowed.
func kept(e outbox.Committed) outbox.Committed {
	for _, b := range []*[]byte{&e.ID, &e.Tenant, &e.EventKey, &e.AggregateType, &e.AggregateID, &e.EventType, &e.Payload, &e.Headers, &e.Topic, &e.PartitionKey, &e.OccurredAt} {
		*b = bytes.Clone(*b)
	}
	e.Extra = slices.Clone(e.Extra)
	for i := range e.Extra {
		e.Extra[i].Value = bytes.Clone(e.Extra[i].Value)
	}
	return e
}

func (b *bench) capture() *capture {
	b.t.Helper()
	b.cfg.RetryHuman = b.cfg.BackoffMin
	c := &capture{t: b.t, ended: make(chan error, 1)}
	open := func(s cdc.Session) (cdc.Sink, error) {
		m := &memorySink{done: s.Done, drain: make(chan struct{}), stuck: make(chan struct{})}
		close(m.stuck)
		return &capturing{m, c}, nil
	}
	stream, err := cdc.NewStream(b.cfg, store, open, cdc.Listener{State: func(s state.Status) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.state = s
	}})
	if err != nil {
		b.t.Fatal(err)
	}
	c.stream = stream
	soft, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() { c.ended <- stream.Run(soft, soft) }()
	b.t.Cleanup(func() { stop(); <-c.ended })
	return c
}

// await waits for n different events and returns them in order, repetitions left out. A repetition out of order fails
// the test.
func (c *capture) await(n int) []outbox.Committed {
	c.t.Helper()
	var out []outbox.Committed
	testenv.Eventually(c.t, 60*time.Second, func() (bool, string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		out = out[:0]
		for _, e := range c.events {
			if i := len(out); i == 0 || out[i-1].Position.Compare(e.Position) < 0 {
				out = append(out, e)
			}
		}
		return len(out) >= n, fmt.Sprintf("%d of %d events; state %+v", len(out), n, c.state)
	})
	if len(out) > n {
		c.t.Fatalf("%d events, want %d", len(out), n)
	}
	return out
}

func (c *capture) awaitState(want state.State) state.Status {
	c.t.Helper()
	var st state.Status
	testenv.Eventually(c.t, 60*time.Second, func() (bool, string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		st = c.state
		return st.State == want, fmt.Sprintf("state is %q (%s), want %q", st.State, st.Reason, want)
	})
	return st
}

func onMajor(t *testing.T, major int) *testenv.Database {
	return testenv.NewDatabaseOn(t, testenv.PostgresMajor(t, major).DSN("postgres", ""))
}

// TestMapping_Types maps a table with every kind of column, in the binary and in the text form of the stream.
func TestMapping_Types(t *testing.T) {
	for _, major := range []int{14, 15, 18} {
		for _, form := range []string{"binary", "text"} {
			t.Run(fmt.Sprint(major, form), func(t *testing.T) {
				b := setup(t, onMajor(t, major), func(c *cdc.Config) {
					c.Tables = []cdc.Mapping{{
						Table: cdc.Table{Schema: "app", Name: `Ereignis "é"`}, IDPrefix: "e-", Route: 7,
						Columns: []cdc.Column{
							{Field: cdc.FieldID, Name: "ID"}, {Field: cdc.FieldAggregateType, Name: "kind"}, {Field: cdc.FieldAggregateID, Name: "agg"},
							{Field: cdc.FieldEventType, Name: "typ"}, {Field: cdc.FieldPayload, Name: "body"}, {Field: cdc.FieldHeaders, Name: "hdr"},
							{Field: cdc.FieldOccurredAt, Name: "at"},
						},
						Extra: []string{"i2", "i4", "i8", "yes", "nm", "bp", "raw", "tz", "at", "nul", "doc", "größe", "money"},
					}}
				})
				if form == "text" {
					b.cfg.Tables[0].Extra = append(b.cfg.Tables[0].Extra, "price", "moods")
				}
				b.exec(`create schema app`)
				b.exec(`create type app.mood as enum ('sad', 'so so')`)
				b.exec(`create domain app.label as text check (value <> '')`)
				b.exec(`create domain app.strict_label as app.label not null`)
				b.exec(`create domain app.amount as bigint`)
				b.exec(`create table app."Ereignis ""é""" (
					unused xml, "ID" bigint primary key, kind app.mood, agg uuid, typ app.strict_label, body jsonb, hdr json, at timestamp(3),
					i2 smallint, i4 int, i8 bigint, yes boolean, nm name, bp char(5), raw bytea, tz timestamptz, nul text, doc json, "größe" varchar(10),
					money app.amount, price numeric, moods app.mood[])`)
				c := b.capture()
				c.awaitState(state.Streaming)
				b.exec(`insert into app."Ereignis ""é""" values (null, -9007199254740993, 'so so', '01937f00-0000-7000-8000-00000000002a', 'Made',
					'{"b": 1.50,"a":[]}', '{"h": "v"}', '2019-03-24 20:52:59.1234', -32768, -2147483648, 9223372036854775807, true, 'a name', 'ab',
					'\x00ff5c78', '2026-11-30 18:57:22.5+02', null, ' {"x":  1.0}', 'groß', 42, 1.2300, '{sad,"so so"}')`)
				e := c.await(1)[0]
				want := map[string]string{
					"id": "e--9007199254740993", "type": "so so", "agg": "01937f00-0000-7000-8000-00000000002a", "event": "Made",
					"payload": `{"a": [], "b": 1.50}`, "headers": `{"h": "v"}`, "at": "2019-03-24 20:52:59.123+00",
				}
				got := map[string]string{
					"id": string(e.ID), "type": string(e.AggregateType), "agg": string(e.AggregateID), "event": string(e.EventType),
					"payload": string(e.Payload), "headers": string(e.Headers), "at": string(e.OccurredAt),
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				extra := []outbox.Extra{
					{Value: []byte("-32768"), Kind: outbox.KindNumber}, {Value: []byte("-2147483648"), Kind: outbox.KindNumber},
					{Value: []byte("9223372036854775807"), Kind: outbox.KindNumber}, {Value: []byte("true"), Kind: outbox.KindBool},
					{Value: []byte("a name"), Kind: outbox.KindText}, {Value: []byte("ab   "), Kind: outbox.KindText},
					{Value: []byte("\x00\xff\\x"), Kind: outbox.KindBytes}, {Value: []byte("2026-11-30 16:57:22.5+00"), Kind: outbox.KindTimestamp},
					{Value: []byte("2019-03-24 20:52:59.123"), Kind: outbox.KindTimestamp}, {Kind: outbox.KindText},
					{Value: []byte(` {"x":  1.0}`), Kind: outbox.KindJSON}, {Value: []byte("groß"), Kind: outbox.KindText}, {Value: []byte("42"), Kind: outbox.KindNumber},
				}
				if form == "text" {
					extra = append(extra, outbox.Extra{Value: []byte("1.2300"), Kind: outbox.KindText}, outbox.Extra{Value: []byte(`{sad,"so so"}`), Kind: outbox.KindText})
				}
				// The zone that a mapped time without one is given is harmless where it stands a second time.
				e.Extra[8].Value = bytes.TrimSuffix(e.Extra[8].Value, []byte("+00"))
				if diff := cmp.Diff(extra, e.Extra); diff != "" {
					t.Errorf("extra (-want +got):\n%s", diff)
				}
				if e.Route != 7 || e.PayloadKind != outbox.KindJSON || e.EventKey != nil || e.Tenant != nil || e.Topic != nil {
					t.Errorf("event %+v", e)
				}
			})
		}
	}
}

// TestMapping_Debezium reads Debezium's default table with nothing but the preset.
func TestMapping_Debezium(t *testing.T) {
	for _, major := range []int{14, 15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			b := setup(t, onMajor(t, major), func(c *cdc.Config) {
				c.Tables = []cdc.Mapping{{Table: cdc.Table{Schema: "public", Name: "outboxevent"}, Columns: cdc.DebeziumColumns(), Extra: []string{"aggregatetype"}}}
			})
			b.exec(`create table outboxevent (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`)
			c := b.capture()
			c.awaitState(state.Streaming)
			b.exec(`insert into outboxevent values ('01937f00-0000-7000-8000-00000000002a', 'UserEmail', '10711', 'UserCreated', '{"email":"a@example.com"}'), (gen_random_uuid(), 'UserEmail', '10711', 'UserDeleted', null)`)
			b.exec(`update outboxevent set type = type`)
			b.exec(`delete from outboxevent`)
			b.exec(`insert into outboxevent values (gen_random_uuid(), 'Last', '1', 'x', '[]')`)
			b.exec(`truncate outboxevent`)
			got := c.await(3)
			if e := got[0]; string(e.ID) != "01937f00-0000-7000-8000-00000000002a" || string(e.Key()) != "10711" || string(e.Payload) != `{"email": "a@example.com"}` ||
				string(e.Extra[0].Value) != "UserEmail" || e.EventType != nil || e.EventKey != nil || e.AggregateType != nil {
				t.Errorf("event %+v", e)
			}
			if got[1].Payload != nil || string(got[2].Payload) != "[]" {
				t.Errorf("payloads %q, %q", got[1].Payload, got[2].Payload)
			}
		})
	}
}

// TestMapping_SeveralTables reads three tables, one of them partitioned whose partitions come and go meanwhile.
func TestMapping_SeveralTables(t *testing.T) {
	for _, major := range []int{14, 15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			b := setup(t, onMajor(t, major), func(c *cdc.Config) {
				columns := []cdc.Column{{Field: cdc.FieldID, Name: "id"}, {Field: cdc.FieldAggregateID, Name: "agg"}, {Field: cdc.FieldPayload, Name: "body"}}
				c.Tables = []cdc.Mapping{
					{Table: cdc.Table{Schema: "outbox", Name: "events"}},
					{Table: cdc.Table{Schema: "a", Name: "log"}, Columns: columns, IDPrefix: "a:", Route: 1},
					{Table: cdc.Table{Schema: "b", Name: "log"}, Columns: columns, IDPrefix: "b:", Route: 2},
				}
			})
			b.exec(`create schema a; create schema b; create schema evil`)
			b.exec(`create table a.log (id int, agg text, body text, day int) partition by list (day)`)
			b.exec(`create table a.log_1 partition of a.log for values in (1)`)
			b.exec(`create table b.log (id int primary key, agg text, body text)`)
			b.exec(`create table evil.log (id int primary key, agg text, body text)`)
			c := b.capture()
			c.awaitState(state.Streaming)
			b.publish(1)
			b.exec(`begin; insert into a.log values (1, 'x', 'one', 1); insert into evil.log values (1, 'x', 'evil'); insert into b.log values (1, 'x', 'two'); commit`)
			b.exec(`create table a.log_2 (id int, agg text, body text, day int)`)
			b.exec(`alter table a.log attach partition a.log_2 for values in (2)`)
			b.exec(`insert into a.log values (2, 'x', 'three', 2)`)
			b.exec(`insert into a.log_2 values (3, 'x', 'four', 2)`)
			b.exec(`alter table a.log detach partition a.log_1`)
			if major > 14 { // which goes on publishing it, for as long as a stream lasts
				b.exec(`insert into a.log_1 values (4, 'x', 'not ours any more', 1)`)
			}
			b.exec(`drop table a.log_1`)
			b.exec(`create table a.log_3 partition of a.log default`)
			b.exec(`insert into a.log values (5, 'x', 'five', 9)`)
			b.publish(2)
			var got []string
			for _, e := range c.await(7) {
				got = append(got, fmt.Sprint(e.Route, " ", e.Position.Ordinal, " ", string(e.Payload)))
				if e.Route > 0 && string(e.ID[:2]) != []string{"", "a:", "b:"}[e.Route] {
					t.Errorf("ID %q of route %d", e.ID, e.Route)
				}
			}
			want := []string{`0 1 {"n" : 1}`, "1 1 one", "2 2 two", "1 1 three", "1 1 four", "1 1 five", `0 1 {"n" : 2}`}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// mapped makes a table for the tests of its changes and reads it.
func mapped(t *testing.T, columns string) (*bench, *capture) {
	b := setup(t, testenv.NewDatabase(t), func(c *cdc.Config) {
		c.Tables = []cdc.Mapping{{
			Table:   cdc.Table{Schema: "public", Name: "log"},
			Columns: []cdc.Column{{Field: cdc.FieldID, Name: "id"}, {Field: cdc.FieldAggregateID, Name: "agg"}, {Field: cdc.FieldPayload, Name: "body"}},
			Extra:   []string{"kind"}, BareID: true, IgnoreMissing: true,
		}}
	})
	b.exec(`create table log (id int primary key, agg text default 'x', body text` + columns + `)`)
	c := b.capture()
	c.awaitState(state.Streaming)
	return b, c
}

func bodies(events []outbox.Committed) []string {
	var out []string
	for _, e := range events {
		kind := "-"
		if x := e.Extra[0]; x.Kind != outbox.KindAbsent {
			kind = string(x.Value)
		}
		out = append(out, string(e.Payload)+" "+kind)
	}
	return out
}

// TestMapping_ChangingTable changes a table between its rows in every way that leaves an event possible.
func TestMapping_ChangingTable(t *testing.T) {
	b, c := mapped(t, ", junk int, kind text")
	b.exec(`create type mood as enum ('sad')`)
	for i, change := range []string{
		`select 1`,
		`alter table log drop column junk`,
		`alter table log add column junk text default 'new'`,
		`alter table log rename column junk to other`,
		`alter table log alter column id type bigint`,
		`vacuum full log`,
		`alter table log alter column body type json using body::json`,
		`alter table log alter column body type jsonb`,
		`alter table log drop column kind`,
		`alter table log add column kind mood`,
		`alter type mood add value 'glad'`,
		`alter table log alter column kind type numeric using null`,
		`alter table log alter column kind type text`,
		`alter table log alter column agg type varchar(50)`,
	} {
		b.exec(change)
		switch insert := fmt.Sprintf(`insert into log (id, body%%s) values (%d, '{"n": %d}'%%s)`, i, i); i {
		case 10:
			b.exec(fmt.Sprintf(insert, ", kind", ", 'glad'"))
		case 11: // a type that is not read in binary form
			b.exec(fmt.Sprintf(insert, ", kind", ", 2.50"))
		default:
			b.exec(fmt.Sprintf(insert, "", ""))
		}
	}
	b.exec(`insert into log (id, body, kind) values (100, '100', 'end')`)
	var want []string
	for i := range 14 {
		kind := map[int]string{8: " -", 10: " glad", 11: " 2.50"}[i]
		if kind == "" {
			kind = " "
		}
		want = append(want, fmt.Sprintf(`{"n": %d}`, i)+kind)
	}
	if diff := cmp.Diff(append(want, "100 end"), bodies(c.await(15))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMapping_ColumnMissing: a row without a required column is never an event with nothing in its place.
func TestMapping_ColumnMissing(t *testing.T) {
	b, c := mapped(t, "")
	b.exec(`insert into log (id, body) values (1, 'one')`)
	c.await(1)
	for _, change := range [][2]string{
		{`alter table log rename column body to text`, `alter table log rename column text to body`},
		{`alter table log drop column body`, `alter table log add column body text`},
	} {
		b.exec(change[0])
		st := c.awaitState(state.TableMismatch)
		if !strings.Contains(st.Reason, `"body"`) || st.Hint == "" {
			t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
		}
		b.exec(change[1])
		c.awaitState(state.Streaming)
	}
	b.exec(`insert into log (id, body) values (2, 'two')`)
	c.await(2)
	b.exec(`alter table log rename column body to text`)
	b.exec(`insert into log (id, text) values (3, 'three')`) // its description comes with the row: found at once
	c.awaitState(state.TableMismatch)
	if got := bodies(c.await(2)); got[1] != "two -" {
		t.Errorf("events %q", got)
	}
}

// TestMapping_TableGone: a table that is renamed, dropped or taken out of the publication goes silent in the stream.
func TestMapping_TableGone(t *testing.T) {
	b, c := mapped(t, "")
	b.exec(`alter table log rename to gone`)
	if st := c.awaitState(state.TableMismatch); !strings.Contains(st.Reason, `"public"."log"`) {
		t.Errorf("reason %q", st.Reason)
	}
	b.exec(`alter table gone rename to log`)
	c.awaitState(state.Streaming)
	b.exec(`drop table log; create table log (id int primary key, agg text default 'x', body text)`)
	if st := c.awaitState(state.PublicationMismatch); !strings.Contains(st.Hint, "ADD TABLE") {
		t.Errorf("hint %q", st.Hint)
	}
	b.exec(`alter publication relay add table log`)
	c.awaitState(state.Streaming)
	b.exec(`insert into log (id, body) values (1, 'one')`)
	if got := bodies(c.await(1)); got[0] != "one -" {
		t.Errorf("events %q", got)
	}
}

// TestMapping_Backlog: rows older than the slot become the same events as those of the stream, whatever their types.
func TestMapping_Backlog(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t), func(c *cdc.Config) {
		c.Backlog = cdc.BacklogPublish
		c.Tables = []cdc.Mapping{
			{Table: cdc.Table{Schema: "outbox", Name: "events"}},
			{Table: cdc.Table{Schema: "public", Name: "log"}, IDPrefix: "log-", Route: 1, Extra: []string{"price", "moods", "ok"},
				Columns: []cdc.Column{{Field: cdc.FieldID, Name: "id"}, {Field: cdc.FieldAggregateID, Name: "agg"}, {Field: cdc.FieldPayload, Name: "body"}, {Field: cdc.FieldOccurredAt, Name: "at"}}},
		}
	})
	b.exec(`create type mood as enum ('sad'); create table log (id bigserial primary key, agg int, body bytea, at timestamp, price numeric, moods mood[], ok bool)`)
	row := `insert into log (agg, body, at, price, moods, ok) values (7, '\x00ff', '2019-03-24 20:52:59', 1.50, '{sad}', true)`
	b.exec(row)
	b.publish(1)
	c := b.capture()
	c.awaitState(state.Streaming)
	b.exec(row)
	got := c.await(3)
	listed, streamed := got[0], got[2]
	if string(listed.ID) != "log-1" || string(streamed.ID) != "log-2" || got[1].Route != 0 {
		t.Errorf("IDs %q, %q", listed.ID, streamed.ID)
	}
	listed.ID, listed.Position, listed.CommitTime = streamed.ID, streamed.Position, streamed.CommitTime
	if diff := cmp.Diff(streamed, listed); diff != "" {
		t.Errorf("(-streamed +listed):\n%s", diff)
	}
}

// TestMapping_Refused lists tables that cannot be read; the reason names the column.
func TestMapping_Refused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*cdc.Mapping)
		reason string
		state  state.State
	}{
		"9 configured column does not exist":  {func(m *cdc.Mapping) { m.Columns[2].Name = "payload" }, `"payload"`, state.TableMismatch},
		"11 additional column does not exist": {func(m *cdc.Mapping) { m.Extra = []string{"nonExistingField"} }, `"nonExistingField"`, state.TableMismatch},
		"ID that is not unique elsewhere":     {func(m *cdc.Mapping) { m.BareID = false }, `"id"`, state.TableMismatch},
		"headers of a number":                 {func(m *cdc.Mapping) { m.Columns = append(m.Columns, cdc.Column{Field: cdc.FieldHeaders, Name: "id"}) }, `"id"`, state.TableMismatch},
		"table that is not there":             {func(m *cdc.Mapping) { m.Table.Name = "nowhere" }, `"nowhere"`, state.TableMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			m := cdc.Mapping{
				Table:   cdc.Table{Schema: "public", Name: "log"},
				Columns: []cdc.Column{{Field: cdc.FieldID, Name: "id"}, {Field: cdc.FieldAggregateID, Name: "agg"}, {Field: cdc.FieldPayload, Name: "body"}},
				BareID:  true,
			}
			tt.change(&m)
			b := setup(t, testenv.NewDatabase(t), func(c *cdc.Config) { c.Tables = []cdc.Mapping{m} })
			b.exec(`create table log (id int primary key, agg text, body text)`)
			st := b.capture().awaitState(tt.state)
			if !strings.Contains(st.Reason, tt.reason) || st.Hint == "" {
				t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
			}
		})
	}
}

// TestMapping_HostileNames: names that would end a statement, if they were not quoted.
func TestMapping_HostileNames(t *testing.T) {
	for _, name := range []string{`a"b`, `a'b`, `a,b`, `a);--`, `a b`, `ÄÖ`, `select`} {
		b := setup(t, testenv.NewDatabase(t), func(c *cdc.Config) {
			c.Publication = name
			c.Tables = []cdc.Mapping{{Table: cdc.Table{Schema: name, Name: name}, BareID: true, Columns: []cdc.Column{{Field: cdc.FieldID, Name: name}}}}
		})
		quoted := pgx.Identifier{name}.Sanitize()
		b.exec(fmt.Sprintf(`create schema %[1]s; create table %[1]s.%[1]s (%[1]s text primary key)`, quoted))
		c := b.capture()
		c.awaitState(state.Streaming)
		b.exec(fmt.Sprintf(`insert into %[1]s.%[1]s values ('x')`, quoted))
		if e := c.await(1)[0]; string(e.ID) != "x" {
			t.Errorf("%s: ID %q", name, e.ID)
		}
		c.stop()
	}
}
