package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_TopicMissing starts before its topic exists.
func TestE2E_TopicMissing(t *testing.T) {
	t.Parallel()
	r := newRigWithoutTopic(t, sharedPostgres(t), testenv.Kafka(t))
	p := r.startStreaming()
	id, before := r.publishOne("order-1")
	ids := append(r.publish("order-1", 5), id)
	status := p.awaitState(state.TopicMissing, 20*time.Second)
	if !strings.Contains(status.Reason, r.topic) || status.Hint == "" {
		t.Errorf("status does not name topic %q or has no hint: %+v", r.topic, status)
	}
	stillUnconfirmed(r, before)
	testenv.CreateTopic(t, r.brokers, r.topic, 2, nil)
	p.awaitState(state.Streaming, 20*time.Second)
	r.drained(p, 20*time.Second)
	p.stop()
	r.mustHave(ids, true)
}

// TestE2E_Oversize publishes an event that its topic does not take: the relay halts and names it, the other
// partitions go on, nothing behind it is lost; when the topic takes more the relay goes on by itself.
func TestE2E_Oversize(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: a halted relay looks again after half a minute")
	}
	r := newRigWithoutTopic(t, sharedPostgres(t), testenv.Kafka(t))
	testenv.CreateTopic(t, r.brokers, r.topic, 4, map[string]string{"max.message.bytes": "20000"})
	p := r.startStreaming("RELAY_KAFKA_COMPRESSION=none") // what it is too large for is counted after compression
	ids := r.publish("order-1", 5)
	guilty, before := r.publishValue("order-1", 100_000)
	behind := r.publish("order-1", 5)
	status := p.awaitState(state.Halted, 20*time.Second)
	if !strings.Contains(status.Reason, guilty) || status.Hint == "" {
		t.Errorf("status does not name event %s or has no hint: %+v", guilty, status)
	}
	ids = append(ids, guilty)
	var others []string
	for i := range 40 {
		others = append(others, r.publish(fmt.Sprint("customer-", i), 1)...)
	}
	here := map[string]bool{}
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		clear(here)
		for _, rec := range r.consume() {
			id, _ := rec.Header("id")
			here[id] = true
		}
		n := 0
		for _, id := range others {
			if here[id] {
				n++
			}
		}
		return n >= len(others)/4, fmt.Sprintf("%d of %d events of other aggregates are published", n, len(others)) // of four partitions one stands
	})
	for _, id := range append(behind, guilty) {
		if here[id] {
			t.Errorf("event %s is published, and it is not before the one that halts", id)
		}
	}
	stillUnconfirmed(r, before)
	if err := chaos.SetTopicConfig(t.Context(), r.brokers, r.topic, "max.message.bytes", "1048588"); err != nil {
		t.Fatal(err)
	}
	p.awaitState(state.Streaming, 45*time.Second)
	r.drained(p, 20*time.Second)
	p.stop()
	r.mustHave(append(append(ids, behind...), others...), true)
}
