package sink_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestRoutes_Compression wants each route's events to be compressed as it says, on one partition too, in order.
func TestRoutes_Compression(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	codecs := map[string]int16{"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
	var mu sync.Mutex // guards seen
	seen := map[int16]int{}
	f.Cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.Cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(req.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records); err != nil {
			t.Errorf("read batch: %v", err)
		}
		seen[batch.Attributes&7] += int(batch.NumRecords)
		return nil, nil, false
	})
	kcfg := kafkaConfig(f.Brokers())
	kcfg.Compression = "lz4"
	cfg := testConfig()
	cfg.Routes = []sink.Route{{Topic: "t"}, {Topic: "t", Compression: "zstd"}, {Topic: "t", Compression: "none"}, {Topic: "t", Compression: "gzip"}}
	s := start(t, cfg, sink.NewKafka(kcfg, source))
	const each = 50
	for i := range len(cfg.Routes) * each {
		e := event(i, "k", fmt.Sprint(i, strings.Repeat(" compressible", 100)))
		e.Route = i / 5 % len(cfg.Routes)
		s.accept(e)
	}
	s.drain()
	for i, r := range testenv.Consume(t, f.Brokers(), "t") {
		if !strings.HasPrefix(string(r.Value), fmt.Sprint(i, " ")) {
			t.Fatalf("record %d is %.10s", i, r.Value)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for name, want := range map[string]int{"lz4": each, "zstd": each, "none": each, "gzip": each, "snappy": 0} {
		if got := seen[codecs[name]]; got != want {
			t.Errorf("%d records were compressed as %s, want %d", got, name, want)
		}
	}
}

// TestRoutes_MaxRecordBytes wants each route to have its own limit, also one above the window.
func TestRoutes_MaxRecordBytes(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "1000000")
	cfg := testConfig()
	cfg.WindowBytes, cfg.BatchBytes = 64<<10, 16<<10
	cfg.MaxRecordBytes = 10_000
	cfg.Routes = []sink.Route{{Topic: "t"}, {Topic: "t", MaxRecordBytes: 2000}, {Topic: "t", MaxRecordBytes: 500_000}}
	large := func(n, route, size int) outbox.Committed {
		e := event(n, "k", noise(size))
		e.Route = route
		return e
	}
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(large(1, 0, 9000), large(2, 1, 1500), large(3, 2, 400_000), large(4, 0, 100))
	s.awaitAcked(4)
	for route, size := range map[int]int{0: 10_000, 1: 2000, 2: 500_000} {
		s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
		s.acceptAside(large(5, route, size))
		if said := s.board.await(t, state.Halted); !strings.Contains(said.Reason, fmt.Sprintf("the limit is %d", size)) {
			t.Errorf("route %d: got %+v", route, said)
		}
		s.stop()
		_ = s.wait()
	}
}

// TestTopics_NoticeLimit wants a topic that takes less than a route's limit to be told of.
func TestTopics_NoticeLimit(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	cfg := testConfig()
	cfg.Routes = []sink.Route{{Topic: "t", MaxRecordBytes: 3_000_000}}
	told := make(chan string, 10)
	cfg.Notice = func(_, finding string) { told <- finding }
	start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	for {
		select {
		case finding := <-told:
			if strings.Contains(finding, "max.message.bytes is 1048588, the relay's own limit is 3000000") {
				return
			}
		case <-time.After(within):
			t.Fatal("the topic's smaller limit is not told")
		}
	}
}

// TestTopics_New wants topics to be made as the settings say.
func TestTopics_New(t *testing.T) {
	brokers := testenv.Kafka(t)
	name := testenv.NewTopic(t, brokers, 1, nil) + "-new"
	cfg := testConfig(name)
	cfg.CreateTopics = true
	kcfg := kafkaConfig(brokers)
	kcfg.NewTopics = sink.NewTopics{Partitions: 7, ReplicationFactor: 1, Settings: map[string]string{"max.message.bytes": "123456", "cleanup.policy": "compact"}}
	if err := kcfg.Validate(); err != nil {
		t.Fatal(err)
	}
	s := start(t, cfg, sink.NewKafka(kcfg, source+"n"))
	s.accept(to(name, event(1, "k", "1")))
	s.drain()
	admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
		defer func() { _, _ = c.DeleteTopic(ctx, name) }()
		topics, err := c.ListTopics(ctx, name)
		if err != nil {
			return err
		}
		if n := len(topics[name].Partitions); n != 7 {
			t.Errorf("it has %d partitions, want 7", n)
		}
		described, err := c.DescribeTopicConfigs(ctx, name)
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, c := range described[0].Configs {
			got[c.Key] = c.MaybeValue()
		}
		if got["max.message.bytes"] != "123456" || got["cleanup.policy"] != "compact" {
			t.Errorf("its settings are %v", got)
		}
		return nil
	})
}

