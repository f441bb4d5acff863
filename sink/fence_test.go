package sink_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestFaults_Fence wants a failing fence to be tried again, and nothing to be produced before it succeeds.
func TestFaults_Fence(t *testing.T) {
	for _, tt := range []struct {
		key kmsg.Key
		err *kerr.Error
		top bool
	}{
		{kmsg.AddPartitionsToTxn, kerr.ConcurrentTransactions, false},
		{kmsg.AddPartitionsToTxn, kerr.CoordinatorLoadInProgress, false},
		{kmsg.EndTxn, kerr.ConcurrentTransactions, true},
		{kmsg.EndTxn, kerr.NotCoordinator, true},
	} {
		t.Run(fmt.Sprintf("%v/%s", tt.key, tt.err.Message), func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 4}})
			fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{tt.key}, Err: tt.err, Count: 3, TopLevel: tt.top})
			var early atomic.Int32
			f.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
				f.Cluster.KeepControl()
				if fault.Hits() < 3 {
					early.Add(1)
				}
				return nil, nil, false
			})
			s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
			var events []outbox.Committed
			for i := range 20 {
				events = append(events, to("t", event(i, fmt.Sprint("key", i), "0")))
			}
			s.accept(events...)
			s.drain()
			if early.Load() > 0 {
				t.Errorf("%d requests were produced before the fence", early.Load())
			}
			checkOrder(t, testenv.Consume(t, f.Brokers(), "t"), 20, 1)
		})
	}
}

// TestFaults_FenceOfOthers wants a partition that cannot be fenced to hold up none that shared its fence.
func TestFaults_FenceOfOthers(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 50, "denied": 50}})
	fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Topic: "denied", Err: kerr.TopicAuthorizationFailed, Count: -1})
	s := start(t, testConfig("t", "denied"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	var events []outbox.Committed
	for i := range 400 {
		topic := []string{"t", "denied"}[i%2]
		events = append(events, to(topic, event(i, fmt.Sprint("key", i), "0")))
	}
	s.accept(events...)
	s.board.await(t, state.BrokerDenied)
	testenv.Eventually(t, within, func() (bool, string) {
		p := s.Stats().Published
		return p["t"] == 200 && p["denied"] == 0, fmt.Sprint(p)
	})
	fault.Remove()
	s.drain()
	checkOrder(t, testenv.Consume(t, f.Brokers(), "denied"), 200, 1)
}

// TestFaults_FenceShared wants many partitions to need few fences.
func TestFaults_FenceShared(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 100}})
	seen := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Observe: true, Count: -1})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	var events []outbox.Committed
	for i := range 2000 {
		events = append(events, to("t", event(i, fmt.Sprint("key", i), "0")))
	}
	s.accept(events...)
	s.drain()
	if got := s.Stats().Lanes; got != 100 {
		t.Errorf("got %d lanes, want 100", got)
	}
	if n := seen.Hits(); n == 0 || n > 50 {
		t.Errorf("100 partitions needed %d fences", n)
	}
}
