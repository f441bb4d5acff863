package demo

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
)

// A reader that is told to finish reads what is there, to an end that is no record.
func TestRead_finishing(t *testing.T) {
	t.Parallel()
	f, err := kafkaserver.StartFake(kafkaserver.FakeConfig{Topics: map[string]int32{topic: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(f.Brokers()...), kgo.DefaultProduceTopic(topic),
		kgo.TransactionalID("t"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	const records = 20
	for range records {
		r := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(uuid.NewString())}}}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}

	finishing, finish := context.WithCancel(ctx)
	finish()
	tally := newTally(time.Now())
	if err := read(ctx, finishing, Target{Brokers: f.Brokers(), Topic: topic, Partitions: 2}, tally); err != nil {
		t.Fatal(err)
	}
	if got := tally.progress().Published; got != records {
		t.Errorf("read %d records, want %d", got, records)
	}
}
