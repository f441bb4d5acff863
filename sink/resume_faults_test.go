package sink_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

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
