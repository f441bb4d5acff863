package sink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestPark_Local parks events that Accept finds unfit, each for a cause of its own, and keeps what there is of them.
func TestPark_Local(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	p := newPost(t)
	cfg := p.config(sink.PolicyPark)
	cfg.MaxRecordBytes = 10_000
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	noKey := event(1, "", "no key")
	large := event(3, "k", noise(20_000))
	topic := to("other", event(4, "k", "4"))
	header := event(5, "k", "5")
	header.Headers = []byte(`{"a": "x\ny"}`)
	unreadable := outbox.Committed{Position: event(6, "", "").Position, ID: []byte("id-6"), Unreadable: "its message has no content"}
	binary := event(7, "k", "7")
	binary.AggregateID = []byte{0xff, 0}
	binary.Topic = []byte("not a name\x00")
	s.accept(event(0, "k", "0"), noKey, event(2, "k", "2"), large, topic, header, unreadable, binary, event(8, "k", "8"))
	s.drain()
	s.awaitAcked(9)
	if diff := cmp.Diff([]string{"0", "2", "8"}, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	want := []string{"id-1 parked no_key", "id-4 parked bad_topic", "id-6 parked unreadable", "id-7 parked bad_topic", "id-3 parked too_large", "id-5 parked bad_header"}
	got := p.rows()
	if diff := cmp.Diff(sorted(want), sorted(got)); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	byID := map[string]*sink.Letter{}
	for _, l := range p.open(p.letters(1)) {
		byID[l.EventID] = l
	}
	l := byID["id-3"]
	if string(l.Value) != string(large.Payload) || l.Null || l.Topic != "t" || string(l.Key) != "k" || l.Position != source+"-00000001-00000000000003eb-00000001" {
		t.Errorf("letter of the large event: topic %q, key %q, position %q, %d bytes", l.Topic, l.Key, l.Position, len(l.Value))
	}
	var names []string
	for _, h := range l.Headers {
		names = append(names, h.Name)
	}
	if diff := cmp.Diff([]string{"id", "event_type", "aggregate_type", "relay_position"}, names); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if string(byID["id-5"].Unreadable) != string(header.Headers) {
		t.Errorf("headers column %q is kept as %q", header.Headers, byID["id-5"].Unreadable)
	}
	if string(byID["id-7"].Key) != "\xff\x00" {
		t.Errorf("key is kept as %q", byID["id-7"].Key)
	}
	st := s.Stats()
	if st.Parked != 6 || st.Poison[sink.Poison{Class: "bad_topic", Policy: sink.PolicyPark}] != 2 || st.BacklogBytes != 0 {
		t.Errorf("got stats %+v", st)
	}
	for _, r := range byID {
		if strings.Contains(r.Reason, "no key\"") || strings.Contains(r.Reason, string(large.Payload[:50])) {
			t.Errorf("reason %q holds a value", r.Reason)
		}
	}
}

// TestPark_Refused has the broker refuse a record in the middle of a batch. What is behind it in its lane is sent only
// when the letter is committed; other lanes do not wait.
func TestPark_Refused(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "other": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	s := start(t, p.config(sink.PolicyPark, "t", "other"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	tx, err := p.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table outbox.dead_letters in share mode"); err != nil {
		t.Fatal(err)
	}
	s.accept(event(1, "k", "1"), event(2, "k", noise(20_000)), event(3, "k", "3"), to("other", event(4, "k", "4")))
	eventually(t, func() bool { return s.isAcked(1) && s.isAcked(4) }, "what came before, or elsewhere, is not acknowledged")
	waiting := func() (n int) {
		if err := tx.QueryRow(t.Context(), "select count(*) from pg_locks where not granted and relation = 'outbox.dead_letters'::regclass").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, func() bool { return waiting() > 0 }, "nobody writes the letter")
	if got := values(testenv.Consume(t, f.Brokers(), "t")); len(got) != 1 {
		t.Errorf("before the letter is committed the topic has %d records", len(got))
	}
	if s.isAcked(2) || s.isAcked(3) {
		t.Error("acknowledged before the letter is committed")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.drain()
	s.awaitAcked(4)
	if diff := cmp.Diff([]string{"1", "3"}, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"id-2 parked refused"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
}

// TestPark_LocalOrder wants what is behind an event that Accept parks to wait for the letter, with each policy.
func TestPark_LocalOrder(t *testing.T) {
	for _, policy := range []sink.Policy{sink.PolicyPark, sink.PolicyHoldKey} {
		t.Run(string(policy), func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "other": 1}})
			p := newPost(t)
			cfg := p.config(policy, "t", "other")
			cfg.MaxRecordBytes = 10_000
			s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
			s.accept(event(1, "k", "1"))
			s.awaitAcked(1)
			tx, err := p.conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "lock table outbox.dead_letters in share mode"); err != nil {
				t.Fatal(err)
			}
			s.accept(event(2, "k", noise(20_000)), event(3, "m", "3"), to("other", event(4, "k", "4")))
			eventually(t, func() bool { return s.isAcked(4) }, "another lane waits for the letter")
			if got := values(testenv.Consume(t, f.Brokers(), "t")); len(got) != 1 || s.isAcked(3) {
				t.Errorf("before the letter is committed the topic has %d records", len(got))
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.drain()
			s.awaitAcked(4)
			if diff := cmp.Diff([]string{"1", "3"}, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPark_Many parks a hundred events among ten thousand in a few round trips.
func TestPark_Many(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 4}})
	p := newPost(t)
	cfg := p.config(sink.PolicyPark)
	cfg.MaxRecordBytes = 4_000
	counts := &parkCounter{DeadLetters: cfg.DeadLetters}
	cfg.DeadLetters = counts
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const n = 10_000
	var events []outbox.Committed
	for i := range n {
		e := event(i, fmt.Sprint("key", i%50), fmt.Sprint(i/50))
		if i%100 == 7 {
			e.Payload = []byte(noise(5_000))
		}
		events = append(events, e)
	}
	for len(events) > 0 {
		s.accept(events[:500]...)
		events = events[500:]
	}
	s.drain()
	s.awaitAcked(n)
	if got := len(testenv.Consume(t, f.Brokers(), "t")); got != n-100 {
		t.Errorf("%d records, want %d", got, n-100)
	}
	if got := len(p.rows()); got != 100 {
		t.Errorf("%d letters, want 100", got)
	}
	if trips := counts.parks.Load(); trips > 60 {
		t.Errorf("100 letters took %d round trips", trips)
	}
}

// TestPark_DatabaseAway parks while the database cannot be reached: that is said, and heals.
func TestPark_DatabaseAway(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	p := newPost(t)
	s := start(t, p.config(sink.PolicyPark), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(event(1, "k", "1"))
	s.awaitAcked(1)
	p.away.Store(true)
	p.exec("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()")
	s.accept(event(2, "", "2"), event(3, "k", "3"))
	s.board.await(t, state.DatabaseUnreachable)
	eventually(t, func() bool { return s.isAcked(3) }, "an event of another lane waits for the database")
	if s.isAcked(2) {
		t.Error("acknowledged without a letter")
	}
	p.away.Store(false)
	s.awaitAcked(3)
	s.board.awaitClear(t)
	if diff := cmp.Diff([]string{"id-2 parked no_key"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
}

// TestPark_NotOwner lets another relay take the slot: nothing is written any more, and the session ends.
func TestPark_NotOwner(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	p := newPost(t)
	s := start(t, p.config(sink.PolicyPark), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(event(1, "k", "1"))
	s.awaitAcked(1)
	p.exec("update outbox.relay_state set owner = 'another'")
	s.acceptAside(event(2, "", "2"))
	if err := s.wait(); !errors.Is(err, sink.ErrNotOwner) {
		t.Errorf("got %v", err)
	}
	if s.isAcked(2) || len(p.rows()) > 0 {
		t.Error("a letter was written without the slot")
	}
}

// TestPark_Again brings events a second time whose letters are there, more than are read at a time: none is published,
// none parked again, whatever the state. One that was parked and not confirmed before a crash is among them.
func TestPark_Again(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	p := newPost(t)
	const n = 2_500
	var all []outbox.Committed
	for i := range n {
		e := event(i, "", fmt.Sprint(i))
		if i%2 == 1 {
			e = event(i, "k", fmt.Sprint(i))
		}
		all = append(all, e)
	}
	first := start(t, p.config(sink.PolicyPark), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	first.accept(all...)
	first.drain()
	p.exec("update outbox.dead_letters set state = (array['parked', 'published', 'discarded'])[id % 3 + 1]")
	before := p.rows()
	// What was unfit before is fit now: the letter is what counts.
	for i := range all {
		all[i].AggregateID = []byte("k")
	}
	cfg := p.config(sink.PolicyHalt)
	cfg.ResumeLSN = 0x400
	cfg.DeadLetters = p.letters(0x400)
	all = all[0x400-1000:]
	second := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	second.accept(all...)
	second.accept(event(n, "k", "last"))
	second.awaitAcked(uint64(len(all) + 1))
	second.drain()
	got := values(testenv.Consume(t, f.Brokers(), "t"))
	if len(got) != n/2+1 || got[n/2] != "last" {
		t.Errorf("%d records, want %d: an event with a letter was published, or another twice", len(got), n/2+1)
	}
	if diff := cmp.Diff(before, p.rows()); diff != "" {
		t.Errorf("letters (-before +after):\n%s", diff)
	}
	if st := second.Stats(); st.Undecided != 0 {
		t.Errorf("%d checks undecided", st.Undecided)
	}
}

// TestParkHalted parks by request what the policy halts at: in the stream, and in a lane.
func TestParkHalted(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	s := start(t, p.config(sink.PolicyHalt), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.acceptAside(event(1, "k", "1"), event(2, "k", noise(20_000)), event(3, "", "no key"), event(4, "k", "4"))
	eventually(t, func() bool { st := s.Stats(); return st.Halted && st.HaltedLanes == 1 }, "not halted twice")
	if err := s.ParkHalted(t.Context(), "id-4", "me", "why"); !errors.Is(err, sink.ErrNotHalted) {
		t.Errorf("an event that nothing is halted at: %v", err)
	}
	for _, id := range []string{"id-3", "id-2"} {
		if err := s.ParkHalted(t.Context(), id, "me", "why"); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	s.awaitAcked(4)
	s.drain()
	s.board.awaitClear(t)
	if diff := cmp.Diff([]string{"1", "4"}, values(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for _, l := range p.open(p.letters(1)) {
		if l.Actor != "me" || l.Note != "why" || l.Holds {
			t.Errorf("got letter %+v", l)
		}
	}
	if diff := cmp.Diff([]string{"id-3 parked no_key", "id-2 parked refused"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
}

// TestStop_Halted stops a relay that is halted, in the stream or in a lane: the other lanes finish, nothing waits for
// what cannot be finished.
func TestStop_Halted(t *testing.T) {
	for name, poison := range map[string]outbox.Committed{"stream": event(2, "", "2"), "lane": event(2, "k", noise(20_000))} {
		t.Run(name, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "other": 1}})
			setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
			cfg := testConfig("t", "other")
			stopping, stop := context.WithCancel(context.Background())
			defer stop()
			cfg.Stopping = stopping.Done()
			cfg.WindowBytes, cfg.BatchBytes = 64<<10, 32<<10 // so that the stream gets stuck behind the lane
			s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
			s.accept(to("other", event(1, "k", "1")))
			over := make(chan error, 1)
			go func() {
				events := []outbox.Committed{to("t", poison)}
				for i := 3; i < 40; i++ {
					events = append(events, to("t", event(i, "k", noise(4000))))
				}
				over <- s.Accept(s.ctx, 2, events)
			}()
			eventually(t, func() bool { st := s.Stats(); return st.Halted || st.HaltedLanes == 1 }, "not halted")
			s.board.await(t, state.Halted)
			stop()
			if err := <-over; err != nil {
				t.Fatalf("Accept: %v", err)
			}
			s.drain()
			if !s.isAcked(1) || s.isAcked(2) || s.isAcked(3) {
				t.Errorf("acknowledged: %v %v %v", s.isAcked(1), s.isAcked(2), s.isAcked(3))
			}
		})
	}
}
