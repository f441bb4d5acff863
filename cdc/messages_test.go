package cdc_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

func messages(c *cdc.Config) {
	c.Messages = []cdc.MessageMapping{{Prefix: cdc.EmitPrefix, Emitted: true, Route: 1}, {Prefix: "app", Route: 2}}
}

// TestMessages_Emit publishes without a table, in one order with what has one, and only what commits.
func TestMessages_Emit(t *testing.T) {
	for _, major := range []int{14, 15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			b := setup(t, onMajor(t, major), messages)
			c := b.capture()
			c.awaitState(state.Streaming)
			const id = "01937f00-0000-7000-8000-00000000002a"
			b.exec(`select outbox.emit(event_key => 'k:1', aggregate_type => 'Order', aggregate_id => '42', event_type => 'Made', payload => ' {"n":  1.50, "ü": null}',
				headers => '{"traceparent": "x"}', topic => 'orders', partition_key => 'p', tenant => 'acme', occurred_at => '2026-07-10 12:00:00.123456+00', id => $1)`, uuid.MustParse(id))
			b.exec(`select outbox.emit('k:2', 'Order', '42', 'Gone')`)
			b.exec(`begin; select outbox.emit('k:no', 'Order', '42', 'Made', '{}'); rollback`)
			b.exec(`begin; select outbox.emit('k:3', 'Order', '42', 'Made', payload_bytes => '\x00ff');
				savepoint s; select outbox.emit('k:no', 'Order', '42', 'Made'); rollback to s;
				select outbox.publish('k:4', 'Order', '42', 'Made'); select pg_logical_emit_message(true, 'other', 'x'); select outbox.emit('k:5', 'Order', '42', 'Made', payload_bytes => ''); commit`)
			got := c.await(5)
			first := outbox.Committed{
				ID: []byte(id), Tenant: []byte("acme"), EventKey: []byte("k:1"), AggregateType: []byte("Order"), AggregateID: []byte("42"), EventType: []byte("Made"),
				Payload: []byte(` {"n":  1.50, "ü": null}`), PayloadKind: outbox.KindJSON, Headers: []byte(`{"traceparent": "x"}`), Topic: []byte("orders"),
				PartitionKey: []byte("p"), OccurredAt: []byte("2026-07-10 12:00:00.123456+00"), Route: 1, Position: got[0].Position, CommitTime: got[0].CommitTime,
			}
			if diff := cmp.Diff(first, got[0]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if e := got[1]; e.Payload != nil || e.Topic != nil || e.Headers != nil || e.OccurredAt == nil || len(e.ID) != 36 || e.Tenant == nil {
				t.Errorf("event %+v", e)
			}
			var order []string
			for _, e := range got[2:] {
				order = append(order, fmt.Sprintf("%s %d %d %x", e.EventKey, e.Route, e.Position.Ordinal, e.Payload))
			}
			if diff := cmp.Diff([]string{"k:3 1 1 00ff", "k:4 0 2 ", "k:5 1 4 "}, order); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got[4].Payload == nil {
				t.Error("an empty payload became NULL")
			}
		})
	}
}

// TestMessages_Foreign: messages of others are events only under a configured prefix, only in a transaction, and cannot
// break the stream.
func TestMessages_Foreign(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t), messages)
	c := b.capture()
	c.awaitState(state.Streaming)
	b.exec(`begin; select pg_logical_emit_message(false, 'app', 'F18 not of the transaction'); rollback`)
	b.exec(`select pg_logical_emit_message(false, 'app', 'not of a transaction')`)
	b.exec(`select pg_logical_emit_message(false, 'outbox', 'not of a transaction')`)
	for _, prefix := range []string{"ap", "app2", "APP", "heartbeat", "outbox2", ""} {
		b.exec(`select pg_logical_emit_message(true, $1, 'of somebody else')`, prefix)
	}
	b.exec(`select pg_logical_emit_message(true, 'app', '\x00ff'::bytea)`)
	b.exec(`select pg_logical_emit_message(true, 'app', '')`)
	for _, forged := range []string{"", "{}", "\x01", "\x02", "\x01\x7f\xff\xff\xff"} {
		b.exec(`select pg_logical_emit_message(true, 'outbox', $1::bytea)`, []byte(forged))
	}
	b.publish(1)
	got := c.await(8)
	for i, payload := range []string{"\x00\xff", ""} {
		e := got[i]
		source, pos, err := outbox.ParsePosition(string(e.ID))
		if err != nil || pos != e.Position || len(source) != outbox.SourceLen || string(e.Payload) != payload || e.Payload == nil ||
			string(e.Key()) != "app" || e.Route != 2 || e.PayloadKind != outbox.KindBytes || e.Unreadable != "" {
			t.Errorf("event %+v, ID %v", e, err)
		}
	}
	for _, e := range got[2:7] {
		if _, pos, err := outbox.ParsePosition(string(e.ID)); err != nil || pos != e.Position || e.Unreadable == "" || e.Route != 1 || e.Payload != nil {
			t.Errorf("event %+v, ID %v", e, err)
		}
	}
	if string(got[7].Payload) != `{"n" : 1}` {
		t.Errorf("event %+v", got[7])
	}
	if n := c.stream.Stats().SkippedMessages; n < 8 { // the first may be of WAL that the slot does not begin before
		t.Errorf("%d messages counted as passed over", n)
	}
}

// TestMessages_OffByDefault: without a configuration no message is an event.
func TestMessages_OffByDefault(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	c := b.capture()
	c.awaitState(state.Streaming)
	b.exec(`select outbox.emit('k', 'Order', '42', 'Made')`)
	b.exec(`begin; select pg_logical_emit_message(true, 'app', 'x'); select outbox.publish('k', 'Order', '42', 'Made'); commit`)
	if e := c.await(1)[0]; e.Position.Ordinal != 2 {
		t.Errorf("position %+v", e.Position)
	}
}

// TestEnsure_Publication: the publication brings the mapped columns of every table and nothing else.
func TestEnsure_Publication(t *testing.T) {
	for _, major := range []int{14, 15} {
		b := setup(t, onMajor(t, major), func(c *cdc.Config) {
			c.Tables = []cdc.Mapping{
				{Table: cdc.Table{Schema: "outbox", Name: "events"}},
				{Table: cdc.Table{Schema: "public", Name: "Log"}, BareID: true, Columns: []cdc.Column{{Field: cdc.FieldID, Name: "Id"}}, Extra: []string{"a b", "Id"}},
			}
		})
		b.exec(`create table "Log" ("Id" text primary key, "a b" text, secret text)`)
		b.ensured()
		var got []string
		query := `select tablename || ': ' || array_to_string(attnames, ', ') from pg_publication_tables where pubname = 'relay' order by 1`
		want := []string{"Log: Id, a b", "events: id, tenant, event_key, aggregate_type, aggregate_id, event_type, payload, payload_bytes, headers, topic, partition_key, occurred_at"}
		if major == 14 {
			query, want = `select tablename from pg_publication_tables where pubname = 'relay' order by 1`, []string{"Log", "events"}
		}
		rows, err := b.app.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				t.Fatal(err)
			}
			got = append(got, s)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d (-want +got):\n%s", major, diff)
		}
		b.exec(`alter publication relay drop table "Log"`)
		if st := b.capture().awaitState(state.PublicationMismatch); !strings.Contains(st.Reason, `"public"."Log"`) {
			t.Errorf("reason %q", st.Reason)
		}
	}
}
