package sink_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestReplay_BeforeResume publishes events again before and between those whose resume check is still to come: the
// check finds all that an earlier session has published.
func TestReplay_BeforeResume(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 2, nil)
	cfg := testConfig(topic)
	var all []outbox.Committed
	for i := range 200 {
		all = append(all, to(topic, event(i, fmt.Sprint("key", i%10), fmt.Sprint(i))))
	}
	first := start(t, cfg, sink.NewKafka(kafkaConfig(brokers), source))
	first.accept(all...)
	first.drain()
	cfg.ResumeLSN = 1000
	second := start(t, cfg, sink.NewKafka(kafkaConfig(brokers), source))
	replay := func(from, to int) {
		t.Helper()
		refused, err := second.Replay(t.Context(), all[from:to])
		if err != nil || len(refused) > 0 {
			t.Fatalf("got %v, %v", refused, err)
		}
	}
	replay(0, 50)
	second.accept(all[:100]...)
	replay(50, 60)
	second.accept(all[100:]...)
	replay(0, 1)
	second.accept(to(topic, event(200, "key0", "200")))
	second.awaitAcked(201)
	second.drain()
	if st := second.Stats(); st.Resumed != 200 || st.Undecided != 0 {
		t.Errorf("%d events were found, %d checks undecided", st.Resumed, st.Undecided)
	}
	live, again := 0, 0
	for _, r := range testenv.Consume(t, brokers, topic) {
		if kind, ok := r.Header("relay_replay"); !ok {
			live++
		} else if again++; kind != "replay" {
			t.Errorf("relay_replay is %q", kind)
		}
	}
	if live != 201 || again != 61 {
		t.Errorf("%d live records and %d replayed ones, want 201 and 61", live, again)
	}
}

// TestReplay_Refused tells which events cannot be published, and publishes the others.
func TestReplay_Refused(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	s := start(t, testConfig("t", "absent"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	refused, err := s.Replay(t.Context(), []outbox.Committed{
		to("t", event(1, "k", "1")), to("t", event(2, "", "2")), to("t", event(3, "k", noise(20_000))), to("absent", event(4, "k", "4")),
		to("not allowed", event(5, "k", "5")), to("t", event(6, "k", "6")),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]bool{}
	for _, r := range refused {
		got[r.Index] = true
		if !strings.Contains(r.Reason, fmt.Sprintf("id-%d", r.Index+1)) {
			t.Errorf("reason of event %d: %s", r.Index, r.Reason)
		}
	}
	if diff := cmp.Diff(map[int]bool{1: true, 2: true, 3: true, 4: true}, got); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1 replay", "6 replay"}, replayed(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	s.accept(to("t", event(7, "k", "7")))
	s.awaitAcked(1)
	s.drain()
	if st := s.Stats(); st.BacklogEvents != 0 || st.BacklogBytes != 0 || st.HaltedLanes != 0 {
		t.Errorf("got stats %+v", st)
	}
}
