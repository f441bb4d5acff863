package sink_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// stream is what a slot delivers to a topic: numbered events of a few keys, each a transaction of its own.
type stream struct {
	brokers []string
	topic   string
	source  string
	event   func(n int) outbox.Committed
}

func newStream(t *testing.T, brokers []string, topic string) *stream {
	return &stream{brokers: brokers, topic: topic, source: fmt.Sprintf("%016x", time.Now().UnixNano()), event: func(n int) outbox.Committed {
		return to(topic, event(n, fmt.Sprint("key", n%5), fmt.Sprint(n)))
	}}
}

func (m *stream) events(from, until int) (events []outbox.Committed) {
	for n := from; n < until; n++ {
		events = append(events, m.event(n))
	}
	return events
}

// session resumes at event from, as a relay that had confirmed everything before it, and publishes up to until.
func (m *stream) session(t *testing.T, from, until int) sink.Stats {
	t.Helper()
	cfg := testConfig(m.topic)
	cfg.ResumeLSN = m.event(from).Position.LSN
	s := startAs(t, cfg, sink.NewKafka(kafkaConfig(m.brokers), m.source), m.source)
	s.accept(m.events(from, until)...)
	s.drain()
	s.awaitAcked(uint64(until - from))
	return s.Stats()
}

// wantOnce fails the test unless the topic holds each event up to until once, in order for each key, among
// whatever else.
func (m *stream) wantOnce(t *testing.T, until int) {
	t.Helper()
	next := map[string]int{}
	total := 0
	for _, r := range testenv.Consume(t, m.brokers, m.topic) {
		position, _ := r.Header("relay_position")
		source, _, err := outbox.ParsePosition(position)
		if _, replay := r.Header("relay_replay"); replay || err != nil || source != m.source {
			continue
		}
		key := string(r.Key)
		if _, seen := next[key]; !seen {
			fmt.Sscanf(key, "key%d", &total)
			next[key] = total
		}
		if string(r.Value) != fmt.Sprint(next[key]) {
			t.Fatalf("partition %d offset %d: key %s has value %s, want %d", r.Partition, r.Offset, key, r.Value, next[key])
		}
		next[key] += 5
	}
	for key, n := range next {
		if n < until || n >= until+5 {
			t.Errorf("key %s ends before %d, want it to end at %d", key, n, until)
		}
	}
	if len(next) != min(5, until) {
		t.Errorf("got keys %v", next)
	}
}

