package testenv_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

func client(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func produce(t *testing.T, c *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	for _, r := range records {
		if err := c.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewTopic(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	admin := kadm.NewClient(client(t, brokers))
	var names []string
	t.Run("use", func(t *testing.T) {
		for range 2 {
			names = append(names, testenv.NewTopic(t, brokers, 3, map[string]string{"max.message.bytes": "2000"}))
		}
		if names[0] == names[1] {
			t.Errorf("two topics of one name %q", names[0])
		}
		topics, err := admin.ListTopics(t.Context(), names...)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(topics[names[1]].Partitions); got != 3 {
			t.Errorf("got %d partitions, want 3", got)
		}
		configs, err := admin.DescribeTopicConfigs(t.Context(), names[0])
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(configs[0].Configs, func(c kadm.Config) bool { return c.Key == "max.message.bytes" })
		if i < 0 || configs[0].Configs[i].MaybeValue() != "2000" {
			t.Errorf("got configs %v, want max.message.bytes=2000", configs[0].Configs)
		}
	})
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		topics, err := admin.ListTopics(t.Context(), names...)
		if err != nil {
			return false, err.Error()
		}
		for _, name := range names {
			if topics.Has(name) {
				return false, "topic is left: " + name
			}
		}
		return true, ""
	})
}

func TestConsume(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 3, nil)
	if got := testenv.Consume(t, brokers, topic); len(got) != 0 {
		t.Errorf("got %v from an empty topic", got)
	}

	at := time.UnixMilli(1_700_000_000_123)
	c := client(t, brokers)
	produce(t, c,
		&kgo.Record{Topic: topic, Partition: 2, Timestamp: at, Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{
			{Key: "id", Value: []byte("1")}, {Key: "id", Value: []byte("2")}, {Key: "empty", Value: []byte{}},
		}},
		&kgo.Record{Topic: topic, Partition: 0, Timestamp: at}, // null key, null value
		&kgo.Record{Topic: topic, Partition: 2, Timestamp: at, Key: []byte{}, Value: []byte{}},
	)
	// An aborted transaction: its record is there to be seen, the marker behind it is not, and is the
	// partition's last entry.
	tx := client(t, brokers, kgo.TransactionalID(topic))
	if err := tx.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, tx, &kgo.Record{Topic: topic, Partition: 1, Timestamp: at, Value: []byte("aborted")})
	if err := tx.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}

	want := []testenv.Record{
		{Topic: topic, Partition: 0, Offset: 0, Time: at},
		{Topic: topic, Partition: 1, Offset: 0, Time: at, Value: []byte("aborted")},
		{Topic: topic, Partition: 2, Offset: 0, Time: at, Key: []byte("k"), Value: []byte("v"), Headers: []testenv.Header{
			{Key: "id", Value: []byte("1")}, {Key: "id", Value: []byte("2")}, {Key: "empty", Value: []byte{}},
		}},
		{Topic: topic, Partition: 2, Offset: 1, Time: at, Key: []byte{}, Value: []byte{}},
	}
	got := testenv.Consume(t, brokers, topic)
	producers := cmpopts.IgnoreFields(testenv.Record{}, "ProducerID", "ProducerEpoch", "LeaderEpoch")
	if diff := cmp.Diff(want, got, producers); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if len(got) == 4 {
		if got[0].ProducerID < 0 || got[0].ProducerID == got[1].ProducerID || got[0].ProducerID != got[2].ProducerID {
			t.Errorf("producer ids %d, %d, %d: want two producers", got[0].ProducerID, got[1].ProducerID, got[2].ProducerID)
		}
		if v, ok := got[2].Header("id"); v != "1" || !ok {
			t.Errorf("header id: got %q, %v; want the first", v, ok)
		}
		if v, ok := got[2].Header("none"); v != "" || ok {
			t.Errorf("header none: got %q, %v; want none", v, ok)
		}
	}
	if diff := cmp.Diff(want, testenv.ConsumeN(t, brokers, topic, 4, 10*time.Second), producers); diff != "" {
		t.Errorf("ConsumeN (-want +got):\n%s", diff)
	}
}

func TestConsumeN_waits(t *testing.T) {
	t.Parallel()
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 2, nil)
	c := client(t, brokers)
	produced := make(chan error, 1)
	go func() {
		for i := range 20 {
			record := &kgo.Record{Topic: topic, Partition: int32(i % 2), Value: []byte("x")}
			if err := c.ProduceSync(t.Context(), record).FirstErr(); err != nil {
				produced <- err
				return
			}
		}
		produced <- nil
	}()
	if got := len(testenv.ConsumeN(t, brokers, topic, 20, 20*time.Second)); got != 20 {
		t.Errorf("got %d records, want 20", got)
	}
	if err := <-produced; err != nil {
		t.Error(err)
	}
	r := record(t, func(tb testing.TB) { testenv.ConsumeN(tb, brokers, topic, 21, 300*time.Millisecond) })
	if !strings.Contains(r.failed, "records within") {
		t.Errorf("failed with %q, want that 21 records did not come", r.failed)
	}
}

func TestDedicatedKafka(t *testing.T) {
	var b *kafkaserver.Broker
	t.Run("use", func(t *testing.T) {
		b = testenv.DedicatedKafka(t, kafkaserver.Config{})
		topic := testenv.NewTopic(t, b.Brokers(), 1, nil)
		produce(t, client(t, b.Brokers()), &kgo.Record{Topic: topic, Value: []byte("kept")})
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(testenv.Consume(t, b.Brokers(), topic)); got != 1 {
			t.Errorf("got %d records after kill and restart, want 1", got)
		}
	})
	if b != nil && b.PID() != 0 {
		t.Error("the broker was not closed with its test")
	}
}

func TestKafka_elsewhere(t *testing.T) {
	t.Setenv("RELAY_TEST_KAFKA_BROKERS", "127.0.0.1:1,127.0.0.1:2")
	if got, want := testenv.Kafka(t), []string{"127.0.0.1:1", "127.0.0.1:2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
