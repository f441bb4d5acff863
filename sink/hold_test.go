package sink_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// TestHoldKey holds the later events of a key, and those alone, until the first is published after all; the stream goes
// on behind them.
func TestHoldKey(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	s := start(t, p.config(sink.PolicyHoldKey), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	bad := event(2, "a", noise(20_000))
	s.accept(event(1, "a", "a1"), bad, event(3, "b", "b3"), event(4, "a", "a4"), event(5, "b", "b5"))
	s.awaitAcked(5)
	s.accept(event(6, "a", "a6"), event(7, "b", "b7"))
	s.awaitAcked(7)
	want := []string{"a1", "b3", "b5", "b7"}
	if diff := cmp.Diff(want, replayed(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"id-2 parked refused holds", "id-4 held held holds", "id-6 held held holds"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	// Still too large: it stays where it is, and so do the others.
	out, err := s.Release(t.Context(), hold("t", "a"), "", true, "me", "too early")
	if err != nil || out.Published != 0 || len(out.Refused) != 1 {
		t.Fatalf("got %+v, %v", out, err)
	}
	if diff := cmp.Diff([]string{"id-2 parked refused holds", "id-4 held held holds", "id-6 held held holds"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "100000")
	out, err = s.Release(t.Context(), hold("t", "a"), "", true, "me", "limit raised")
	if err != nil || out.Published != 3 || len(out.Refused) != 0 {
		t.Fatalf("got %+v, %v", out, err)
	}
	s.accept(event(8, "a", "a8"))
	s.drain()
	want = append(want, fmt.Sprintf("%d bytes requeue", len(bad.Payload)), "a4 requeue", "a6 requeue", "a8")
	records := testenv.Consume(t, f.Brokers(), "t")
	if diff := cmp.Diff(want, replayed(records)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"id-2 published refused holds", "id-4 published held holds", "id-6 published held holds"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	if at, _ := records[5].Header("relay_position"); at != source+"-00000001-00000000000003ec-00000001" {
		t.Errorf("a requeued record has position %q", at)
	}
}

// TestHoldKey_Restart finds the held keys again, settles what has a letter, and does not hold what was before it.
func TestHoldKey_Restart(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	all := []outbox.Committed{event(1, "a", "a1"), event(2, "a", noise(20_000)), event(3, "b", "b3"), event(4, "a", "a4"), event(5, "b", "b5")}
	first := start(t, p.config(sink.PolicyHoldKey), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	first.accept(all[:4]...)
	first.awaitAcked(4)
	first.stop() // nothing of it was confirmed
	first.wait()
	cfg := p.config(sink.PolicyHoldKey)
	cfg.NoResumeCheck = true // a1 comes twice: it was published before its key was held, so it is not held now
	second := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	second.accept(append(all, event(6, "a", "a6"))...)
	second.awaitAcked(6)
	if diff := cmp.Diff([]string{"a1", "b3", "a1", "b3", "b5"}, replayed(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	want := []string{"id-2 parked refused holds", "id-4 held held holds", "id-6 held held holds"}
	if diff := cmp.Diff(want, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	// With the first given up, the others go on.
	out, err := second.Release(t.Context(), hold("t", "a"), "", false, "me", "why")
	if err != nil || out.Published != 0 || len(out.Refused) != 0 { // it is not even tried
		t.Errorf("behind a parked one: %+v, %v", out, err)
	}
	p.exec("update outbox.dead_letters set state = 'discarded' where event_id = 'id-2'")
	if out, err = second.Release(t.Context(), hold("t", "a"), "", false, "me", "why"); err != nil || out.Published != 2 {
		t.Errorf("got %+v, %v", out, err)
	}
	second.accept(event(7, "a", "a7"))
	second.drain()
	if diff := cmp.Diff([]string{"a4 requeue", "a6 requeue", "a7"}, replayed(testenv.Consume(t, f.Brokers(), "t"))[5:]); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestHoldKey_Again stops a release at a second bad event among those that wait.
func TestHoldKey_Again(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	p := newPost(t)
	cfg := p.config(sink.PolicyHoldKey)
	cfg.MaxRecordBytes = 10_000
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(event(1, "a", noise(20_000)), event(2, "a", "a2"), event(3, "a", noise(30_000)), event(4, "a", "a4"), event(5, "b", "b5"))
	s.awaitAcked(5)
	want := []string{"id-1 parked too_large holds", "id-2 held held holds", "id-3 held too_large holds", "id-4 held held holds"}
	if diff := cmp.Diff(want, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	p.exec("update outbox.dead_letters set state = 'discarded' where event_id = 'id-1'")
	out, err := s.Release(t.Context(), hold("t", "a"), "", false, "me", "why")
	if err != nil || out.Published != 1 || len(out.Refused) != 1 {
		t.Errorf("got %+v, %v", out, err)
	}
	want = []string{"id-1 discarded too_large holds", "id-2 published held holds", "id-3 parked too_large holds", "id-4 held held holds"}
	if diff := cmp.Diff(want, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	s.accept(event(6, "a", "a6"))
	s.awaitAcked(6)
	if diff := cmp.Diff([]string{"b5", "a2 requeue"}, replayed(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	s.drain()
}

// TestHoldKey_Busy releases ten thousand events of a key while more of it, and of others, come: nothing of a key
// overtakes, nothing is lost, nothing is there twice.
func TestHoldKey_Busy(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "900000")
	p := newPost(t)
	s := start(t, p.config(sink.PolicyHoldKey), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const held = 10_000
	n := 0
	next := func(size int) (out []outbox.Committed) {
		for range size {
			n++
			out = append(out, event(n, "a", fmt.Sprint(n)), event(1_000_000+n, fmt.Sprint("b", n%7), fmt.Sprint(n)))
			out[len(out)-1].Position.LSN = outbox.LSN(1000 + n)
			out[len(out)-1].Position.Ordinal = 2
		}
		return out
	}
	bad := event(0, "a", "0")
	bad.Payload = []byte(noise(950_000))
	s.accept(bad)
	for n < held {
		s.accept(next(500)...)
	}
	s.awaitAcked(2*held + 1)
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "2000000")
	done := make(chan sink.Outcome, 1)
	go func() {
		out, err := s.Release(context.Background(), hold("t", "a"), "", true, "me", "why")
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	var out sink.Outcome
	for over := false; !over; {
		s.accept(next(200)...)
		select {
		case out = <-done:
			over = true
		default:
		}
	}
	s.accept(next(200)...)
	s.drain()
	if out.Published < held+1 || len(out.Refused) > 0 {
		t.Errorf("got %+v", out)
	}
	last := map[string]int{"a": -1}
	count := 0
	for i, r := range testenv.Consume(t, f.Brokers(), "t") {
		v := 0
		if len(r.Value) < 100 {
			fmt.Sscan(string(r.Value), &v)
		}
		if v <= last[string(r.Key)] {
			t.Fatalf("record %d of key %s has number %d behind %d", i, r.Key, v, last[string(r.Key)])
		}
		if string(r.Key) == "a" && v != last["a"]+1 {
			t.Fatalf("key a has %d behind %d", v, last["a"])
		}
		last[string(r.Key)] = v
		count++
	}
	if count != 2*n+1 {
		t.Errorf("%d records, want %d", count, 2*n+1)
	}
}

// TestHoldKey_NoTopic holds a key of a topic that is no topic, and publishes all of it to another.
func TestHoldKey_NoTopic(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}})
	p := newPost(t)
	s := start(t, p.config(sink.PolicyHoldKey), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(to("wrong", event(1, "a", "1")), to("wrong", event(2, "a", "2")), to("wrong", event(3, "b", "3")), event(4, "a", "4"))
	s.awaitAcked(4)
	want := []string{"id-1 parked bad_topic holds", "id-2 held bad_topic holds", "id-3 parked bad_topic holds"}
	if diff := cmp.Diff(want, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	out, err := s.Release(t.Context(), hold("wrong", "a"), "t", true, "me", "the name was wrong")
	if err != nil || out.Published != 2 {
		t.Errorf("got %+v, %v", out, err)
	}
	s.drain()
	var got []string
	for _, r := range testenv.Consume(t, f.Brokers(), "t") {
		if string(r.Key) == "a" {
			got = append(got, replayed([]testenv.Record{r})...)
		}
	}
	if diff := cmp.Diff([]string{"4", "1 requeue", "2 requeue"}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}
