package sink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// produceFault faults produce requests only.
func produceFault(f *kafkaserver.Fake, err *kerr.Error, count int, partitions ...int32) *kfake.FaultHandle {
	return f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: err, Count: count, Partitions: partitions})
}

// numbers makes n events of one key with the values 1 to n.
func numbers(topic, key string, n int) (events []outbox.Committed, want []string) {
	for i := 1; i <= n; i++ {
		events = append(events, to(topic, event(i, key, fmt.Sprint(i))))
		want = append(want, fmt.Sprint(i))
	}
	return events, want
}

// TestFaults_Transient wants each event once and in order although tries fail, appended or not.
func TestFaults_Transient(t *testing.T) {
	tests := []struct {
		err    *kerr.Error
		reason string
	}{
		{kerr.RequestTimedOut, "timeout"},               // appended, answered with an error
		{kerr.NotEnoughReplicasAfterAppend, "replicas"}, // the same
		{kerr.NotEnoughReplicas, "replicas"},
		{kerr.NotLeaderForPartition, "leader"},
		{kerr.LeaderNotAvailable, "leader"},
		{kerr.UnknownTopicOrPartition, "topic_missing"},
		{kerr.UnknownServerError, "broker"},
		{kerr.ConcurrentTransactions, "coordinator"},
		{kerr.InvalidTxnState, "coordinator"},
	}
	for _, tt := range tests {
		t.Run(tt.err.Message, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
			s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
			fault := produceFault(f, tt.err, 3)
			events, want := numbers("t", "k", 6)
			for _, e := range events {
				s.accept(e)
			}
			s.drain()
			s.awaitAcked(6)
			if fault.Hits() != 3 {
				t.Errorf("%d faults were hit, want 3", fault.Hits())
			}
			if got := s.Stats().Retries[tt.reason]; got != 3 {
				t.Errorf("got %d retries for reason %s, want 3: %v", got, tt.reason, s.Stats().Retries)
			}
			if diff := cmp.Diff(want, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFaults_Session wants errors that put our sequence or epoch in doubt to end the session.
func TestFaults_Session(t *testing.T) {
	tests := []struct {
		err  *kerr.Error
		want error
	}{
		{kerr.OutOfOrderSequenceNumber, sink.ErrSequence},
		{kerr.UnknownProducerID, sink.ErrSequence},
		{kerr.DuplicateSequenceNumber, sink.ErrSequence},
		{kerr.InvalidProducerEpoch, sink.ErrFenced},
		{kerr.ProducerFenced, sink.ErrFenced},
	}
	for _, tt := range tests {
		t.Run(tt.err.Message, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
			s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
			events, _ := numbers("t", "k", 3)
			s.accept(events[0])
			s.awaitAcked(1)
			produceFault(f, tt.err, -1)
			s.accept(events[1])
			if err := s.wait(); !errors.Is(err, tt.want) {
				t.Fatalf("Run returned %v, want %v", err, tt.want)
			}
			if s.isAcked(2) {
				t.Error("the event was acknowledged")
			}
			if err := s.Accept(context.Background(), 3, events[2:]); !errors.Is(err, tt.want) {
				t.Errorf("Accept after the end returned %v, want %v", err, tt.want)
			}
		})
	}
}

// TestFaults_DuplicateOfResend wants "duplicate" to be a success for a batch whose first answer was lost.
func TestFaults_DuplicateOfResend(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	events, want := numbers("t", "k", 3)
	s.accept(events[0])
	s.awaitAcked(1)
	produceFault(f, kerr.RequestTimedOut, 1)
	produceFault(f, kerr.DuplicateSequenceNumber, 1)
	s.accept(events[1])
	s.awaitAcked(2)
	s.accept(events[2])
	s.drain()
	if diff := cmp.Diff(want, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestFaults_OnePartition wants a partition that fails to hold up nothing else, and itself to keep its order.
func TestFaults_OnePartition(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	fault := produceFault(f, kerr.NotLeaderForPartition, -1, 0)

	// murmur2 puts the keys a, b and c somewhere; send many of each and look at partition 0 afterwards.
	var events []outbox.Committed
	for i := range 90 {
		events = append(events, to("t", event(i, fmt.Sprint("key", i%30), fmt.Sprint(i/30))))
	}
	s.accept(events...)
	status := s.board.await(t, state.BrokerUnreachable)
	if !strings.Contains(status.Reason, `topic "t" partition 0`) {
		t.Errorf("got reason %q", status.Reason)
	}
	testenv.Eventually(t, within, func() (bool, string) {
		n := len(testenv.Consume(t, f.Brokers(), "t"))
		return n > 30 && n < 90 && int(s.Stats().BacklogEvents) == 90-n, fmt.Sprintf("%d records, %+v", n, s.Stats())
	})
	fault.Remove()
	s.drain()
	checkOrder(t, testenv.Consume(t, f.Brokers(), "t"), 30, 3)
}

// TestFaults_TooLarge wants a record that the broker refuses to stop its lane and nothing else: what came before
// it in its partition is published, what comes after waits, other partitions go on.
func TestFaults_TooLarge(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"small": 1, "other": 1}})
	setTopicConfig(t, f.Brokers(), "small", "max.message.bytes", "10000")
	cfg := testConfig("small", "other")
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))

	big := to("small", event(4, "k", "xxxx"+noise(20000)))
	s.accept(
		to("small", event(1, "k", "1")), to("small", event(2, "k", "2")), to("small", event(3, "k", "3")),
		big, to("small", event(5, "k", "5")), to("other", event(6, "k", "6")),
	)
	status := s.board.await(t, state.Halted)
	for _, part := range []string{`"id-4"`, `"small"`, "Message Size Too Large"} {
		if !strings.Contains(status.Reason, part) {
			t.Errorf("reason %q does not say %s", status.Reason, part)
		}
	}
	if strings.Contains(status.Reason, `"k"`) || strings.Contains(status.Reason+status.Hint, "xxxx") || status.Hint == "" {
		t.Errorf("got status %+v", status)
	}
	testenv.Eventually(t, within, func() (bool, string) {
		return s.isAcked(3) && s.isAcked(6), "what came before, or elsewhere, is not acknowledged"
	})
	if s.isAcked(4) || s.isAcked(5) {
		t.Error("the halted lane acknowledged on")
	}
	if got := s.Stats(); got.HaltedLanes != 1 || got.BacklogEvents != 2 || got.Retries["poison"] < 2 {
		t.Errorf("got stats %+v", got)
	}
	// The operator raises the limit: the lane looks again by itself.
	setTopicConfig(t, f.Brokers(), "small", "max.message.bytes", "100000")
	s.drain()
	s.board.awaitClear(t)
	want := []string{"1", "2", "3", string(big.Payload), "5"}
	if diff := cmp.Diff(want, values(testenv.Consume(t, f.Brokers(), "small"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if got := s.Stats(); got.HaltedLanes != 0 || got.BacklogBytes != 0 {
		t.Errorf("got stats %+v", got)
	}
}

// TestFaults_SmallTopic wants a topic that takes only small batches to get them, whole, in order and without a halt.
func TestFaults_SmallTopic(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"small": 1}})
	setTopicConfig(t, f.Brokers(), "small", "max.message.bytes", "10000")
	s := start(t, testConfig("small"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const n = 1000
	var want []string
	round := func() {
		events, more := numbers("small", "k", n)
		s.accept(events...)
		want = append(want, more...)
	}
	// A lane that is as fast as Accept takes small batches by itself: go on until one was too large.
	splits := uint64(0)
	for rounds := uint64(1); splits == 0 && rounds <= 100; rounds++ {
		round()
		s.awaitAcked(rounds * n)
		splits = s.Stats().Retries["poison"]
	}
	round()
	s.drain()
	if diff := cmp.Diff(want, values(testenv.Consume(t, f.Brokers(), "small"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if got := s.Stats(); splits == 0 || got.Retries["poison"] != splits || got.BacklogBytes != 0 || s.board.raises() != 0 {
		t.Errorf("after %d splits got %+v, raised %d: the lane did not learn", splits, got, s.board.raises())
	}
}

func TestFaults_Denied(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	fault := produceFault(f, kerr.TopicAuthorizationFailed, -1)
	s.accept(to("t", event(1, "k", "1")))
	status := s.board.await(t, state.BrokerDenied)
	if !strings.Contains(status.Reason, `topic "t"`) || !strings.Contains(status.Hint, "Write") {
		t.Errorf("got %+v", status)
	}
	if s.isAcked(1) {
		t.Error("the event was acknowledged")
	}
	fault.Remove()
	s.awaitAcked(1)
	s.board.awaitClear(t)
}

// TestFaults_OpenDenied wants a refused transactional id to be named, before any event.
func TestFaults_OpenDenied(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.TransactionalIDAuthorizationFailed, Count: -1, TopLevel: true})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	status := s.board.await(t, state.BrokerDenied)
	if !strings.Contains(status.Hint, "TransactionalId") {
		t.Errorf("got %+v", status)
	}
	fault.Remove()
	s.accept(to("t", event(1, "k", "1")))
	s.awaitAcked(1)
	s.board.awaitClear(t)
}

// TestFaults_NoCoordinator wants a cluster that cannot make __transaction_state to be recognised.
func TestFaults_NoCoordinator(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{})
	f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.CoordinatorNotAvailable, Count: -1, TopLevel: true})
	s := start(t, testConfig(), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	status := s.board.await(t, state.BrokerUnreachable)
	if !strings.Contains(status.Hint, "transaction.state.log.replication.factor") {
		t.Errorf("got %+v", status)
	}
}

// TestFaults_NobodyThere wants an address without a broker to be a state, raised once, and Drain to end even so.
func TestFaults_NobodyThere(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{})
	brokers := f.Brokers()
	f.Close()
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(brokers), source))
	s.board.await(t, state.BrokerUnreachable)
	testenv.Eventually(t, within, func() (bool, string) {
		n := s.Stats().Retries["network"]
		return n > 10, fmt.Sprintf("%d tries", n)
	})
	if s.board.raises() != 1 {
		t.Errorf("raised %d times, want once", s.board.raises())
	}
	s.drain()
	checkGoroutines(t)
}

