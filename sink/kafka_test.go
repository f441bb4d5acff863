package sink_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

func TestKafka_ReadBack(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 3, nil)
	s := start(t, testConfig(topic), sink.NewKafka(kafkaConfig(brokers), source))

	before := time.Now().Add(-time.Millisecond)
	full := to(topic, outbox.Committed{
		Position:      outbox.Position{Incarnation: 2, LSN: 0x16B374D848, Ordinal: 7},
		CommitTime:    before,
		ID:            []byte("0198c7a0-0000-7000-8000-000000000001"),
		Tenant:        []byte("acme"),
		EventKey:      []byte("order-placed:42"),
		AggregateType: []byte("order"),
		AggregateID:   []byte("42"),
		EventType:     []byte("OrderPlaced"),
		Payload:       []byte(`{ "amount": 1.10000000000000000001 }`),
		Headers:       []byte(`{"traceparent": "00-ab-cd-01", "note": "gr\u00fc\u00dfe \"x\""}`),
		PartitionKey:  []byte("customer-9"),
		OccurredAt:    []byte("2026-11-30 18:57:22.5+00"),
	})
	tombstone := to(topic, event(2, "customer-9", ""))
	tombstone.Payload = nil
	tombstone.PartitionKey = []byte("customer-9")
	empty := to(topic, event(3, "customer-9", ""))
	empty.EventKey = []byte{}
	s.accept(full, tombstone, empty)
	s.drain()

	records := testenv.Consume(t, brokers, topic)
	if len(records) != 3 {
		t.Fatalf("got %d records, want 3", len(records))
	}
	got := records[0]
	wantHeaders := []testenv.Header{
		{Key: "id", Value: []byte("0198c7a0-0000-7000-8000-000000000001")},
		{Key: "event_key", Value: []byte("order-placed:42")},
		{Key: "event_type", Value: []byte("OrderPlaced")},
		{Key: "aggregate_type", Value: []byte("order")},
		{Key: "occurred_at", Value: []byte("2026-11-30T18:57:22.500000Z")},
		{Key: "tenant", Value: []byte("acme")},
		{Key: "relay_position", Value: []byte("00112233aabbccdd-00000002-00000016b374d848-00000007")},
		{Key: "traceparent", Value: []byte("00-ab-cd-01")},
		{Key: "note", Value: []byte(`grüße "x"`)},
	}
	if diff := cmp.Diff(wantHeaders, got.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if string(got.Key) != "customer-9" || string(got.Value) != string(full.Payload) {
		t.Errorf("got key %q value %q", got.Key, got.Value)
	}
	if got.Time.Before(before) || got.Time.After(time.Now()) {
		t.Errorf("got time %v, want the publish time", got.Time)
	}
	if got.ProducerID < 0 {
		t.Error("the record was not written idempotently")
	}
	if records[1].Value != nil {
		t.Errorf("tombstone has value %q", records[1].Value)
	}
	if records[2].Value == nil || len(records[2].Value) != 0 {
		t.Errorf("empty payload became %v", records[2].Value)
	}
	if v, ok := records[2].Header("event_key"); !ok || v != "" {
		t.Errorf("empty event key became %q, %v", v, ok)
	}
	for _, name := range []string{"event_key", "tenant", "occurred_at"} {
		if _, ok := records[1].Header(name); ok {
			t.Errorf("header %s is there although the column is NULL or empty", name)
		}
	}
}

func TestKafka_Order(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 8, nil)
	cfg := testConfig(topic)
	cfg.WindowBytes = 256 << 10
	cfg.BatchBytes = 16 << 10
	s := start(t, cfg, sink.NewKafka(kafkaConfig(brokers), source))

	const keys, each = 50, 200
	for i := range each {
		var events []outbox.Committed
		for k := range keys {
			events = append(events, to(topic, event(i*keys+k, fmt.Sprint("key", k), fmt.Sprint(i))))
		}
		s.accept(events...)
	}
	s.drain()
	s.awaitAcked(keys * each)
	checkOrder(t, testenv.Consume(t, brokers, topic), keys, each)
	if got := s.Stats(); got.Published[topic] != keys*each || got.BacklogEvents != 0 || got.BacklogBytes != 0 {
		t.Errorf("got stats %+v", got)
	}
	checkGoroutines(t)
}

// checkOrder wants for each key the values 0, 1, 2 .. each-1, once.
func checkOrder(t testing.TB, records []testenv.Record, keys, each int) {
	t.Helper()
	next := map[string]int{}
	for _, r := range records {
		key := string(r.Key)
		if want := fmt.Sprint(next[key]); string(r.Value) != want {
			t.Fatalf("partition %d offset %d: key %q has value %s, want %s", r.Partition, r.Offset, key, r.Value, want)
		}
		next[key]++
	}
	if len(next) != keys {
		t.Errorf("got %d keys, want %d", len(next), keys)
	}
	for key, n := range next {
		if n != each {
			t.Errorf("key %q: got %d records, want %d", key, n, each)
		}
	}
}