// TestTopics_NewRefused wants a topic that the brokers do not make to be a state that says why.
func TestTopics_NewRefused(t *testing.T) {
	brokers := testenv.Kafka(t)
	for want, change := range map[string]sink.NewTopics{
		"Replication Factor": {Partitions: 1, ReplicationFactor: 3}, // of one broker
		"Config":             {Settings: map[string]string{"no.such.setting": "1"}},
	} {
		name := testenv.NewTopic(t, brokers, 1, nil) + "-refused"
		cfg := testConfig(name)
		cfg.CreateTopics = true
		kcfg := kafkaConfig(brokers)
		kcfg.NewTopics = change
		s := start(t, cfg, sink.NewKafka(kcfg, source+"r"))
		s.acceptAside(to(name, event(1, "k", "1")))
		if said := s.board.await(t, state.TopicMissing); !strings.Contains(said.Reason, want) || !strings.Contains(said.Hint, "kafka.new_topics") {
			t.Errorf("%s: got %+v", want, said)
		}
		s.stop()
		_ = s.wait()
	}
}

// TestPartitionsGrow_Told wants a larger partition count to be counted and told.
func TestPartitionsGrow_Told(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}})
	cfg := testConfig("t")
	cfg.PartitionsEvery = time.Nanosecond
	told := make(chan string, 10)
	cfg.Notice = func(topic, finding string) {
		if strings.Contains(finding, "partitions") {
			told <- topic + ": " + finding
		}
	}
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(to("t", event(0, "k", "0")))
	growTopic(t, f.Brokers(), "t", 7)
	n := 1
	eventually(t, func() bool {
		s.accept(to("t", event(n, "k", "1")))
		n++
		return s.Stats().Grown == 1
	}, "the growth is not counted")
	select {
	case got := <-told:
		if !strings.Contains(got, "t: it has 7 partitions, and had 3") {
			t.Errorf("told %q", got)
		}
	case <-time.After(within):
		t.Error("the growth is not told")
	}
	s.drain()
}

// TestTopics_Notice wants settings that could become a problem to be told, and nothing to be told of good ones.
func TestTopics_Notice(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Brokers: 3, Topics: map[string]int32{"good": 1, "bad": 2}})
	for name, value := range map[string]string{
		"min.insync.replicas": "1", "max.message.bytes": "5000", "cleanup.policy": "compact,delete", "unclean.leader.election.enable": "true",
	} {
		setTopicConfig(t, f.Brokers(), "bad", name, value)
	}
	setTopicConfig(t, f.Brokers(), "good", "min.insync.replicas", "2")
	setTopicConfig(t, f.Brokers(), "good", "max.message.bytes", "2000000")
	var mu sync.Mutex
	told := map[string]string{}
	cfg := testConfig("good", "bad", "nowhere")
	cfg.Notice = func(topic, finding string) {
		mu.Lock()
		defer mu.Unlock()
		told[topic] += finding + "\n"
	}
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(told["nowhere"], "does not exist")
	}, "the missing topic is not told")
	mu.Lock()
	defer mu.Unlock()
	for _, part := range []string{"min.insync.replicas is 1", "max.message.bytes is 5000", "cleanup.policy is compact", "unclean.leader.election"} {
		if !strings.Contains(told["bad"], part) {
			t.Errorf("told of the bad topic: %q, want %s", told["bad"], part)
		}
	}
	if told["good"] != "" {
		t.Errorf("told of the good topic: %q", told["good"])
	}
	s.drain()
}

// TestTopics_Create wants a topic to be made only by who was told to, and a missing right to be named.
func TestTopics_Create(t *testing.T) {
	brokers := testenv.Kafka(t)
	name := testenv.NewTopic(t, brokers, 1, nil) + "-new"
	cfg := testConfig(name)
	cfg.CreateTopics = true
	s := start(t, cfg, sink.NewKafka(kafkaConfig(brokers), source+"c"))
	s.accept(to(name, event(1, "k", "1")))
	s.drain()
	admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
		topics, err := c.ListTopics(ctx, name)
		if err == nil && len(topics[name].Partitions) < 2 {
			t.Errorf("it has %d partitions, not the brokers' default", len(topics[name].Partitions))
		}
		_, _ = c.DeleteTopic(ctx, name)
		return err
	})

	f := fake(t, kafkaserver.FakeConfig{})
	f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.CreateTopics}, Err: kerr.TopicAuthorizationFailed, Count: -1})
	s = start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.acceptAside(to(name, event(1, "k", "1")))
	status := s.board.await(t, state.BrokerDenied)
	if !strings.Contains(status.Hint, "Create") {
		t.Errorf("got %+v", status)
	}
}
