package sink_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestPartitionsGrow wants a new partition count to be taken only when nothing of the topic is in flight, so that
// each key's records stand in order over its old and new partition.
func TestPartitionsGrow(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}})
	cfg := testConfig("t")
	cfg.PartitionsEvery = time.Nanosecond
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	batch := func(i int) []outbox.Committed {
		var events []outbox.Committed
		for k := range 40 {
			events = append(events, to("t", event(i*40+k, fmt.Sprint("key", k), fmt.Sprint(i))))
		}
		return events
	}
	s.accept(batch(0)...)
	s.awaitAcked(40)

	// Partition 1 does not answer while the topic grows: its old records must stay ahead of new ones elsewhere.
	fault := produceFault(f, kerr.NotLeaderForPartition, -1, 1)
	s.accept(batch(1)...)
	growTopic(t, f.Brokers(), "t", 7)
	var blocked <-chan error
	round := 2
	// The view of the cluster is renewed by the leader errors, so the growth is seen soon.
	testenv.Eventually(t, within, func() (bool, string) {
		blocked = s.acceptAside(batch(round)...)
		round++
		select {
		case err := <-blocked:
			return err != nil, fmt.Sprint("the growth is not seen: ", err)
		case <-time.After(300 * time.Millisecond):
			return true, ""
		}
	})
	for _, r := range testenv.Consume(t, f.Brokers(), "t") {
		if r.Partition >= 3 {
			t.Fatal("the new partitions were used while the old ones had records in flight")
		}
	}
	fault.Remove()
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	s.accept(batch(round)...)
	s.drain()

	// Every partition holds its keys in order; and a key's first record in its new partition follows all it has
	// in the old one.
	place := map[string][]int32{}
	next := map[string]int{}
	records := testenv.Consume(t, f.Brokers(), "t")
	slices.SortStableFunc(records, func(a, b testenv.Record) int { return strings.Compare(number(a), number(b)) })
	used := map[int32]bool{}
	for _, r := range records {
		key := string(r.Key)
		if string(r.Value) != fmt.Sprint(next[key]) {
			t.Fatalf("key %s: got %s, want %d", key, r.Value, next[key])
		}
		next[key]++
		used[r.Partition] = true
		if p := place[key]; len(p) == 0 || p[len(p)-1] != r.Partition {
			place[key] = append(p, r.Partition)
		}
	}
	for key, p := range place {
		if len(p) > 2 || next[key] != round+1 {
			t.Errorf("key %s has %d records and went through partitions %v", key, next[key], p)
		}
	}
	if len(used) != 7 {
		t.Errorf("partitions in use: %v", used)
	}
}

func number(r testenv.Record) string { return fmt.Sprintf("%08s", r.Value) }
