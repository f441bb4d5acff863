package sinktest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

const (
	source = "00112233aabbccdd"
	within = 10 * time.Second // bounds what should happen at once
	ends   = 5 * time.Second  // bounds how long a publisher may take to let go
)

// session is a sink over a publisher, with Run under way.
type session struct {
	*sink.Sink
	t      *testing.T
	pub    *spy
	board  *board
	ctx    context.Context
	stop   context.CancelFunc
	result chan error
	next   uint64 // sequence number of the next event

	mu    sync.Mutex // guards the field below
	acked map[uint64]int
}

// start begins a session, which ends with the test if not before.
func start(t *testing.T, target Target) *session {
	t.Helper()
	cfg := sink.DefaultConfig()
	cfg.Topics = []string{target.Topic}
	if target.Missing != "" {
		cfg.Topics = append(cfg.Topics, target.Missing)
	}
	cfg.Recheck, cfg.UnreachableAfter = 100*time.Millisecond, 200*time.Millisecond
	s := &session{t: t, pub: &spy{Publisher: target.New()}, board: &board{raised: map[string]state.Status{}},
		result: make(chan error, 1), next: 1, acked: map[uint64]int{}}
	s.Sink = sink.New(cfg, s.pub, source, func(seqs []uint64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range seqs {
			s.acked[n]++
		}
	}, s.board)
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { s.result <- s.Run(s.ctx) }()
	t.Cleanup(func() { s.end() })
	return s
}

// accept hands over events and returns the sequence number of the first.
func (s *session) accept(events ...outbox.Committed) (first uint64) {
	s.t.Helper()
	first = s.next
	s.next += uint64(len(events))
	ctx, cancel := context.WithTimeout(s.ctx, within)
	defer cancel()
	if err := s.Accept(ctx, first, events); err != nil {
		s.t.Fatalf("Accept: %v; raised: %v", err, s.board.all())
	}
	return first
}

// awaitAcked waits until events of these numbers are acknowledged, each once.
func (s *session) awaitAcked(first, last uint64) {
	s.t.Helper()
	eventually(s.t, within, func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		for n := first; n <= last; n++ {
			if s.acked[n] != 1 {
				return fmt.Sprintf("event %d was acknowledged %d times; raised: %v", n, s.acked[n], s.board.all())
			}
		}
		return ""
	})
}

func (s *session) isAcked(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked[n] > 0
}

// end stops the session and returns what Run returned.
func (s *session) end() error {
	s.t.Helper()
	s.stop()
	return s.wait()
}

func (s *session) wait() error {
	s.t.Helper()
	select {
	case err := <-s.result:
		s.result <- err
		return err
	case <-time.After(within):
		s.t.Errorf("Run does not end:\n%s", stacks())
		s.t.FailNow()
		return nil
	}
}

// drain ends the session when everything is acknowledged.
func (s *session) drain() {
	s.t.Helper()
	s.Drain()
	if err := s.wait(); err != nil {
		s.t.Fatalf("Run after Drain: %v", err)
	}
}

// spy is the publisher with eyes on its Sends.
type spy struct {
	sink.Publisher

	mu     sync.Mutex // guards the fields below
	began  int        // Sends
	over   int        // of these, returned
	last   error      // what the last one returned
	sent   func(b *sink.Batch)
	polite bool // Close lets Sends under way return by themselves
	hung   bool // and they did not
}

func (s *spy) Send(ctx context.Context, b *sink.Batch) error {
	s.mu.Lock()
	s.began++
	sent := s.sent
	s.mu.Unlock()
	err := s.Publisher.Send(ctx, b)
	if err == nil && sent != nil {
		sent(b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over++
	s.last = err
	return err
}

// Close is the publisher's; a polite one waits for Sends under way first.
func (s *spy) Close(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.isPolite() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.mu.Lock()
			s.hung = true
			s.mu.Unlock()
			return s.Publisher.Close(ctx)
		}
	}
	return s.Publisher.Close(ctx)
}

func (s *spy) isPolite() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polite && s.began != s.over && !s.hung
}

func (s *spy) hasHung() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hung
}

func (s *spy) bePolite() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polite = true
}

func (s *spy) counts() (began, over int, last error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began, s.over, s.last
}

// onSent has f called after each Send that succeeded, before the lane learns of it.
func (s *spy) onSent(f func(b *sink.Batch)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = f
}

// board records what is raised.
type board struct {
	mu     sync.Mutex // guards the field below
	raised map[string]state.Status
}

func (b *board) Raise(name string, s state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.raised[name] = s
}

func (b *board) Clear(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.raised, name)
}

func (b *board) all() (out []state.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.raised {
		out = append(out, s)
	}
	return out
}

// await waits for a state and returns what is said of it.
func (b *board) await(t *testing.T, want state.State) (found state.Status) {
	t.Helper()
	eventually(t, within, func() string {
		for _, s := range b.all() {
			if s.State == want {
				found = s
				return ""
			}
		}
		return fmt.Sprintf("state %s is not raised, but %v", want, b.all())
	})
	return found
}

// event makes one; n is its identity and its place in the stream.
func event(topic string, n int, key, value string) outbox.Committed {
	return outbox.Committed{
		Position: outbox.Position{Incarnation: 1, LSN: outbox.LSN(1000 + n), Ordinal: 1}, CommitTime: time.Now(),
		ID: fmt.Appendf(nil, "id-%d", n), AggregateType: []byte("order"), AggregateID: []byte(key),
		EventType: []byte("OrderPlaced"), Topic: []byte(topic), Payload: []byte(value),
	}
}

// eventually calls check until it has nothing to complain about.
func eventually(t *testing.T, limit time.Duration, check func() (complaint string)) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v: %s", limit, complaint)
		}
	}
}

func stacks() []byte {
	buf := make([]byte, 1<<20)
	return buf[:runtime.Stack(buf, true)]
}