// TestFaults_Hang wants the end of a session to be the end of a request that nobody answers, long before the
// request's own timeout.
func TestFaults_Hang(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	entered, release := make(chan struct{}), make(chan struct{})
	f.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(entered)
		<-release
		return nil, nil, false
	})
	t.Cleanup(func() { close(release) })
	kcfg := kafkaConfig(f.Brokers())
	kcfg.RequestTimeout = 10 * time.Minute
	s := start(t, testConfig("t"), sink.NewKafka(kcfg, source))
	s.accept(to("t", event(1, "k", "1")))
	<-entered
	s.stop()
	if err := s.wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	checkGoroutines(t)
}

// TestFaults_LeaderMoves moves partitions between brokers under load.
func TestFaults_LeaderMoves(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 4}, Brokers: 3})
	cfg := testConfig("t")
	cfg.WindowBytes, cfg.BatchBytes = 64<<10, 8<<10
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const keys, each = 20, 100
	for i := range each {
		if i%10 == 0 {
			f.Cluster.ShufflePartitionLeaders()
		}
		var events []outbox.Committed
		for k := range keys {
			events = append(events, to("t", event(i*keys+k, fmt.Sprint("key", k), fmt.Sprint(i))))
		}
		s.accept(events...)
	}
	s.drain()
	checkOrder(t, testenv.Consume(t, f.Brokers(), "t"), keys, each)
	if s.Stats().Retries["leader"] == 0 {
		t.Error("no leader moved under the sink")
	}
}
