package sink_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
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

// TestResume_PartitionsRaised wants keys that moved to be published again rather than lost, and that to be counted.
func TestResume_PartitionsRaised(t *testing.T) {
	brokers := testenv.Kafka(t)
	m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
	m.session(t, 0, 100)
	growTopic(t, brokers, m.topic, 7)
	testenv.Eventually(t, within, func() (ok bool, why string) {
		admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
			topics, err := c.ListTopics(ctx, m.topic)
			ok = err == nil && len(topics[m.topic].Partitions) == 7
			return err
		})
		return ok, "the topic does not grow"
	})
	st := m.session(t, 50, 150)
	if st.Undecided == 0 {
		t.Errorf("nothing was counted: %+v", st)
	}
	wantAll(t, testenv.Consume(t, brokers, m.topic), 0, 150)
	m.session(t, 100, 200)
	wantAll(t, testenv.Consume(t, brokers, m.topic), 0, 200)
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

// TestResume_TopicRenamed wants events to be complete in the topic that they go to now.
func TestResume_TopicRenamed(t *testing.T) {
	brokers := testenv.Kafka(t)
	m := newStream(t, brokers, testenv.NewTopic(t, brokers, 2, nil))
	m.session(t, 0, 100)
	renamed := *m
	renamed.topic = testenv.NewTopic(t, brokers, 2, nil)
	renamed.event = func(n int) outbox.Committed { return to(renamed.topic, m.event(n)) }
	if st := renamed.session(t, 50, 120); st.Resumed != 0 || st.Undecided != 0 {
		t.Errorf("got %+v", st)
	}
	wantAll(t, testenv.Consume(t, brokers, renamed.topic), 50, 120)
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

// TestResume_Truncated takes away the log's beginning: all of it, all of ours, and a part of ours.
func TestResume_Truncated(t *testing.T) {
	brokers := testenv.Kafka(t)
	for _, tt := range []struct {
		name             string
		before           int64
		found, undecided uint64
	}{{"everything", -1, 0, 0}, {"up to the middle of what comes again", 80, 0, 1}, {"before what comes again", 40, 50, 0}} {
		t.Run(tt.name, func(t *testing.T) {
			m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
			m.session(t, 0, 100)
			deleteRecords(t, brokers, m.topic, tt.before)
			if st := m.session(t, 50, 120); st.Resumed != tt.found || st.Undecided != tt.undecided {
				t.Errorf("got %+v, want %d found, %d undecided", st, tt.found, tt.undecided)
			}
			wantAll(t, testenv.Consume(t, brokers, m.topic), 80, 120)
		})
	}
}

// TestResume_Compacted wants a log with holes to repeat events rather than lose one, and to end with the newest.
func TestResume_Compacted(t *testing.T) {
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: map[string]string{"log.cleaner.backoff.ms": "100"}})
	brokers := broker.Brokers()
	m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0",
	}))
	m.session(t, 0, 100)
	testenv.Eventually(t, 40*time.Second, func() (bool, string) {
		produce(t, producer(t, brokers), &kgo.Record{Topic: m.topic, Key: []byte("other"), Value: []byte("x")}) // rolls the segment
		n := len(testenv.Consume(t, brokers, m.topic))
		return n < 60, fmt.Sprintf("%d records: the log is not compacted", n)
	})
	st := m.session(t, 50, 120)
	if st.Undecided != 1 || st.Resumed >= 50 {
		t.Errorf("got %+v", st)
	}
	records := testenv.Consume(t, brokers, m.topic)
	last := map[string]string{}
	for _, r := range records {
		last[string(r.Key)] = string(r.Value)
	}
	for n := 115; n < 120; n++ {
		if got := last[fmt.Sprint("key", n%5)]; got != fmt.Sprint(n) {
			t.Errorf("the last record of key%d is %s, want %d", n%5, got, n)
		}
	}
}

