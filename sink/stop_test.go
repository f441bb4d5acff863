package sink_test

import (
	"context"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/sink"
)

// TestStop_Letters stops a relay of which one lane is halted while a letter of another route is being written: that one
// can be finished, and is.
func TestStop_Letters(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	cfg := p.config(sink.PolicyHalt)
	cfg.Routes = append(cfg.Routes, sink.Route{Topic: "t", Poison: sink.PolicyPark, Source: "outbox.events"})
	stopping, stop := context.WithCancel(context.Background())
	defer stop()
	cfg.Stopping = stopping.Done()
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(event(1, "k", noise(20_000)))
	s.board.await(t, state.Halted)
	tx, err := p.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table outbox.dead_letters in share mode"); err != nil {
		t.Fatal(err)
	}
	noKey := event(2, "", "no key")
	noKey.Route = 1
	s.accept(noKey)
	stop()
	s.Drain()
	select {
	case err := <-s.result:
		s.result <- err
		t.Errorf("it ends before the letter is committed: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if s.isAcked(1) || !s.isAcked(2) {
		t.Errorf("acknowledged: the halted event %v, the parked one %v", s.isAcked(1), s.isAcked(2))
	}
	if got := len(testenv.Consume(t, f.Brokers(), "t")); got != 0 {
		t.Errorf("%d records", got)
	}
}

// gated is a publisher that sends nothing to one topic until the test lets it.
type gated struct {
	sink.Publisher
	topic string
	open  chan struct{}
}

func (g *gated) Send(ctx context.Context, b *sink.Batch) error {
	if b.Topic == g.topic {
		select {
		case <-g.open:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return g.Publisher.Send(ctx, b)
}

// TestStop_OtherLanes stops a relay of which one lane is halted while another is slow: that one is waited for.
func TestStop_OtherLanes(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1, "slow": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	cfg := testConfig("t", "slow")
	stopping, stop := context.WithCancel(context.Background())
	defer stop()
	cfg.Stopping = stopping.Done()
	pub := &gated{Publisher: sink.NewKafka(kafkaConfig(f.Brokers()), source), topic: "slow", open: make(chan struct{})}
	s := start(t, cfg, pub)
	s.accept(to("t", event(1, "k", noise(20_000))), to("slow", event(2, "k", "2")))
	s.board.await(t, state.Halted)
	stop()
	s.Drain()
	select {
	case err := <-s.result:
		s.result <- err
		t.Errorf("it ends before the other lane has finished: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	close(pub.open)
	if err := s.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if s.isAcked(1) || !s.isAcked(2) {
		t.Errorf("acknowledged: the halted event %v, the other %v", s.isAcked(1), s.isAcked(2))
	}
}
