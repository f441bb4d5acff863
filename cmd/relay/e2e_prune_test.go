package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// left counts the rows of the outbox table whose time is old, and the others.
func (r *rig) left() (old, young int) {
	r.t.Helper()
	err := r.conn.QueryRow(r.t.Context(), `
		select count(*) filter (where occurred_at < now() - interval '1 hour'), count(*) filter (where occurred_at >= now() - interval '1 hour') from outbox.events`).Scan(&old, &young)
	if err != nil {
		r.t.Fatal(err)
	}
	return old, young
}

// publishOld commits n events that happened two days ago, with IDs of that time.
func (r *rig) publishOld(n int) {
	r.t.Helper()
	r.exec(`
		insert into outbox.events (id, event_key, aggregate_type, aggregate_id, event_type, payload, occurred_at)
		select (left(ms, 8) || '-' || right(ms, 4) || '-7' || substr(gen_random_uuid()::text, 16))::uuid,
			'old:' || i, 'Order', 'order-' || i % 100, 'Made', '{}', at
		from generate_series(1, $1::int) i, lateral (select now() - interval '2 days' as at) a,
			lateral (select lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') as ms) m`, n)
}

// TestE2E_Prune has the relay prune beside a live stream, through kills: every old row goes, no young one does, and every
// event is in the topic once. A row that was committed and not published when the relay was killed is published.
func TestE2E_Prune(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	environ := []string{"RELAY_RETENTION_AGE=24h", "RELAY_RETENTION_INTERVAL=1s", "RELAY_RETENTION_BATCH=100"}
	p := r.startStreaming(environ...)
	r.publishOld(3000)
	ids := r.outboxIDs()
	stop := r.writeOn()
	for range 3 {
		p.proc.WaitFor(1500 * time.Millisecond)
		p.kill()
		before := map[string]bool{}
		for _, id := range r.outboxIDs() {
			before[id] = true
		}
		r.publishOld(200) // nobody has published these
		for _, id := range r.outboxIDs() {
			if !before[id] {
				ids = append(ids, id)
			}
		}
		p = r.start(environ...)
	}
	p.awaitState(state.Streaming, 60*time.Second)
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		old, young := r.left()
		return old == 0, fmt.Sprintf("%d old rows and %d young ones are left", old, young)
	})
	stop()
	r.drained(p, 60*time.Second)
	_, young := r.left()
	var written int
	live, _ := r.copies()
	for _, rec := range r.consume() {
		if key, _ := rec.Header("event_key"); strings.HasPrefix(key, "live:") {
			written++
		}
	}
	if young != written {
		t.Errorf("%d young rows are left of %d", young, written)
	}
	for _, id := range ids {
		if live[id] != 1 {
			t.Errorf("event %s is %d times in the topic", id, live[id])
		}
	}
	if log := p.log(); !strings.Contains(log, "rows pruned") {
		t.Errorf("the log does not say that rows were pruned:\n%s", tail(log, 1000))
	}
}

// TestE2E_PruneCommand prunes by hand, as a role without the right and with it, and holds while a replay waits.
func TestE2E_PruneCommand(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	r.says(exitFailed, []string{"no relay has ever streamed"}, "prune", "--older-than", "24h")
	p := r.startStreaming()
	r.publishOld(700)
	r.vouched(30 * time.Second)
	p.stop()
	r.says(exitUsage, []string{"how old rows become", "--older-than"}, "prune")
	r.says(exitUsage, []string{"out of range"}, "prune", "--older-than", "1s")
	r.says(exitUsage, []string{"not one that this relay reads"}, "prune", "--older-than", "24h", "--table", "pg_catalog.pg_class")
	r.says(exitOK, []string{"outbox.events: 700 rows would be deleted that are older than 24h"}, "prune", "--older-than", "24h", "--dry-run")
	r.says(exitOK, nil, "replay", "--event-key", "old:7", "--reason", "nobody is there", "--yes")
	r.says(exitFailed, []string{"a replay, is not over"}, "prune", "--older-than", "24h")
	if old, _ := r.left(); old != 700 {
		t.Fatalf("%d old rows are left", old)
	}
	out := r.says(exitOK, []string{"pending"}, "requests", "list")
	r.says(exitOK, []string{"called off"}, "requests", "cancel", strings.Fields(strings.Split(out, "\n")[1])[0], "--reason", "in the way")
	r.says(exitOK, []string{"outbox.events: 700 rows deleted"}, "prune", "--older-than", "24h")
	if old, young := r.left(); old != 0 || young == 0 {
		t.Errorf("%d old rows and %d young ones are left", old, young)
	}
	r.publishOld(3) // nobody has published them
	for _, how := range [][]string{nil, {"--dry-run"}} {
		r.says(exitOK, []string{"outbox.events: 0 rows ", "3 older rows are kept: not below safe_xid", fmt.Sprintf("of slot %q", r.slot)},
			append([]string{"prune", "--older-than", "24h"}, how...)...)
	}
	r.says(exitOK, []string{"outbox.requests: 0 rows deleted"}, "prune", "--retention-requests", "1h")
}
