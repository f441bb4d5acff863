package sink_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

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