// producer is a client that is not the relay.
func producer(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func produce(t *testing.T, client *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestResume_Found(t *testing.T) {
	brokers := testenv.Kafka(t)
	m := newStream(t, brokers, testenv.NewTopic(t, brokers, 3, nil))
	if st := m.session(t, 0, 100); st.Resumed != 0 || st.Undecided != 0 {
		t.Errorf("the first session: got %+v", st)
	}
	for i, tt := range []struct{ from, until, found int }{{50, 150, 50}, {150, 150, 0}, {0, 150, 150}, {149, 1150, 1}, {600, 1150, 550}} {
		st := m.session(t, tt.from, tt.until)
		if st.Resumed != uint64(tt.found) || st.Undecided != 0 || st.BacklogBytes != 0 {
			t.Errorf("session %d: got %+v, want %d found", i, st, tt.found)
		}
	}
	m.wantOnce(t, 1150)
}

// TestResume_Others puts records of everybody else, replays and control records at the tail and in between.
func TestResume_Others(t *testing.T) {
	brokers := testenv.Kafka(t)
	for name, tail := range map[string]func(t *testing.T, m *stream){
		"a producer": func(t *testing.T, m *stream) {
			client := producer(t, brokers)
			for range 300 {
				produce(t, client, &kgo.Record{Topic: m.topic, Key: []byte("key1"), Value: []byte(strings.Repeat("x", 500))})
			}
		},
		"transactions": func(t *testing.T, m *stream) {
			client := producer(t, brokers, kgo.TransactionalID("other-"+m.topic))
			for i := range 20 {
				if err := client.BeginTransaction(); err != nil {
					t.Fatal(err)
				}
				produce(t, client, &kgo.Record{Topic: m.topic, Key: []byte("key1"), Value: []byte("x")})
				if err := client.EndTransaction(t.Context(), kgo.TransactionEndTry(i%2 == 0)); err != nil {
					t.Fatal(err)
				}
			}
		},
		"another database": func(t *testing.T, m *stream) {
			other := newStream(t, brokers, m.topic)
			other.session(t, 0, 500)
			other.session(t, 250, 700)
			other.wantOnce(t, 700)
		},
		"replays": func(t *testing.T, m *stream) {
			client := producer(t, brokers)
			for n := range 200 {
				e := m.event(n % 100)
				produce(t, client, &kgo.Record{Topic: m.topic, Key: e.AggregateID, Value: e.Payload, Headers: []kgo.RecordHeader{
					{Key: "id", Value: e.ID}, {Key: "relay_position", Value: outbox.AppendPosition(nil, m.source, e.Position)}, {Key: "relay_replay", Value: []byte("1")},
				}})
			}
		},
		"forged positions": func(t *testing.T, m *stream) {
			client := producer(t, brokers)
			for _, text := range []string{"", "x", m.source, m.source + "-00000001-zz00000000000000-00000001", strings.Repeat("-", 52)} {
				produce(t, client, &kgo.Record{Topic: m.topic, Key: []byte("key1"), Value: nil, Headers: []kgo.RecordHeader{{Key: "relay_position", Value: []byte(text)}}})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
			m.session(t, 0, 60)
			tail(t, m)
			m.session(t, 60, 100)
			tail(t, m)
			if st := m.session(t, 30, 130); st.Resumed != 70 || st.Undecided != 0 {
				t.Errorf("got %+v, want 70 found", st)
			}
			m.wantOnce(t, 130)
		})
	}
}

// TestResume_Compressed reads our records in batches of every compression.
func TestResume_Compressed(t *testing.T) {
	brokers := testenv.Kafka(t)
	for name, codec := range map[string]kgo.CompressionCodec{
		"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
			var records []*kgo.Record
			for _, e := range m.events(0, 3000) {
				records = append(records, &kgo.Record{Topic: m.topic, Key: e.AggregateID, Value: e.Payload, Headers: []kgo.RecordHeader{
					{Key: "id", Value: e.ID}, {Key: "relay_position", Value: outbox.AppendPosition(nil, m.source, e.Position)},
				}})
			}
			produce(t, producer(t, brokers, kgo.ProducerBatchCompression(codec)), records...)
			if st := m.session(t, 1500, 3100); st.Resumed != 1500 || st.Undecided != 0 {
				t.Errorf("got %+v, want 1500 found", st)
			}
			m.wantOnce(t, 3100)
		})
	}
}

// wantAll fails the test unless every value is there, and the last record of each key is its newest.
func wantAll(t *testing.T, records []testenv.Record, from, until int) {
	t.Helper()
	seen := map[string]bool{}
	last := map[string]string{}
	for _, r := range records {
		seen[string(r.Value)] = true
		last[fmt.Sprint(r.Partition, string(r.Key))] = string(r.Value)
	}
	for n := from; n < until; n++ {
		if !seen[fmt.Sprint(n)] {
			t.Errorf("event %d is lost", n)
		}
	}
	for n := until - 5; n < until; n++ {
		newest := false
		for _, v := range last {
			newest = newest || v == fmt.Sprint(n)
		}
		if !newest {
			t.Errorf("event %d is not the last of its key", n)
		}
	}
}

func deleteRecords(t *testing.T, brokers []string, topic string, before int64) {
	t.Helper()
	admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, before, -1)
		res, err := c.DeleteRecords(ctx, offsets)
		if err == nil {
			err = res.Error()
		}
		return err
	})
}

// TestResume_ManyPartitions touches a thousand partitions at once, each with a large batch of somebody else.
func TestResume_ManyPartitions(t *testing.T) {
	const partitions = 1000
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": partitions}})
	m := newStream(t, f.Brokers(), "t")
	m.event = func(n int) outbox.Committed {
		return to("t", event(n, fmt.Sprint("key", n%20000), strings.Repeat("x", 500)))
	}
	m.session(t, 0, 20000)
	client := producer(t, f.Brokers())
	var records []*kgo.Record
	for p := range partitions {
		records = append(records, &kgo.Record{Topic: "t", Partition: int32(p), Value: make([]byte, 50<<10)})
	}
	produce(t, client, records...)
	st := m.session(t, 0, 20000)
	if st.Resumed != 20000 || st.Undecided != 0 || st.Lanes != partitions {
		t.Errorf("got %d found, %d undecided, %d lanes", st.Resumed, st.Undecided, st.Lanes)
	}
}
