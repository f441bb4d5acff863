package sink_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const source = "00112233aabbccdd"

// within bounds every wait for something that should happen at once.
const within = 20 * time.Second

// session is a Sink with its Run under way.
type session struct {
	*sink.Sink
	t      testing.TB
	board  *board
	result chan error
	stop   context.CancelFunc
	ctx    context.Context

	mu    sync.Mutex
	acked map[uint64]int // how often each sequence number was reported
	next  uint64         // of the next event
}

// start runs a sink over pub. At cleanup it is stopped and its goroutines are gone.
func start(t testing.TB, cfg sink.Config, pub sink.Publisher) *session {
	t.Helper()
	return startAs(t, cfg, pub, source)
}

// startAs is start for the slot of another source.
func startAs(t testing.TB, cfg sink.Config, pub sink.Publisher, source string) *session {
	t.Helper()
	s := &session{t: t, board: &board{raised: map[string]state.Status{}}, result: make(chan error, 1), acked: map[uint64]int{}, next: 1}
	s.Sink = sink.New(cfg, pub, source, func(seqs []uint64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range seqs {
			s.acked[n]++
		}
	}, s.board)
	s.ctx, s.stop = context.WithCancel(context.Background())
	go func() { s.result <- s.Run(s.ctx) }()
	t.Cleanup(func() {
		s.stop()
		select {
		case <-s.result:
		case <-time.After(within):
			t.Error("Run does not end")
		}
		if names := s.board.names(); len(names) > 0 {
			t.Errorf("raised after the end: %v", names)
		}
	})
	return s
}

// accept hands over events, numbered on.
func (s *session) accept(events ...outbox.Committed) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	first := s.next
	s.next += uint64(len(events))
	if err := s.Accept(ctx, first, events); err != nil {
		s.t.Fatalf("Accept: %v", err)
	}
}

// acceptAside hands over events that may block, and returns where the result will come.
func (s *session) acceptAside(events ...outbox.Committed) <-chan error {
	first := s.next
	s.next += uint64(len(events))
	c := make(chan error, 1)
	go func() { c <- s.Accept(s.ctx, first, events) }()
	return c
}

// awaitAcked waits until the events up to number n are acknowledged, each once.
func (s *session) awaitAcked(n uint64) {
	s.t.Helper()
	testenv.Eventually(s.t, within, func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := uint64(1); i <= n; i++ {
			if s.acked[i] != 1 {
				return false, fmt.Sprintf("event %d of %d was acknowledged %d times; problems %v", i, n, s.acked[i], s.board.all())
			}
		}
		return true, ""
	})
}

// isAcked reports whether the event is acknowledged.
func (s *session) isAcked(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked[n] > 0
}

// drain ends the session in peace.
func (s *session) drain() {
	s.t.Helper()
	s.Drain()
	if err := s.wait(); err != nil {
		s.t.Fatalf("Run after Drain: %v", err)
	}
}

// wait returns what Run returns.
func (s *session) wait() error {
	s.t.Helper()
	select {
	case err := <-s.result:
		s.result <- err
		return err
	case <-time.After(within):
		s.t.Fatal("Run does not end")
		return nil
	}
}

// board records what is raised.
type board struct {
	mu     sync.Mutex
	raised map[string]state.Status
	count  int
}

func (b *board) Raise(name string, s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.raised[name] = s
	if s.State != state.Starting {
		b.count++
	}
}

func (b *board) Clear(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.raised, name)
}

func (b *board) all() []state.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []state.Status
	for _, s := range b.raised {
		out = append(out, s)
	}
	return out
}

// raises returns how often something was raised that is more than a start.
func (b *board) raises() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

func (b *board) names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for name := range b.raised {
		out = append(out, name)
	}
	return out
}

// await waits until a state is raised and returns it.
func (b *board) await(t testing.TB, want state.State) (found state.Status) {
	t.Helper()
	testenv.Eventually(t, within, func() (bool, string) {
		for _, s := range b.all() {
			if s.State == want {
				found = s
				return true, ""
			}
		}
		return false, fmt.Sprintf("state %s is not raised, but %v", want, b.all())
	})
	return found
}

// awaitClear waits until nothing is raised.
func (b *board) awaitClear(t testing.TB) {
	t.Helper()
	testenv.Eventually(t, within, func() (bool, string) {
		all := b.all()
		return len(all) == 0, fmt.Sprintf("still raised: %v", all)
	})
}

// event makes an event with a key and a payload.
func event(n int, key, payload string) outbox.Committed {
	return outbox.Committed{
		Position:      outbox.Position{Incarnation: 1, LSN: outbox.LSN(1000 + n), Ordinal: 1},
		CommitTime:    time.Now(),
		ID:            fmt.Appendf(nil, "id-%d", n),
		AggregateType: []byte("order"),
		AggregateID:   []byte(key),
		EventType:     []byte("OrderPlaced"),
		Payload:       []byte(payload),
	}
}

// noise makes text that no compression makes much smaller.
func noise(n int) string {
	b := make([]byte, n/2)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(b)
	return hex.EncodeToString(b)
}

// to routes an event to a topic by its topic column.
func to(topic string, e outbox.Committed) outbox.Committed {
	e.Topic = []byte(topic)
	return e
}

// testConfig returns settings that allow topics and wait for nothing long.
func testConfig(topics ...string) sink.Config {
	cfg := sink.DefaultConfig()
	cfg.Topics = topics
	cfg.Recheck = 200 * time.Millisecond
	cfg.UnreachableAfter = 300 * time.Millisecond
	return cfg
}

func kafkaConfig(brokers []string) sink.KafkaConfig {
	cfg := sink.DefaultKafkaConfig()
	cfg.Brokers = brokers
	cfg.RequestTimeout = 5 * time.Second
	return cfg
}

func fake(t testing.TB, cfg kafkaserver.FakeConfig) *kafkaserver.Fake {
	t.Helper()
	f, err := kafkaserver.StartFake(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// values returns the records' values in order.
func values(records []testenv.Record) []string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.Value))
	}
	return out
}

// checkGoroutines fails the test when goroutines of this package or kafka-go live on.
func checkGoroutines(t testing.TB) {
	t.Helper()
	testenv.Eventually(t, 5*time.Second, func() (bool, string) {
		buf := make([]byte, 1<<20)
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(g, "segmentio/kafka-go") || strings.Contains(g, "relay/sink.(") {
				return false, "still there: " + g
			}
		}
		return true, ""
	})
}

var errTest = errors.New("test")

// eventually waits for a condition.
func eventually(t testing.TB, check func() bool, why string) {
	t.Helper()
	testenv.Eventually(t, within, func() (bool, string) { return check(), why })
}

// events1 is one event.
func events1() []outbox.Committed { return []outbox.Committed{to("t", event(1, "k", "1"))} }
