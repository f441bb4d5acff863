package cdc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
)

// pruned walks a table to its end and returns how many rows went, and the most that went at once.
func (b *bench) pruned(a *cdc.Archive, table string, age time.Duration, batch int) (total, most int64) {
	b.t.Helper()
	p, err := a.Pruner(b.t.Context(), cdc.Retention{Table: table, Age: age}, batch)
	if err != nil {
		b.t.Fatal(err)
	}
	for ok := true; ok; {
		var done cdc.Pruned
		if done, ok, err = p.Next(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
		total, most = total+done.Gone, max(most, done.Gone)
	}
	return total, most
}

func (b *bench) left(sql string) (names []string) {
	b.t.Helper()
	rows, err := b.app.Query(b.t.Context(), sql)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			b.t.Fatal(err)
		}
		names = append(names, s)
	}
	return names
}

// TestPrune_Withheld deletes what is old and published, and nothing that something needs.
func TestPrune_Withheld(t *testing.T) {
	b, reasons := withheld(t)
	// Another slot's relay has a say too.
	b.exec(`update outbox.dead_letters set slot = 'other' where state = 'held'`)
	b.exec(`insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload) values ('young', 'Order', '1', 'Made', '{}')`)
	a := b.archive()
	if n, _ := b.pruned(a, "outbox.events", 100*365*24*time.Hour, 3); n != 0 {
		t.Errorf("%d rows pruned that are not old enough", n)
	}
	p, err := a.Pruner(t.Context(), cdc.Retention{Table: "outbox.events", Age: time.Hour}, 3)
	if err != nil {
		t.Fatal(err)
	}
	if n, oldest, err := p.Count(t.Context()); n != 4 || oldest.Year() != 2026 || err != nil {
		t.Errorf("count %d, oldest %v, %v", n, oldest, err)
	}
	if n, most := b.pruned(a, "outbox.events", time.Hour, 3); n != 4 || most > 3 {
		t.Errorf("%d rows pruned, %d at once, want 4 and at most 3", n, most)
	}
	if diff := cmp.Diff(append(reasons, "young"), b.left(`select event_key from outbox.events order by id`)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if n, _ := b.pruned(a, "app.Log", time.Hour, 3); n != 4 {
		t.Errorf("%d rows of the mapped table pruned, want 4", n)
	}
	if diff := cmp.Diff(reasons, b.left(`select agg from app."Log" order by "Id"`)); diff != "" {
		t.Errorf("left of the mapped table (-want +got):\n%s", diff)
	}
	for table, want := range map[string]string{"public.outboxevent": "no column with the event's time", "public.other": "not one that this relay reads"} {
		if _, err := a.Pruner(t.Context(), cdc.Retention{Table: table, Age: time.Hour}, 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", table, err)
		}
	}
}

// TestPrune_Held deletes nothing where safe_xid of any slot says nothing, and while a replay is asked for.
func TestPrune_Held(t *testing.T) {
	b := archived(t)
	b.exec(`insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload, occurred_at) select i, 'Order', '1', 'Made', '{}', '2026-01-01Z' from generate_series(1, 50) i`)
	b.vouch()
	a := b.archive()
	begun, err := a.Pruner(t.Context(), cdc.Retention{Table: "outbox.events", Age: time.Hour}, 5)
	if err != nil {
		t.Fatal(err)
	}
	held := func(why string) {
		t.Helper()
		if _, err := a.Pruner(t.Context(), cdc.Retention{Table: "outbox.events", Age: time.Hour}, 5); !errors.Is(err, cdc.ErrPruneHeld) || !strings.Contains(err.Error(), why) {
			t.Errorf("got %v, want %s", err, why)
		}
	}
	why := map[string]string{"system_identifier": "another server", "phase": "being made"}
	for harm, undo := range map[string]string{
		`update outbox.relay_state set safe_xid = null`:                                                                       `update outbox.relay_state set safe_xid = pg_snapshot_xmax(pg_current_snapshot())`,
		`update outbox.relay_state set system_identifier = '7'`:                                                               `update outbox.relay_state set system_identifier = (select system_identifier::text from pg_control_system())`,
		`update outbox.relay_state set phase = 'creating'`:                                                                    `update outbox.relay_state set phase = 'streaming'`,
		`insert into outbox.relay_state select 'second', system_identifier, 1, 1, 'streaming', '0/1' from outbox.relay_state`: `delete from outbox.relay_state where slot = 'second'`,
	} {
		b.exec(harm)
		held("slot")
		for column, text := range why {
			if strings.Contains(harm, "set "+column) {
				held(text)
			}
		}
		b.exec(undo)
	}
	// The slowest relay decides.
	b.exec(`insert into outbox.relay_state (slot, system_identifier, timeline, incarnation, phase, confirmed_lsn, safe_xid)
		select 'second', system_identifier, 1, 1, 'streaming', '0/1', '3' from outbox.relay_state`)
	if n, _ := b.pruned(a, "outbox.events", time.Hour, 5); n != 0 {
		t.Errorf("%d rows pruned that another relay has not published", n)
	}
	b.exec(`delete from outbox.relay_state where slot = 'second'`)
	for _, state := range []string{"pending", "running"} {
		b.exec(`insert into outbox.requests (slot, kind, actor, reason, state) values ('any', 'replay', 'x', 'y', $1)`, state)
		held("replay")
		// A walk that was begun before stops too.
		if done, _, err := begun.Next(t.Context()); err != nil || done.Gone != 0 {
			t.Errorf("%d rows pruned while a replay is %s, %v", done.Gone, state, err)
		}
		b.exec(`update outbox.requests set state = 'done'`)
	}
	if n, _ := b.pruned(a, "outbox.events", time.Hour, 5); n != 50 {
		t.Errorf("%d rows pruned in the end, want 50", n)
	}
}

// TestPrune_Partitions deletes from a partitioned table, whose partitions have ctids of their own, and from a table
// whose rows a second pruner deletes at the same time.
func TestPrune_Partitions(t *testing.T) {
	b := archived(t)
	b.exec(`drop table app."Log"`)
	b.exec(`create table app."Log" ("Id" int, agg text, body bytea, at timestamp, primary key ("Id", at)) partition by range (at)`)
	for m := 1; m <= 3; m++ {
		b.exec(fmt.Sprintf(`create table app."Log%d" partition of app."Log" for values from ('2026-%02d-01') to ('2026-%02d-01')`, m, m, m+1))
	}
	// In each partition every second row waits as a dead letter, at the ctids where another partition's may go.
	b.exec(`insert into app."Log" select m * 1000 + i, case when (i + m) % 2 = 0 then 'stays' else 'goes' end, '\x00', make_timestamp(2026, m, 2, 0, 0, 0) from generate_series(1, 3) m, generate_series(1, 200) i`)
	b.exec(`insert into outbox.dead_letters (slot, source_table, event_id, position, is_null, headers, class, reason, state)
		select $1, '"app"."Log"', 'log:' || "Id", '0000000000000000-00000001-0000000000000001-00000001', true, '[]'::jsonb, 'too_large', 'x', 'parked' from app."Log" where agg = 'stays'`, b.cfg.Slot)
	b.vouch()
	first, second := b.archive(), b.archive()
	p1, err := first.Pruner(t.Context(), cdc.Retention{Table: "app.Log", Age: time.Hour}, 10)
	if err != nil {
		t.Fatal(err)
	}
	p2, err := second.Pruner(t.Context(), cdc.Retention{Table: "app.Log", Age: time.Hour}, 7)
	if err != nil {
		t.Fatal(err)
	}
	var gone int64
	for ok1, ok2 := true, true; ok1 || ok2; {
		for _, p := range []struct {
			*cdc.Pruner
			ok *bool
		}{{p1, &ok1}, {p2, &ok2}} {
			if !*p.ok {
				continue
			}
			var done cdc.Pruned
			if done, *p.ok, err = p.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			gone += done.Gone
		}
	}
	if diff := cmp.Diff([]string{"stays 300"}, b.left(`select agg || ' ' || count(*) from app."Log" group by agg`)); diff != "" || gone != 300 {
		t.Errorf("%d pruned; left (-want +got):\n%s", gone, diff)
	}
}

// TestPrune_Records deletes requests that are over and letters that nothing needs.
func TestPrune_Records(t *testing.T) {
	b := archived(t)
	for _, s := range []string{"pending", "running", "done", "failed"} {
		for _, old := range []int{0, 10} {
			b.exec(`insert into outbox.requests (slot, kind, actor, reason, state, updated_at) values ($1, 'requeue', 'x', $2, $3, clock_timestamp() - make_interval(hours => $4))`,
				b.cfg.Slot, fmt.Sprint(s, " ", old), s, old)
		}
	}
	a := b.archive()
	if n, err := a.PruneRequests(t.Context(), time.Hour); n != 2 || err != nil {
		t.Errorf("%d requests, %v, want 2", n, err)
	}
	if diff := cmp.Diff([]string{"done 0", "failed 0", "pending 0", "pending 10", "running 0", "running 10"}, b.left(`select reason from outbox.requests order by 1`)); diff != "" {
		t.Errorf("requests left (-want +got):\n%s", diff)
	}

	letter := func(note, source, id, position, state string, hours int) {
		b.exec(`insert into outbox.dead_letters (slot, source_table, event_id, position, is_null, headers, class, reason, state, note, updated_at)
			values ($1, $2, $3, $4, true, '[]', 'too_large', 'x', $5, $6, clock_timestamp() - make_interval(hours => $7))`, b.cfg.Slot, source, id, position, state, note, hours)
	}
	var system, database string
	if err := b.app.QueryRow(t.Context(), `select system_identifier::text, current_database() from pg_control_system()`).Scan(&system, &database); err != nil {
		t.Fatal(err)
	}
	b.exec(`update outbox.relay_state set confirmed_lsn = '0/100'`)
	source := cdc.SourceOf(system, database, b.cfg.Slot)
	old, open := source+"-00000003-00000000000000ff-00000001", source+"-00000003-0000000000000100-00000001"
	b.exec(`insert into app."Log" values (7, 'x', null, now())`)
	letter("gone published", `"app"."Log"`, "log:1", old, "published", 2)
	letter("gone discarded", `"app"."Log"`, "log:2", old, "discarded", 2)
	letter("gone of a message", `message x`, "m", old, "discarded", 2)
	letter("gone of another source", `message x`, "n", "ffffffffffffffff-00000009-0000000000000fff-00000001", "discarded", 2)
	letter("young", `"app"."Log"`, "log:3", old, "discarded", 0)
	letter("parked", `"app"."Log"`, "log:4", old, "parked", 2)
	letter("not confirmed", `"app"."Log"`, "log:5", open, "discarded", 2)
	letter("not a table of ours", `"app"."other"`, "log:6", old, "discarded", 2)
	letter("has its row", `"app"."Log"`, "log:7", old, "discarded", 2)
	b.exec(`insert into outbox.backlog (slot, ordinal, source_table, event_id) values ($1, 1, 'x', 'y')`, b.cfg.Slot)
	if n, err := a.PruneLetters(t.Context(), time.Hour, 2); n != 0 || err != nil {
		t.Errorf("%d letters while a backlog is left, %v", n, err)
	}
	b.exec(`delete from outbox.backlog`)
	if n, err := a.PruneLetters(t.Context(), time.Hour, 2); n != 4 || err != nil {
		t.Errorf("%d letters, %v, want 4", n, err)
	}
	if diff := cmp.Diff([]string{"has its row", "not a table of ours", "not confirmed", "parked", "young"}, b.left(`select note from outbox.dead_letters order by 1`)); diff != "" {
		t.Errorf("letters left (-want +got):\n%s", diff)
	}
}
