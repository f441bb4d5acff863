package cdc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestBacklog_MappedTables lists and recovers rows of several tables, one of which knows neither time nor transaction.
func TestBacklog_MappedTables(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t), func(c *cdc.Config) {
		c.Backlog = cdc.BacklogPublish
		c.Tables = []cdc.Mapping{
			{Table: cdc.Table{Schema: "outbox", Name: "events"}},
			{Table: cdc.Table{Schema: "app", Name: "Log"}, IDPrefix: "log:", Columns: []cdc.Column{
				{Field: cdc.FieldID, Name: "Id"}, {Field: cdc.FieldAggregateID, Name: "agg"}, {Field: cdc.FieldPayload, Name: "body"},
			}},
		}
	})
	b.exec(`create schema app`)
	b.exec(`create table app."Log" ("Id" int primary key, agg text, body text, other bytea)`)
	logRows := func(from, to int) {
		b.exec(`insert into app."Log" select i, 'x', 'body ' || i, '\x00' from generate_series($1::int, $2::int) i`, from, to)
	}
	b.fill(1, 300)
	logRows(1, 400)
	r := b.start(nil)
	r.awaitState(state.Streaming)
	events := r.awaitEvents(700)
	if n := len(distinctIDs(events)); n != 700 || len(events) != 700 {
		t.Errorf("%d events with %d IDs, want 700", len(events), n)
	}
	next := 1
	for _, e := range events {
		if e.id != fmt.Sprintf("log:%d", next) {
			continue
		}
		if e.payload != fmt.Sprintf("body %d", next) {
			t.Errorf("event %s has payload %q", e.id, e.payload)
		}
		next++
	}
	if next != 401 {
		t.Errorf("rows of the table without time came in order up to %d, want all of 400", next-1)
	}

	// Let safe_xid pass all of this, then lose the slot.
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		b.exec(publishSQL, "0")
		var passed bool
		if err := b.app.QueryRow(t.Context(), `
			select coalesce(bool_and(age(l.xmin) > age(s.safe_xid::xid)), false) from app."Log" l, outbox.relay_state s where s.slot = $1`, b.cfg.Slot).Scan(&passed); err != nil {
			t.Fatal(err)
		}
		return passed, "safe_xid does not pass what is published"
	})
	r.stopCleanly()
	b.dropSlot()
	logRows(401, 410)
	b.fill(301, 10)
	b.recover(cdc.Scope{}, state.SlotMissing)
	r = b.start(nil)
	r.awaitState(state.Streaming)
	want := b.idsOf(`select id::text from outbox.events where event_key <> 'key:0' and substr(event_key, 5)::int > 300`)
	for i := 401; i <= 410; i++ {
		want[fmt.Sprintf("log:%d", i)] = true
	}
	r.awaitIDs(want)
	for id := range distinctIDs(r.seen()) {
		var n int
		if _, err := fmt.Sscanf(id, "log:%d", &n); err == nil && n <= 400 {
			t.Errorf("%s came again, and safe_xid had passed it", id)
		}
	}
}
