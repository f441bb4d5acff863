package sink_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// notices records what a sink tells of topics.
type notices struct {
	mu   sync.Mutex
	told []string
}

func (n *notices) add(topic, finding string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, topic+": "+finding)
}

// about returns what was told of copies to a topic.
func (n *notices) about(topic string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, text := range n.told {
		if strings.HasPrefix(text, topic+": it gets no copy") {
			out = append(out, text)
		}
	}
	return out
}

// copying is a configuration whose letters are copied to the topic dead.
func (p *post) copying(policy sink.Policy) (sink.Config, *notices) {
	cfg := p.config(policy)
	cfg.Routes[0].DeadLetterTopic = "dead"
	n := &notices{}
	cfg.Notice = n.add
	return cfg, n
}

// headersOf returns the headers of a record as text.
func headersOf(r testenv.Record) (out []string) {
	for _, h := range r.Headers {
		out = append(out, h.Key+"="+string(h.Value))
	}
	return out
}

// TestCopies publishes a copy of each letter once its row is committed: the record, and why it is none. A letter that
// waits for another one gets none.
func TestCopies(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "dead": 3}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	cfg, told := p.copying(sink.PolicyHoldKey)
	cfg.MaxRecordBytes = 30_000
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
	refused := event(2, "a", noise(20_000))
	refused.Headers = []byte(`{"trace": "x", "dead_letter_class": "mine"}`)
	large := event(3, "b", noise(40_000))
	noKey := event(4, "", "no key")
	unreadable := outbox.Committed{Position: event(5, "", "").Position, ID: []byte("id-5"), Unreadable: "its message has no content"}
	s.accept(refused, event(6, "a", "held"), large, noKey, unreadable, event(7, "k", "7"))
	waiting := func() (n int) {
		if err := tx.QueryRow(t.Context(), "select count(*) from pg_locks where not granted and relation = 'outbox.dead_letters'::regclass").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, func() bool { return waiting() > 0 }, "nobody writes a letter")
	for over := time.After(300 * time.Millisecond); over != nil; {
		if n := len(testenv.Consume(t, f.Brokers(), "dead")); n != 0 {
			t.Fatalf("%d copies before any letter is committed", n)
		}
		select {
		case <-over:
			over = nil
		default:
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitAcked(7)
	s.drain() // which waits for the copies
	got := map[string]testenv.Record{}
	for _, r := range testenv.Consume(t, f.Brokers(), "dead") {
		id, _ := r.Header("id")
		if _, twice := got[id]; twice {
			t.Errorf("event %s has two copies", id)
		}
		got[id] = r
	}
	if len(got) != 4 {
		t.Fatalf("%d copies, want 4", len(got))
	}
	want := []string{"id=id-2", "event_type=OrderPlaced", "aggregate_type=order", "relay_position=" + source + "-00000001-00000000000003ea-00000001", "trace=x",
		"dead_letter_class=refused", "dead_letter_reason=Kafka answers Message Size Too Large (10)", "dead_letter_topic=t", "dead_letter_source=outbox.events", "relay_replay=dead_letter"}
	if diff := cmp.Diff(want, headersOf(got["id-2"])); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if r := got["id-2"]; string(r.Key) != "a" || string(r.Value) != string(refused.Payload) {
		t.Errorf("copy has key %q and %d bytes", r.Key, len(r.Value))
	}
	if r := got["id-3"]; string(r.Value) != string(large.Payload) || !slices.Contains(headersOf(r), "dead_letter_class=too_large") {
		t.Errorf("copy of the large event: %d bytes, %v", len(r.Value), headersOf(r))
	}
	if r := got["id-4"]; len(r.Key) != 0 || string(r.Value) != "no key" {
		t.Errorf("copy without a key: %q, %q", r.Key, r.Value)
	}
	if r := got["id-5"]; r.Key != nil || !slices.Contains(headersOf(r), "dead_letter_value=missing") {
		t.Errorf("copy of the unreadable event: key %q, %v", r.Key, headersOf(r))
	}
	st := s.Stats()
	if diff := cmp.Diff(map[string]uint64{"published": 4, "refused": 0, "dropped": 0}, st.Copies); diff != "" {
		t.Errorf("copies (-want +got):\n%s", diff)
	}
	if st.BacklogEvents != 0 || st.BacklogBytes != 0 || len(told.about("dead")) > 0 {
		t.Errorf("got stats %+v, told %v", st, told.about("dead"))
	}
}

// TestCopies_Fenced sees the epoch of the session that came last in the dead-letter topic: an earlier one cannot write
// there any more.
func TestCopies_Fenced(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic, dead := testenv.NewTopic(t, brokers, 1, map[string]string{"max.message.bytes": "10000"}), testenv.NewTopic(t, brokers, 1, nil)
	p := newPost(t)
	for i := range 2 {
		cfg := p.config(sink.PolicyPark)
		cfg.Routes[0].Topic, cfg.Routes[0].DeadLetterTopic = topic, dead
		s := start(t, cfg, sink.NewKafka(kafkaConfig(brokers), source))
		s.accept(event(10+i, "k", noise(20_000)))
		s.drain()
		if n := s.Stats().Copies["published"]; n != 1 {
			t.Fatalf("%d copies in session %d", n, i)
		}
	}
	r := testenv.Consume(t, brokers, dead)
	if len(r) != 2 || r[0].ProducerID < 0 || r[0].ProducerID != r[1].ProducerID || r[1].ProducerEpoch <= r[0].ProducerEpoch {
		t.Fatalf("got %d records, producers %+v", len(r), r)
	}
	if r[1].Offset != r[0].Offset+2 {
		t.Errorf("copies at offsets %d and %d: no marker of the second session between them", r[0].Offset, r[1].Offset)
	}
}

// TestCopies_NotTaken goes on without copies where the topic does not exist, or does not take them: that is counted and
// told once, makes no state, and no letter of its own.
func TestCopies_NotTaken(t *testing.T) {
	for name, topics := range map[string]map[string]int32{"missing": {"t": 1}, "too small": {"t": 1, "dead": 1}, "denied": {"t": 1, "dead": 1}} {
		t.Run(name, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: topics})
			if name == "too small" {
				setTopicConfig(t, f.Brokers(), "dead", "max.message.bytes", "10000")
			}
			p := newPost(t)
			cfg, told := p.copying(sink.PolicyPark)
			cfg.MaxRecordBytes = 15_000
			var pub sink.Publisher = sink.NewKafka(kafkaConfig(f.Brokers()), source)
			if name == "denied" {
				pub = forbidden{pub}
			}
			s := start(t, cfg, pub)
			const n = 20
			for i := range n {
				s.accept(event(2*i, "k", noise(20_000)), event(2*i+1, "k", "fits"))
				s.awaitAcked(uint64(2*i + 2))
			}
			eventually(t, func() bool { return s.Stats().Copies["refused"] == n }, "not all are given up")
			s.drain()
			if got := told.about("dead"); len(got) != 1 {
				t.Errorf("told %q", got)
			}
			if s.board.raises() != 0 {
				t.Errorf("%d states were raised", s.board.raises())
			}
			if got := len(p.rows()); got != n {
				t.Errorf("%d letters, want %d", got, n)
			}
			if got := len(testenv.Consume(t, f.Brokers(), "t")); got != n {
				t.Errorf("%d records, want %d", got, n)
			}
		})
	}
}

