package sink_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/sink"
)

// slowPost is a place for dead letters that takes one event's letter when the test lets it.
type slowPost struct {
	sink.DeadLetters
	id      string
	asked   chan struct{} // closed when it comes
	letting chan struct{} // closed to let it through
}

func (p *slowPost) Park(ctx context.Context, letters []*sink.Letter) error {
	for _, l := range letters {
		if l.EventID != p.id {
			continue
		}
		close(p.asked)
		select {
		case <-p.letting:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return p.DeadLetters.Park(ctx, letters)
}

// TestRelease_BeingWritten releases a key while the letter of an event that waits is still being written: it belongs to
// those that are released. Otherwise nobody would ever publish it.
func TestRelease_BeingWritten(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	cfg := p.config(sink.PolicyHoldKey)
	slow := &slowPost{DeadLetters: cfg.DeadLetters, id: "id-2", asked: make(chan struct{}), letting: make(chan struct{})}
	cfg.DeadLetters = slow
	s := start(t, cfg, sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(event(1, "a", noise(20_000)))
	s.awaitAcked(1)
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "100000")
	s.accept(event(2, "a", "a2"))
	<-slow.asked
	done := make(chan sink.Outcome, 1)
	go func() {
		out, err := s.Release(context.Background(), hold("t", "a"), "", true, "me", "why")
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	select {
	case out := <-done:
		t.Errorf("it is over before the letter is written: %+v", out)
		done <- out
	case <-time.After(500 * time.Millisecond):
	}
	close(slow.letting)
	if out := <-done; out.Published != 2 {
		t.Errorf("got %+v", out)
	}
	s.accept(event(3, "a", "a3"))
	s.awaitAcked(3)
	s.drain()
	if diff := cmp.Diff([]string{"20000 bytes requeue", "a2 requeue", "a3"}, replayed(testenv.Consume(t, f.Brokers(), "t"))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"id-1 published refused holds", "id-2 published held holds"}, p.rows()); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
}

// slowOpen is a place for dead letters that shows them when the test lets it.
type slowOpen struct {
	sink.DeadLetters
	asked, letting chan struct{}
}

func (p *slowOpen) Open(ctx context.Context, sel sink.Selection, most, bytes int) ([]*sink.Letter, error) {
	select {
	case <-p.asked:
	default:
		close(p.asked)
	}
	select {
	case <-p.letting:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return p.DeadLetters.Open(ctx, sel, most, bytes)
}

// grownLater is a publisher that sees a new number of partitions when the test says so.
type grownLater struct {
	sink.Publisher
	partitions atomic.Int32
}

func (c *grownLater) Partitions(ctx context.Context, topic string) (int, error) {
	_, err := c.Publisher.Partitions(ctx, topic)
	return int(c.partitions.Load()), err
}

// TestRelease_PartitionsGrow takes no larger partition count while a key is being released: until that is over its
// partition is the one that it has.
func TestRelease_PartitionsGrow(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "10000")
	p := newPost(t)
	cfg := p.config(sink.PolicyHoldKey)
	cfg.PartitionsEvery = time.Millisecond
	slow := &slowOpen{DeadLetters: cfg.DeadLetters, asked: make(chan struct{}), letting: make(chan struct{})}
	cfg.DeadLetters = slow
	pub := &grownLater{Publisher: sink.NewKafka(kafkaConfig(f.Brokers()), source)}
	pub.partitions.Store(1)
	s := start(t, cfg, pub)
	s.accept(event(1, "a", noise(20_000)))
	s.awaitAcked(1)
	setTopicConfig(t, f.Brokers(), "t", "max.message.bytes", "100000")
	released := make(chan sink.Outcome, 1)
	go func() {
		out, err := s.Release(context.Background(), hold("t", "a"), "", true, "me", "why")
		if err != nil {
			t.Error(err)
		}
		released <- out
	}()
	<-slow.asked
	growTopic(t, f.Brokers(), "t", 8)
	pub.partitions.Store(8)
	accepted := s.acceptAside(event(2, "a", "a2"))
	select {
	case <-accepted:
		t.Errorf("taken before the release is over; the count was raised %d times", s.Stats().Grown)
	case <-time.After(500 * time.Millisecond):
	}
	close(slow.letting)
	if out := <-released; out.Published != 1 {
		t.Errorf("got %+v", out)
	}
	s.awaitAcked(2)
	s.drain()
	if got := s.Stats().Grown; got != 1 {
		t.Errorf("the count was raised %d times, want once", got)
	}
	if got := len(testenv.Consume(t, f.Brokers(), "t")); got != 2 {
		t.Errorf("%d records, want 2", got)
	}
}