// TestResume_OldData puts an older copy of the database back: its server writes other events to the LSNs that have
// been published from. They arrive, also where a sequence gave the new event an old one's id.
func TestResume_OldData(t *testing.T) {
	brokers := testenv.Kafka(t)
	for name, change := range map[string]func(*outbox.Committed){
		"other ids": func(e *outbox.Committed) {
			e.ID = append(e.ID, "-new"...)
			e.Payload = append([]byte("new "), e.Payload...)
		},
		"the same ids":      func(e *outbox.Committed) { e.Payload = append([]byte("new "), e.Payload...) },
		"positions between": func(e *outbox.Committed) { e.Position.Ordinal = 9; e.Payload = append([]byte("new "), e.Payload...) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
			m.session(t, 0, 100)
			old := *m
			old.event = func(n int) outbox.Committed { e := m.event(n); change(&e); return e }
			if st := old.session(t, 50, 80); st.Resumed != 0 || st.Undecided != 1 {
				t.Errorf("got %+v", st)
			}
			var got, want []string
			for n := 50; n < 80; n++ {
				want = append(want, fmt.Sprint("new ", n))
			}
			for _, r := range testenv.Consume(t, brokers, m.topic)[100:] {
				got = append(got, string(r.Value))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// TestResume_UndecidedCutOff kills a session in the middle of a run that it could not help repeating: the next one
// goes on to the end, so that the last record of each key is its newest.
func TestResume_UndecidedCutOff(t *testing.T) {
	brokers := testenv.Kafka(t)
	m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
	m.session(t, 0, 100)
	deleteRecords(t, brokers, m.topic, 60)
	if st := m.session(t, 50, 75); st.Undecided != 1 || st.Resumed != 0 { // and then it was killed
		t.Errorf("got %+v", st)
	}
	m.session(t, 50, 100)
	records := testenv.Consume(t, brokers, m.topic)
	wantAll(t, records, 60, 100)
	if last := records[len(records)-1]; string(last.Value) != "99" {
		t.Errorf("the last record is %s", last.Value)
	}
}

// TestResume_Clone lets a copy of the database publish under the same name, each taking the other's identity: both
// have all their events in the topic.
func TestResume_Clone(t *testing.T) {
	brokers := testenv.Kafka(t)
	m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
	clone := *m
	clone.event = func(n int) outbox.Committed {
		e := m.event(n)
		if n >= 50 { // the copy was taken there
			e.ID = append(e.ID, "-clone"...)
			e.Payload = append([]byte("clone "), e.Payload...)
			e.Position.Ordinal = uint32(1 + n%2)
		}
		return e
	}
	m.session(t, 0, 60)
	clone.session(t, 40, 70)
	m.session(t, 40, 80)
	clone.session(t, 60, 90)
	m.session(t, 70, 100)
	seen := map[string]int{}
	for _, r := range testenv.Consume(t, brokers, m.topic) {
		seen[string(r.Value)]++
	}
	for n := range 100 {
		if seen[fmt.Sprint(n)] == 0 {
			t.Errorf("event %d is lost", n)
		}
	}
	for n := 50; n < 90; n++ {
		if seen[fmt.Sprint("clone ", n)] == 0 {
			t.Errorf("the clone's event %d is lost", n)
		}
	}
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

// TestResume_Denied wants a topic that may not be read to be named with its two ways out.
func TestResume_Denied(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	m := newStream(t, f.Brokers(), "t")
	m.session(t, 0, 10)
	for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets} {
		fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: kerr.TopicAuthorizationFailed, Count: -1})
		s := startAs(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), m.source), m.source)
		s.accept(m.events(0, 12)...)
		status := s.board.await(t, state.BrokerDenied)
		if !strings.Contains(status.Hint, "Read") || !strings.Contains(status.Hint, "resume_check") {
			t.Errorf("got %+v", status)
		}
		if s.isAcked(1) {
			t.Error("an event was acknowledged")
		}
		fault.Remove()
		s.drain()
		s.board.awaitClear(t)
	}
	m.wantOnce(t, 12)

	// Switched off, nothing is read and everything is published again.
	seen := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	cfg := testConfig("t")
	cfg.NoResumeCheck = true
	s := startAs(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), m.source), m.source)
	s.accept(m.events(0, 12)...)
	s.drain()
	if seen.Hits() != 0 {
		t.Error("the topic was read")
	}
	seen.Remove()
	if n := len(testenv.Consume(t, f.Brokers(), "t")); n != 24 {
		t.Errorf("got %d records", n)
	}
}

// TestResume_Faults wants a check that meets errors to go on when they end.
func TestResume_Faults(t *testing.T) {
	for _, key := range []kmsg.Key{kmsg.Fetch, kmsg.ListOffsets} {
		for _, err := range []*kerr.Error{kerr.NotLeaderForPartition, kerr.OffsetNotAvailable, kerr.UnknownTopicOrPartition, kerr.KafkaStorageError, kerr.FencedLeaderEpoch} {
			t.Run(fmt.Sprintf("%v/%s", key, err.Message), func(t *testing.T) {
				f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
				m := newStream(t, f.Brokers(), "t")
				m.session(t, 0, 50)
				fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Err: err, Count: 3})
				if st := m.session(t, 10, 60); st.Resumed != 40 || st.Undecided != 0 {
					t.Errorf("got %+v", st)
				}
				if fault.Hits() != 3 {
					t.Errorf("%d faults were hit", fault.Hits())
				}
				m.wantOnce(t, 60)
			})
		}
	}
}

// TestResume_BrokerKilled kills the broker while lanes read back.
func TestResume_BrokerKilled(t *testing.T) {
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{})
	m := newStream(t, broker.Brokers(), testenv.NewTopic(t, broker.Brokers(), 4, nil))
	m.event = func(n int) outbox.Committed {
		return to(m.topic, event(n, fmt.Sprint("key", n%5), fmt.Sprint(n)))
	}
	m.session(t, 0, 20000)
	cfg := testConfig(m.topic)
	cfg.WindowBytes, cfg.BatchBytes = 64<<10, 4<<10
	cfg.ResumeLSN = m.event(0).Position.LSN
	s := startAs(t, cfg, sink.NewKafka(kafkaConfig(m.brokers), m.source), m.source)
	half := m.events(0, 10000)
	for chunk := range slices.Chunk(half, 500) {
		s.accept(chunk...)
	}
	if err := broker.Kill(); err != nil {
		t.Fatal(err)
	}
	rest := s.acceptAside(m.events(10000, 20100)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := broker.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-rest; err != nil {
		t.Fatal(err)
	}
	s.drain()
	if st := s.Stats(); st.Resumed != 20000 || st.Undecided != 0 {
		t.Errorf("got %+v", st)
	}
	m.wantOnce(t, 20100)
}

// TestResume_AfterFence wants nothing to be read back before the fence has made the log final.
func TestResume_AfterFence(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 4}})
	m := newStream(t, f.Brokers(), "t")
	m.session(t, 0, 50)
	fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: kerr.ConcurrentTransactions, Count: 5})
	var early atomic.Int32
	for _, key := range []kmsg.Key{kmsg.ListOffsets, kmsg.Fetch} {
		f.Cluster.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
			f.Cluster.KeepControl()
			if fault.Hits() < 5 {
				early.Add(1)
			}
			return nil, nil, false
		})
	}
	if st := m.session(t, 20, 60); st.Resumed != 30 {
		t.Errorf("got %+v", st)
	}
	if early.Load() > 0 {
		t.Errorf("%d requests read back before the fence", early.Load())
	}
}
