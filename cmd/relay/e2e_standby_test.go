package main

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_Standbys kills the relay that holds the slot, with three more waiting: one of them, and only one, relays
// within 5 s.
func TestE2E_Standbys(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	active := r.startStreaming()
	waiting := []*relayProcess{r.start(), r.start(), r.start()}
	ids := r.publish("order-1", 5)
	for range 3 {
		for _, p := range waiting {
			p.awaitState(state.Standby, 20*time.Second)
		}
		r.drained(active, 30*time.Second)
		active.kill()
		killed := time.Now()
		took := -1
		testenv.Eventually(t, 20*time.Second, func() (bool, string) {
			for i, p := range waiting {
				if _, st := p.ready(); st.State == state.Streaming {
					took = i
				}
			}
			return took >= 0, "no standby has taken over"
		})
		if d := time.Since(killed); d > 5*time.Second {
			t.Errorf("the takeover took %v", d)
		}
		active = waiting[took]
		waiting = append(append([]*relayProcess{}, waiting[:took]...), waiting[took+1:]...)
		ids = append(ids, r.publish(fmt.Sprint("order-", len(waiting)), 5)...)
		for _, p := range waiting {
			if s := p.status(); s.Slot.Held || s.Published.Events != 0 {
				t.Errorf("a second relay holds the slot or has published: %+v", s)
			}
		}
	}
	r.drained(active, 30*time.Second)
	active.stop()
	r.mustHave(ids, true)
}

// TestE2E_PausedRelay stops a relay (SIGSTOP) with events on the way to Kafka, ends its walsender, and lets another one
// take over and publish them. What the first has sent arrives after that, and it wakes: nothing of what it had in
// hand gets into the topic any more, it confirms nothing, and it becomes a standby.
func TestE2E_PausedRelay(t *testing.T) {
	t.Parallel()
	fake := fakeKafka(t)
	r := newRig(t, sharedPostgres(t), fake.Brokers(), 1)
	first := r.startStreaming()
	ids := r.publish("order-1", 3)
	r.drained(first, 30*time.Second)
	held, release := chaos.HoldProduce(fake)
	t.Cleanup(release)
	ids = append(ids, r.publish("order-1", 20)...)
	select {
	case <-held:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was sent")
	}
	first.signal(syscall.SIGSTOP)
	var ended bool
	if err := r.conn.QueryRow(t.Context(), `SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = $1`, r.slot).Scan(&ended); err != nil || !ended {
		t.Fatalf("end walsender: %v, %v", ended, err)
	}
	second := r.startStreaming()
	ids = append(ids, r.publish("order-1", 20)...)
	r.drained(second, 30*time.Second)
	release()
	first.signal(syscall.SIGCONT)
	first.awaitState(state.Standby, 30*time.Second)
	ids = append(ids, r.publish("order-1", 20)...)
	r.drained(second, 30*time.Second)
	if s := first.status(); s.Published.Events != 3 {
		t.Errorf("the relay that was overtaken has published %d events, want the 3 before", s.Published.Events)
	}
	first.stop()
	second.stop()
	r.mustHave(ids, true)
}
