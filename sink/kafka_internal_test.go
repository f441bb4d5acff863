package sink

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// openKafka returns a Kafka that has taken its epoch and knows the topic.
func openKafka(t *testing.T, cfg KafkaConfig, source, topic string) *Kafka {
	t.Helper()
	k := NewKafka(cfg, source)
	t.Cleanup(func() {
		if err := k.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		err := k.Open(t.Context())
		return err == nil, "Open fails"
	})
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		n, err := k.Partitions(t.Context(), topic)
		return err == nil && n > 0, "Partitions fails"
	})
	return k
}

func testKafkaConfig(brokers []string) KafkaConfig {
	cfg := DefaultKafkaConfig()
	cfg.Brokers = brokers
	cfg.RequestTimeout = 5 * time.Second
	return cfg
}

// one makes a batch of records of one key with the given values.
func one(t *testing.T, topic string, values ...string) *Batch {
	t.Helper()
	var events []outbox.Committed
	for _, v := range values {
		events = append(events, outbox.Committed{ID: []byte("id"), AggregateID: []byte("k"), Payload: []byte(v)})
	}
	b := build(t, topic, 0, events...)
	b.Time = time.Now()
	return b
}

func wantLog(t *testing.T, brokers []string, topic string, want ...string) {
	t.Helper()
	var got []string
	for _, r := range testenv.Consume(t, brokers, topic) {
		got = append(got, string(r.Value))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

// TestKafka_Fence lets an owner of yesterday send after its successor's fence and before its successor's first
// batch: the moment that only the fence covers.
func TestKafka_Fence(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 2, nil)
	cfg := testKafkaConfig(brokers)
	a := openKafka(t, cfg, "fence-"+topic, topic)
	if err := a.Send(t.Context(), one(t, topic, "a1")); err != nil {
		t.Fatal(err)
	}
	b := openKafka(t, cfg, "fence-"+topic, topic)
	if b.producer != a.producer || b.epoch <= a.epoch {
		t.Fatalf("epoch %d of producer %d became %d of %d", a.epoch, a.producer, b.epoch, b.producer)
	}
	if err := b.fences.fence(t.Context(), partitionKey{topic, 0}); err != nil {
		t.Fatal(err)
	}
	late := a.Send(t.Context(), one(t, topic, "a2"))
	if v := verdictOf(late, false); v.ends != ErrFenced {
		t.Errorf("the old owner's late batch: got %v, want it fenced", late)
	}
	if err := b.Send(t.Context(), one(t, topic, "b1")); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(t.Context(), one(t, topic, "a3")); verdictOf(err, false).ends != ErrFenced {
		t.Errorf("the old owner's next batch: got %v, want it fenced", err)
	}
	// The old owner cannot fence its way to a partition it has not used either.
	err := a.fences.fence(t.Context(), partitionKey{topic, 1})
	if verdictOf(err, false).ends != ErrFenced {
		t.Errorf("the old owner's fence: got %v, want it fenced", err)
	}
	wantLog(t, brokers, topic, "a1", "b1")
}

// TestKafka_Marker wants the fence to return only when the marker is in the partition's log.
func TestKafka_Marker(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, nil)
	k := openKafka(t, testKafkaConfig(brokers), "marker-"+topic, topic)
	for range 10 {
		before := endOffset(t, brokers, topic)
		if err := k.fences.fence(t.Context(), partitionKey{topic, 0}); err != nil {
			t.Fatal(err)
		}
		if after := endOffset(t, brokers, topic); after != before+1 {
			t.Fatalf("the log ends at %d after the fence and at %d before it", after, before)
		}
	}
}

// TestKafka_FenceEvery wants the identity to be used again between two batches, and sequences to go on.
func TestKafka_FenceEvery(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, nil)
	cfg := testKafkaConfig(brokers)
	cfg.FenceEvery = time.Nanosecond
	k := openKafka(t, cfg, "every-"+topic, topic)
	for _, v := range []string{"1", "2", "3"} {
		if err := k.Send(t.Context(), one(t, topic, v)); err != nil {
			t.Fatal(err)
		}
	}
	wantLog(t, brokers, topic, "1", "2", "3")
	if end := endOffset(t, brokers, topic); end != 6 { // three records, three markers
		t.Errorf("the log ends at %d, want 6", end)
	}
	k.cfg.FenceEvery = time.Hour
	if err := k.Send(t.Context(), one(t, topic, "4")); err != nil {
		t.Fatal(err)
	}
	if end := endOffset(t, brokers, topic); end != 7 {
		t.Errorf("the log ends at %d, want 7: the fence was not due", end)
	}
}

