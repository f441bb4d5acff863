package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/sink"
)

// vouched lets safe_xid pass every row that is there now.
func (r *rig) vouched(within time.Duration) {
	r.t.Helper()
	var bound uint64
	if err := r.conn.QueryRow(r.t.Context(), `select pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).Scan(&bound); err != nil {
		r.t.Fatal(err)
	}
	testenv.Eventually(r.t, within, func() (bool, string) {
		r.publish("pusher", 1) // each confirmation may take the horizon that the one before it has noted
		var safe uint64
		if err := r.conn.QueryRow(r.t.Context(), `select coalesce(safe_xid::text, '0')::bigint from outbox.relay_state where slot = $1`, r.slot).Scan(&safe); err != nil {
			return false, err.Error()
		}
		return safe >= bound, fmt.Sprintf("safe_xid is %d, want %d", safe, bound)
	})
}

// copies counts live records and replayed ones by event ID.
func (r *rig) copies() (live, again map[string]int) {
	r.t.Helper()
	live, again = map[string]int{}, map[string]int{}
	for _, rec := range r.consume() {
		id, _ := rec.Header("id")
		if kind, ok := rec.Header("relay_replay"); !ok {
			live[id]++
		} else if again[id]++; kind != "replay" {
			r.t.Errorf("relay_replay is %q", kind)
		}
	}
	return live, again
}

// TestE2E_Replay goes the way of a person: selects events, looks, has them published again, and sees that nothing else
// was.
func TestE2E_Replay(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	r.says(exitFailed, []string{"no relay has ever streamed"}, "replay", "--all", "--dry-run")
	p := r.startStreaming()
	ids := r.publish("order-1", 5)
	r.exec(`select outbox.publish('special:' || i, 'Order', 'order-2', 'Cancelled', '{}') from generate_series(1, 7) i`)
	r.vouched(30 * time.Second)

	r.says(exitUsage, []string{"no criterion"}, "replay", "--dry-run")
	r.says(exitUsage, []string{"--all"}, "replay", "--all", "--event-type", "Made", "--dry-run")
	r.says(exitUsage, []string{"--reason"}, "replay", "--all")
	r.says(exitUsage, []string{"not a time"}, "replay", "--since", "yesterday", "--dry-run")
	r.says(exitUsage, []string{"nobody to ask"}, "replay", "--event-type", "Cancelled", "--reason", "try")
	r.says(exitOK, []string{"events  none"}, "replay", "--event-key", "'; drop table outbox.events; --", "--reason", "try", "--yes")
	r.says(exitOK, []string{"7, with 14 B of values", "outbox", "Order Cancelled  7", r.topic, "first", "last"}, "replay", "--event-type", "Cancelled", "--dry-run")
	if _, again := r.copies(); len(again) > 0 {
		t.Fatalf("a dry run published %v", again)
	}
	r.says(exitOK, []string{"7 of 7 published", "done"}, "replay", "--event-type", "Cancelled", "--aggregate-id", "order-2", "--reason", "lost by the consumer", "--yes", "--wait")
	live, again := r.copies()
	if len(again) != 7 {
		t.Errorf("%d events were published again, want 7", len(again))
	}
	r.says(exitOK, []string{"2 of 2 published"}, "replay", "--event-id", ids[0], "--event-id", strings.ToUpper(ids[1]), "--event-id", "no uuid", "--reason", "lost", "--yes", "--wait")
	if _, again = r.copies(); again[ids[0]] != 1 || again[ids[1]] != 1 || len(again) != 9 {
		t.Errorf("published again: %v", again)
	}
	for id, n := range live {
		if n != 1 {
			t.Errorf("event %s is %d times in the topic", id, n)
		}
	}
	r.says(exitOK, []string{"no open requests"}, "requests", "list")
	out := r.says(exitOK, []string{"replay", "done", "7 of 7 published"}, "requests", "list", "--all")
	number := strings.Fields(strings.Split(out, "\n")[1])[0]
	r.says(exitOK, []string{"lost", "2 of 2 published", ids[0]}, "requests", "show", number)
	r.says(exitFailed, []string{"is over: done"}, "requests", "cancel", number, "--reason", "too late")

	// A relay that comes back finds all it has published, with replayed records last in the topic.
	p.kill()
	p = r.startStreaming()
	more := r.publish("order-1", 3)
	r.drained(p, 30*time.Second)
	live, _ = r.copies()
	for _, id := range append(ids, more...) {
		if live[id] != 1 {
			t.Errorf("event %s is %d times in the topic", id, live[id])
		}
	}
}

// TestE2E_Replay_Cancel calls a slow replay off.
func TestE2E_Replay_Cancel(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	r.startStreaming()
	r.publishBulk(500)
	r.vouched(30 * time.Second)
	r.says(exitOK, []string{"is asked"}, "replay", "--all", "--rate", "40", "--reason", "slowly", "--yes")
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		_, again := r.copies()
		return len(again) > 10, fmt.Sprintf("%d published again", len(again))
	})
	out := r.says(exitOK, []string{"running"}, "requests", "list")
	number := strings.Fields(strings.Split(out, "\n")[1])[0]
	r.says(exitOK, []string{"called off"}, "requests", "cancel", number, "--reason", "wrong events")
	// It looks once a second, and a chunk of 10 may be on its way.
	n, since := 0, time.Now()
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		if _, again := r.copies(); len(again) != n {
			n, since = len(again), time.Now()
		}
		return time.Since(since) > 2*time.Second && n < 500, fmt.Sprintf("%d published again", n)
	})
	r.says(exitOK, []string{"failed", "called off by", "wrong events"}, "requests", "show", number)
	// The next one is not kept waiting.
	r.says(exitOK, []string{"done"}, "replay", "--event-key", "key:1", "--reason", "next", "--yes", "--wait")
}

// TestE2E_Replay_Kill kills the relay again and again while it publishes 10,000 events again beside live ones: each of
// them is published again, at most one chunk of them twice for each kill, and the live ones once, in order.
func TestE2E_Replay_Kill(t *testing.T) {
	t.Parallel()
	seed := seed(t)
	rng := rand.New(rand.NewPCG(seed, 11))
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	p := r.startStreaming()
	r.publishBulk(10_000)
	old := r.outboxIDs()
	r.vouched(60 * time.Second)
	r.says(exitOK, nil, "replay", "--all", "--rate", "4000", "--reason", "consumer lost them", "--yes")
	stop := r.writeOn()
	const kills = 4
	for range kills {
		p.proc.WaitFor(time.Duration(300+rng.IntN(900)) * time.Millisecond)
		p.kill()
		p = r.start()
	}
	p.awaitState(state.Streaming, 60*time.Second)
	out := ""
	testenv.Eventually(t, 90*time.Second, func() (bool, string) {
		_, out = r.relayCommand("requests", "list", "--all")
		return strings.Contains(out, " done "), out
	})
	stop()
	r.drained(p, 60*time.Second)
	live, again := r.copies()
	r.mustBeInOrder("live")
	twice := 0
	for _, id := range old {
		if again[id] == 0 {
			t.Fatalf("event %s was not published again", id)
		}
		twice += again[id] - 1
	}
	if most := kills * replayChunk; twice > most {
		t.Errorf("%d events were published again more than once, want at most %d", twice, most)
	}
	for _, id := range r.outboxIDs() {
		if live[id] != 1 {
			t.Errorf("event %s is %d times in the topic", id, live[id])
		}
	}
	t.Logf("%d of %d events were published again more than once", twice, len(old))
}

// mustBeInOrder fails the test unless the live records of an aggregate that writeOn writes are in order.
func (r *rig) mustBeInOrder(aggregate string) {
	r.t.Helper()
	next := 0
	for _, rec := range r.consume() {
		key, _ := rec.Header("event_key")
		if _, again := rec.Header("relay_replay"); again || string(rec.Key) != aggregate {
			continue
		}
		if want := fmt.Sprint("live:", next); key != want {
			r.t.Fatalf("event %s stands where %s should", key, want)
		}
		next++
	}
}

// TestE2E_Replay_ReportsAfter reports nothing as done while the broker has not taken it.
func TestE2E_Replay_ReportsAfter(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	r.startStreaming()
	r.publish("order-1", 3)
	r.vouched(30 * time.Second)
	l := loadConfig(configFlags(), r.environ())
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	stream, err := newStream(l.config, nil, cdc.Listener{})
	if err != nil {
		t.Fatal(err)
	}
	// A sink that never gets its broker.
	desk := &replayDesk{stream: stream, sink: sink.New(sinkConfig(l.config), sink.NewStdout(io.Discard), "0123456789abcdef", nil, state.NewBoard(nil))}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	reports := 0
	report := func(_ context.Context, progress any) error {
		if reports++; progress.(replayProgress).Mark != nil {
			t.Error("something is reported as done")
		}
		return nil
	}
	_, err = desk.replay(ctx, requests.Request{Args: []byte(`{"all": true}`), Progress: []byte(`{}`)}, report)
	if !errors.Is(err, context.DeadlineExceeded) || reports != 1 {
		t.Errorf("%v after %d reports", err, reports)
	}
}