// forbidden is a publisher that may not write to the dead-letter topic.
type forbidden struct{ sink.Publisher }

func (f forbidden) Send(ctx context.Context, b *sink.Batch) error {
	if b.Topic == "dead" {
		return kafka.TopicAuthorizationFailed
	}
	return f.Publisher.Send(ctx, b)
}

// deaf is a publisher whose dead-letter topic never answers, or has no leader.
type deaf struct {
	sink.Publisher
	leaderless bool
}

func (d deaf) Send(ctx context.Context, b *sink.Batch) error {
	switch {
	case b.Topic != "dead":
		return d.Publisher.Send(ctx, b)
	case d.leaderless:
		return kafka.LeaderNotAvailable
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestCopies_Stuck has copies never arrive: neither the stream nor its end waits for them, what waits is bounded, and the
// relay is not unwell for it.
func TestCopies_Stuck(t *testing.T) {
	for name, leaderless := range map[string]bool{"no answer": false, "no leader": true} {
		t.Run(name, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "dead": 1}})
			p := newPost(t)
			cfg, _ := p.copying(sink.PolicyPark)
			cfg.MaxRecordBytes, cfg.WindowBytes, cfg.BatchBytes = 15_000, 64<<10, 32<<10
			s := start(t, cfg, deaf{sink.NewKafka(kafkaConfig(f.Brokers()), source), leaderless})
			const n = 400
			for i := range n {
				s.accept(event(2*i, "k", noise(20_000)), event(2*i+1, "k", "fits"))
			}
			s.awaitAcked(2 * n)
			if got := s.Stats(); got.BacklogBytes != 0 || got.Copies["dropped"] < n/2-20 || got.Copies["dropped"] == n {
				t.Errorf("backlog of %d bytes, copies %v", got.BacklogBytes, got.Copies)
			}
			if leaderless {
				eventually(t, func() bool { return s.Stats().Retries["leader"] > 8 }, "it is not tried again") // beyond UnreachableAfter
			}
			began := time.Now()
			s.drain()
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("the end took %v", d)
			}
			if got := len(testenv.Consume(t, f.Brokers(), "t")); got != n {
				t.Errorf("%d records, want %d", got, n)
			}
			if s.board.raises() != 0 {
				t.Errorf("%d states were raised", s.board.raises())
			}
		})
	}
}

