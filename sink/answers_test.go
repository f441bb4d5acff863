package sink_test

import (
	"fmt"
	"strings"
	"testing"

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

// TestAnswers scripts the answers of the table in the package's documentation that no other test has a broker give: each
// to a produce request, with a state where a human is wanted, and once and in order when it is over.
func TestAnswers(t *testing.T) {
	tests := []struct {
		err    *kerr.Error
		reason string
		state  state.State // "": none, it is over too soon
	}{
		{kerr.FencedLeaderEpoch, "leader", ""},
		{kerr.UnknownLeaderEpoch, "leader", ""},
		{kerr.ReplicaNotAvailable, "leader", ""},
		{kerr.BrokerNotAvailable, "leader", ""},
		{kerr.NetworkException, "network", ""},
		{kerr.KafkaStorageError, "broker", ""},
		{kerr.CoordinatorLoadInProgress, "coordinator", ""},
		{kerr.NotCoordinator, "coordinator", ""},
		{kerr.OperationNotAttempted, "coordinator", ""},
		{kerr.UnknownTopicID, "topic_missing", ""},
		{kerr.LeaderNotAvailable, "leader", state.BrokerUnreachable},
		{kerr.NotEnoughReplicas, "replicas", state.BrokerUnreachable},
		{kerr.UnknownTopicOrPartition, "topic_missing", state.TopicMissing},
		{kerr.ClusterAuthorizationFailed, "denied", state.BrokerDenied},
		{kerr.TransactionalIDAuthorizationFailed, "denied", state.BrokerDenied},
		{kerr.MessageTooLarge, "poison", state.Halted},
		{kerr.RecordListTooLarge, "poison", state.Halted},
		{kerr.InvalidTopicException, "poison", state.Halted},
		{kerr.InvalidTimestamp, "poison", state.Halted},
		{kerr.InvalidRecord, "poison", state.Halted},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.err.Message, " ", tt.state), func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
			s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
			events, want := numbers("t", "k", 3)
			s.accept(events[0])
			s.awaitAcked(1)
			times := 2
			if tt.state != "" {
				times = -1
			}
			fault := produceFault(f, tt.err, times)
			s.accept(events[1:]...)
			if tt.state != "" {
				if said := s.board.await(t, tt.state); said.Hint == "" || !strings.Contains(said.Reason, `"t"`) {
					t.Errorf("got %+v", said)
				}
				if s.isAcked(2) {
					t.Error("an event was acknowledged")
				}
				fault.Remove()
			}
			s.drain()
			s.awaitAcked(3)
			if s.Stats().Retries[tt.reason] == 0 {
				t.Errorf("no retry has the reason %s: %v", tt.reason, s.Stats().Retries)
			}
			if diff := cmp.Diff(want, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAnswers_NoCoordinator has a real broker that cannot make __transaction_state, because it wants more replicas than
// there are brokers: the hint is what to set.
func TestAnswers_NoCoordinator(t *testing.T) {
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: map[string]string{
		"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2",
	}})
	s := start(t, testConfig(), sink.NewKafka(kafkaConfig(broker.Brokers()), source))
	said := s.board.await(t, state.BrokerUnreachable)
	if !strings.Contains(said.Hint, "transaction.state.log.replication.factor") || !strings.Contains(said.Hint, "transaction.state.log.min.isr") {
		t.Errorf("got %+v", said)
	}
}

// TestAnswers_Rotated has the broker refuse our credentials in the middle: the state names it, and the next answer that
// takes them is enough.
func TestAnswers_Rotated(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	events, want := numbers("t", "k", 2)
	s.accept(events[0])
	s.awaitAcked(1)
	fault := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.SaslAuthenticationFailed, Count: -1})
	s.accept(events[1])
	if said := s.board.await(t, state.BrokerDenied); !strings.Contains(said.Hint, "password") {
		t.Errorf("got %+v", said)
	}
	fault.Remove()
	s.drain()
	if diff := cmp.Diff(want, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestSink_TopicNames makes names that Kafka or we refuse, by a template with and without a list, and by the topic column.
func TestSink_TopicNames(t *testing.T) {
	listed := sink.Route{Topic: "{kind}", Columns: []string{"kind"}, Topics: []string{"t"}}
	const notAllowed, refused = "names a topic that is not allowed", "topic's name"
	for _, tt := range []struct {
		name  string
		route sink.Route
		value string
		says  string
	}{
		{"listed", listed, "t", ""},
		{"not listed", listed, "u", notAllowed},
		{"dot of a list", listed, ".", notAllowed},
		{"own of a list", listed, "__consumer_offsets", notAllowed},
		{"two dots", sink.Route{Topic: ".{aggregate_type}"}, ".", ". or .., which Kafka refuses"},
		{"own by template", sink.Route{Topic: "_{aggregate_type}"}, "_consumer_offsets", "belong to Kafka itself"},
		{"path", sink.Route{Topic: "a.{aggregate_type}"}, "../b", refused},
		{"colon", sink.Route{Topic: "a.{aggregate_type}"}, "b:c", refused},
		{"letters", sink.Route{Topic: "a.{aggregate_type}"}, "bücher", refused},
		{"long", sink.Route{Topic: "a.{aggregate_type}"}, strings.Repeat("x", 248), "Kafka allows 249"},
		{"longest", sink.Route{Topic: "a.{aggregate_type}"}, strings.Repeat("x", 247), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(1)
			g.open = true
			cfg := testConfig()
			cfg.Routes = []sink.Route{tt.route}
			s := start(t, cfg, g)
			e := event(1, "k", "1")
			e.AggregateType = []byte(tt.value)
			e.Extra = []outbox.Extra{{Value: []byte(tt.value), Kind: outbox.KindText}}
			if tt.says == "" {
				s.accept(e)
				s.awaitAcked(1)
				return
			}
			s.acceptAside(e)
			if said := s.board.await(t, state.Halted); !strings.Contains(said.Reason, tt.says) {
				t.Errorf("got %+v, want %q", said, tt.says)
			}
		})
	}
}