// TestKafka_Forgotten wants a silent owner whose identity the coordinator has lost to be told before it sends.
func TestKafka_Forgotten(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, nil)
	k := openKafka(t, testKafkaConfig(brokers), "forgotten-"+topic, topic)
	k.id += "-unknown" // what the coordinator sees once it has forgotten
	err := k.Send(t.Context(), one(t, topic, "1"))
	var code kafka.Error
	if !errors.As(err, &code) || code != kafka.InvalidProducerIDMapping || verdictOf(err, false).ends != ErrSequence {
		t.Errorf("got %v, want INVALID_PRODUCER_ID_MAPPING and the end of the session", err)
	}
	wantLog(t, brokers, topic)
}

// TestKafka_SequenceWraps carries the sequence over 2^31, within a batch and between two.
func TestKafka_SequenceWraps(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, nil)
	first := openKafka(t, testKafkaConfig(brokers), "wrap-"+topic, topic)
	if err := first.Send(t.Context(), one(t, topic, "0")); err != nil { // brokers want 0 in a virgin log
		t.Fatal(err)
	}
	k := openKafka(t, testKafkaConfig(brokers), "wrap2-"+topic, topic)
	k.partitions[partitionKey{topic, 0}] = &partition{fenced: true, next: 0x7fffffff - 1}
	for _, b := range []*Batch{one(t, topic, "1", "2", "3"), one(t, topic, "4")} {
		if err := k.Send(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	if next := k.partitions[partitionKey{topic, 0}].next; next != 2 {
		t.Errorf("next sequence is %d, want 2", next)
	}
	wantLog(t, brokers, topic, "0", "1", "2", "3", "4")
}

// TestKafka_Resend wants a batch that is sent again after its answer was lost to be there once.
func TestKafka_Resend(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, nil)
	k := openKafka(t, testKafkaConfig(brokers), "resend-"+topic, topic)
	b := one(t, topic, "1", "2")
	if err := k.Send(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for range 3 { // as if the answers had not come
		if err := k.produce(t.Context(), b, &partition{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.Send(t.Context(), one(t, topic, "3")); err != nil {
		t.Fatal(err)
	}
	wantLog(t, brokers, topic, "1", "2", "3")
}

// TestKafka_Close wants calls under way and later ones to end, and no connection to be left.
func TestKafka_Close(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, nil)
	k := openKafka(t, testKafkaConfig(brokers), "close-"+topic, topic)
	if err := k.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(k.net.sockets.open); n != 0 {
		t.Errorf("%d connections are open", n)
	}
	if err := k.Send(t.Context(), one(t, topic, "1")); !errors.Is(err, errNetworkClosed) {
		t.Errorf("Send after Close: got %v", err)
	}
}

func endOffset(t *testing.T, brokers []string, topic string) int64 {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	return ends[topic][0].Offset
}

// TestPacker_Keeps wants the buffer of a batch whose fate is open to be left to it: a connection that was given up may
// still be reading it.
func TestPacker_Keeps(t *testing.T) {
	p, err := newPacker("lz4")
	if err != nil {
		t.Fatal(err)
	}
	b := build(t, "t", 0, someEvents(200)...)
	p.pack(b)
	if b.packed == nil || b.wireSize() >= sizeLen+batchHeader+b.size {
		t.Fatalf("%d bytes were not made less", b.size)
	}
	b.open = true
	p.unpack(b)
	if b.packed == nil || len(p.free) != 0 {
		t.Error("the buffer of an open batch was taken for another")
	}
	b.open = false
	p.unpack(b)
	if b.packed != nil || len(p.free) != 1 {
		t.Error("the buffer of a settled batch was not kept")
	}
}