// TestCopies_NoEvents lets no event into a dead-letter topic: not by configuration, by its columns or by request.
func TestCopies_NoEvents(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "of-order": 1, "of-dead": 1}})
	p := newPost(t)
	cfg := p.config(sink.PolicyPark, "t")
	cfg.Routes[0].Topic, cfg.Routes[0].DeadLetterTopic = "of-{aggregate_type}", "of-dead"
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	astray := event(1, "k", "1")
	astray.AggregateType = []byte("dead")
	s.accept(astray, event(2, "k", "2"))
	s.awaitAcked(2)
	again := event(3, "k", "3")
	again.AggregateType = []byte("dead")
	s.accept(again) // the topic is known by now
	s.awaitAcked(3)
	if diff := cmp.Diff([]string{"id-1 parked bad_topic", "id-3 parked bad_topic"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	refused, err := s.Replay(t.Context(), []outbox.Committed{again})
	if err != nil || len(refused) != 1 {
		t.Errorf("replay: %v, %v", refused, err)
	}
	out, err := s.Requeue(t.Context(), p.open(p.letters(1)), "of-dead", "me", "why")
	if err != nil || out.Published != 0 || len(out.Refused) != 2 {
		t.Errorf("requeue: %+v, %v", out, err)
	}
	s.drain()
	for _, r := range testenv.Consume(t, f.Brokers(), "of-dead") {
		if kind, _ := r.Header("relay_replay"); kind != "dead_letter" {
			t.Errorf("a record in the dead-letter topic is %v", headersOf(r))
		}
	}
	for want, change := range map[string]func(*sink.Config){
		`dead-letter topic "t": events go there`: func(c *sink.Config) { c.Routes[0].DeadLetterTopic = "t" },
		`dead-letter topic "a b"`:                func(c *sink.Config) { c.Routes[0].DeadLetterTopic = "a b" },
		`no place for dead letters`:              func(c *sink.Config) { c.DeadLetters = nil },
	} {
		bad := cfg
		bad.Routes = slices.Clone(cfg.Routes)
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestCopies_Many copies more letters than fit a batch.
func TestCopies_Many(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "dead": 2}})
	p := newPost(t)
	cfg, _ := p.copying(sink.PolicyPark)
	cfg.BatchBytes = 8 << 10
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const n = 500
	var events []outbox.Committed
	for i := range n {
		events = append(events, event(i, "", fmt.Sprint(i)))
	}
	s.accept(events...)
	s.drain()
	seen := map[string]int{}
	for _, r := range testenv.Consume(t, f.Brokers(), "dead") {
		seen[string(r.Value)]++
	}
	if len(seen) != n || s.Stats().Copies["published"] != n {
		t.Errorf("%d copies, stats %v, want %d", len(seen), s.Stats().Copies, n)
	}
}
