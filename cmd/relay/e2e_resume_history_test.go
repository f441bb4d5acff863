package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_ResumeLarge kills the relay in the middle of a large transaction: it goes on where it was, and the check
// costs no memory to speak of.
func TestE2E_ResumeLarge(t *testing.T) {
	rows, limit := 500_000, 64<<20
	if testing.Short() {
		rows = 50_000
	}
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 6)
	binary := shippedRelay(t)
	p := startBinary(t, binary, r.environ()...)
	p.awaitStatus(30*time.Second, "does not stream", func(s *Report) bool { return s.Slot.Held })
	r.publishBulk(rows)
	p.awaitStatus(time.Minute, "does not come to the middle", func(s *Report) bool { return s.Published.Events > uint64(rows/3) })
	p.kill()
	p = startBinary(t, binary, r.environ()...)
	r.drained(p, 2*time.Minute)
	resumed, undecided := p.counter(resumedTotal), p.counter(undecidedTotal)
	if peak := p.peakRSS(); peak > limit {
		t.Errorf("the relay had %d MiB resident, the limit is %d", peak>>20, limit>>20)
	}
	p.stop()
	if resumed < float64(rows/3) || resumed >= float64(rows) || undecided != 0 {
		t.Errorf("%v events were found published, %v checks undecided", resumed, undecided)
	}
	distinct := map[string]bool{}
	records := r.consume()
	for i := range records {
		id, _ := records[i].Header("id")
		distinct[id] = true
	}
	if len(records) != rows || len(distinct) != rows {
		t.Errorf("%d records of %d events, want %d", len(records), len(distinct), rows)
	}
}

// TestE2E_OldData puts an older copy of the server's data back, as a restore does: what is committed from then on
// arrives, although records stand in Kafka at the same positions, of events with the same IDs, as a sequence would
// give them.
func TestE2E_OldData(t *testing.T) {
	t.Parallel()
	server := testenv.Dedicated(t, pgserver.Config{})
	r := newRig(t, server, testenv.Kafka(t), 2)
	p := r.startStreaming()
	before := r.publish("order-before", 5)
	r.drained(p, 30*time.Second)
	p.stop()

	life := func(word string) {
		for i := range 40 {
			r.exec(`
				INSERT INTO outbox.events (id, event_key, aggregate_type, aggregate_id, event_type, payload)
				VALUES (lpad($1::int::text, 32, '0')::uuid, 'n:' || $1::int, 'Order', 'order-' || $1::int % 4, 'Made', json_build_object('life', $2::text))`, i+1, word)
		}
	}
	copied := server.DataDir() + ".old"
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	restart := func(while func()) {
		t.Helper()
		if err := server.Stop(t.Context(), pgserver.Fast); err != nil {
			t.Fatal(err)
		}
		while()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.reconnect()
	}
	restart(func() { run("cp", "-a", server.DataDir(), copied) })
	p = r.startStreaming()
	life("one")
	testenv.ConsumeN(t, r.brokers, r.topic, len(before)+40, 30*time.Second)
	p.kill()
	restart(func() {
		run("rm", "-rf", server.DataDir())
		run("mv", copied, server.DataDir())
	})
	life("two")
	p = r.startStreaming()
	r.drained(p, 30*time.Second)
	p.stop()
	arrived := map[string]int{}
	for _, rec := range r.consume() {
		id, _ := rec.Header("id")
		if strings.Contains(string(rec.Value), `"two"`) {
			arrived[id]++
		}
	}
	for i := range 40 {
		if id := fmt.Sprintf("00000000-0000-0000-0000-%012d", i+1); arrived[id] != 1 {
			t.Errorf("the new event %s is %d times in the topic", id, arrived[id])
		}
	}
}
