package sink_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// gate is a Publisher whose Send waits to be let through.
type gate struct {
	partitions int
	fail       func(b *sink.Batch) error // what Send returns, nil: success

	mu   sync.Mutex
	open bool
	cond sync.Cond
	sent [][]string // values by batch
}

func newGate(partitions int) *gate {
	g := &gate{partitions: partitions}
	g.cond.L = &g.mu
	return g
}

func (g *gate) Open(context.Context) error                      { return nil }
func (g *gate) Partitions(context.Context, string) (int, error) { return g.partitions, nil }

func (g *gate) Close(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.cond.Broadcast()
	return nil
}

func (g *gate) Send(ctx context.Context, b *sink.Batch) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.open {
		g.cond.Wait()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if g.fail != nil {
		if err := g.fail(b); err != nil {
			return err
		}
	}
	var values []string
	for r := range b.Records() {
		values = append(values, string(r.Value))
	}
	g.sent = append(g.sent, values)
	return nil
}

func (g *gate) let(through bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = through
	g.cond.Broadcast()
}

func (g *gate) batches() [][]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([][]string(nil), g.sent...)
}

// TestSink_NaturalBatching wants what arrives while a batch is in flight to go in the next one, together.
func TestSink_NaturalBatching(t *testing.T) {
	g := newGate(1)
	s := start(t, testConfig("t"), g)
	events, _ := numbers("t", "k", 6)
	s.accept(events[0])
	testenv.Eventually(t, within, func() (bool, string) { return s.Stats().Sends == 1, "the first batch is not sent" })
	s.accept(events[1], events[2])
	s.accept(events[3])
	s.accept(events[4:]...)
	g.let(true)
	s.drain()
	want := [][]string{{"1"}, {"2", "3", "4", "5", "6"}}
	if diff := cmp.Diff(want, g.batches()); diff != "" {
		t.Errorf("batches (-want +got):\n%s", diff)
	}
}

// TestSink_BatchBytes wants batches to be closed at BatchBytes, and a record beyond it to have one of its own.
func TestSink_BatchBytes(t *testing.T) {
	g := newGate(1)
	cfg := testConfig("t")
	cfg.BatchBytes = 4096
	s := start(t, cfg, g)
	s.accept(to("t", event(0, "k", "first")))
	testenv.Eventually(t, within, func() (bool, string) { return s.Stats().Sends == 1, "the first batch is not sent" })
	var events []outbox.Committed
	for i := range 20 {
		events = append(events, to("t", event(i, "k", strings.Repeat("x", 700))))
	}
	events[10].Payload = make([]byte, 20000)
	s.accept(events...)
	g.let(true)
	s.drain()
	total := 0
	for _, b := range g.batches() {
		size := 0
		for _, v := range b {
			size += len(v)
		}
		total += len(b)
		if size > 4096 && len(b) > 1 {
			t.Errorf("a batch of %d records has %d bytes", len(b), size)
		}
	}
	if total != 21 || len(g.batches()) > 9 {
		t.Errorf("got %d records in %d batches", total, len(g.batches()))
	}
}

// TestSink_Window wants Accept to block at the window, to go on with room, and to let a record larger than the
// window pass when it is alone.
func TestSink_Window(t *testing.T) {
	g := newGate(4)
	cfg := testConfig("t")
	cfg.WindowBytes, cfg.BatchBytes = 64<<10, 8<<10
	s := start(t, cfg, g)
	var events []outbox.Committed
	for i := range 200 {
		events = append(events, to("t", event(i, fmt.Sprint("key", i), strings.Repeat("x", 1000))))
	}
	blocked := s.acceptAside(events...)
	testenv.Eventually(t, within, func() (bool, string) {
		st := s.Stats()
		return st.BacklogBytes > 62<<10 && st.Sends == 4, fmt.Sprintf("%+v", st)
	})
	select {
	case err := <-blocked:
		t.Fatalf("Accept returned %v with the window full", err)
	default:
	}
	if got := s.Stats().BacklogBytes; got > 64<<10 {
		t.Errorf("%d bytes are in a window of %d", got, 64<<10)
	}
	g.let(true)
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	s.accept(to("t", event(200, "k", strings.Repeat("x", 100<<10))))
	s.drain()
	s.awaitAcked(201)
}

// TestSink_Ends wants Run and Accept to end with the cause of the context, at once, whatever they wait for.
func TestSink_Ends(t *testing.T) {
	g := newGate(1)
	cfg := testConfig("t")
	cfg.WindowBytes, cfg.BatchBytes = 64<<10, 8<<10
	s := sink.New(cfg, g, source, func([]uint64) {}, &board{raised: map[string]state.Status{}})
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	blocked := make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			err = s.Accept(t.Context(), uint64(i+1), []outbox.Committed{to("t", event(i, "k", strings.Repeat("x", 1000)))})
		}
		blocked <- err
	}()
	testenv.Eventually(t, within, func() (bool, string) { return s.Stats().BacklogBytes > 62<<10, "the window is not full" })
	cancel(errTest)
	if err := <-result; !errors.Is(err, errTest) {
		t.Errorf("Run returned %v", err)
	}
	if err := <-blocked; !errors.Is(err, errTest) {
		t.Errorf("Accept returned %v", err)
	}
	checkGoroutines(t)
}

// TestSink_AcceptEnds wants Accept alone to end with its own context.
func TestSink_AcceptEnds(t *testing.T) {
	s := start(t, testConfig("t"), newGate(1))
	ctx, cancel := context.WithCancelCause(t.Context())
	poison := event(1, "", "x")
	result := make(chan error, 1)
	go func() { result <- s.Accept(ctx, 1, []outbox.Committed{poison}) }()
	s.board.await(t, state.Halted)
	cancel(errTest)
	if err := <-result; !errors.Is(err, errTest) {
		t.Errorf("Accept returned %v", err)
	}
	s.board.awaitClear(t)
	s.drain()
	if err := s.Accept(t.Context(), 2, nil); !errors.Is(err, sink.ErrClosed) {
		t.Errorf("Accept after the end returned %v", err)
	}
}

// TestSink_Poison wants events that can be seen to be poison to halt the stream, with a state that names them,
// and nothing of them or behind them to be sent.
func TestSink_Poison(t *testing.T) {
	with := func(change func(*outbox.Committed)) outbox.Committed {
		e := to("t", event(2, "secret-key", "secret-payload"))
		change(&e)
		return e
	}
	tests := []struct {
		name string
		e    outbox.Committed
		says string
	}{
		{"empty key", with(func(e *outbox.Committed) { e.PartitionKey = []byte{} }), "key is empty"},
		{"no key", with(func(e *outbox.Committed) { e.AggregateID = nil }), "key is empty"},
		{"topic not allowed", with(func(e *outbox.Committed) { e.Topic = []byte("u") }), "not allowed"},
		{"internal topic", with(func(e *outbox.Committed) { e.Topic = []byte("__consumer_offsets") }), "not allowed"},
		{"topic as path", with(func(e *outbox.Committed) { e.Topic = []byte("../x") }), "not allowed"},
		{"type with space", with(func(e *outbox.Committed) { e.Topic, e.AggregateType = nil, []byte("Order Created") }), "character other than"},
		{"type too long", with(func(e *outbox.Committed) { e.Topic, e.AggregateType = nil, []byte(strings.Repeat("a", 300)) }), "allows 249"},
		{"no type", with(func(e *outbox.Committed) { e.Topic, e.AggregateType = nil, nil }), "no aggregate type"},
		{"nested headers", with(func(e *outbox.Committed) { e.Headers = []byte(`{"a":{}}`) }), "JSON object"},
		{"line feed in a header", with(func(e *outbox.Committed) { e.Headers = []byte(`{"a":"x\r\ny"}`) }), "carriage return"},
		{"reserved header", with(func(e *outbox.Committed) { e.Headers = []byte(`{"event_key":"x"}`) }), "reserved"},
		{"line feed in a column", with(func(e *outbox.Committed) { e.EventKey = []byte("a\nb") }), "carriage return"},
		{"too large", with(func(e *outbox.Committed) { e.Payload = make([]byte, 2<<20) }), "limit is 1048588"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(1)
			g.open = true
			s := start(t, testConfig("t"), g)
			blocked := s.acceptAside(to("t", event(1, "k", "1")), tt.e, to("t", event(3, "k", "3")))
			status := s.board.await(t, state.Halted)
			if !strings.Contains(status.Reason, `"id-2"`) || !strings.Contains(status.Reason, tt.says) || status.Hint == "" {
				t.Errorf("got %+v, want it to name the event and say %q", status, tt.says)
			}
			if strings.Contains(status.Reason+status.Hint, "secret") {
				t.Errorf("the state tells too much: %+v", status)
			}
			s.awaitAcked(1)
			if st := s.Stats(); !st.Halted || st.BacklogEvents != 0 {
				t.Errorf("got stats %+v", st)
			}
			select {
			case err := <-blocked:
				t.Errorf("Accept passed the event: %v", err)
			default:
			}
			if diff := cmp.Diff([][]string{{"1"}}, g.batches()); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSink_Route wants case kept and the topic made per aggregate type.
func TestSink_Route(t *testing.T) {
	g := newGate(1)
	g.open = true
	cfg := testConfig()
	cfg.Route = "x.{aggregate_type}.y"
	s := start(t, cfg, g)
	for i, kind := range []string{"UserEmail", "order", "UserEmail"} {
		e := event(i, "k", "v")
		e.AggregateType = []byte(kind)
		s.accept(e)
	}
	s.drain()
	want := map[string]uint64{"x.UserEmail.y": 2, "x.order.y": 1}
	if diff := cmp.Diff(want, s.Stats().Published); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

// TestSink_ManyTypes wants what is remembered of aggregate types to be bounded, and forgetting to change nothing.
func TestSink_ManyTypes(t *testing.T) {
	g := newGate(1)
	g.open = true
	cfg := testConfig()
	cfg.Route = "all"
	s := start(t, cfg, g)
	for i := range 10000 {
		e := event(i, "k", "v")
		e.AggregateType = fmt.Appendf(nil, "type%d", i)
		s.accept(e)
	}
	s.drain()
	if got := s.Stats(); got.Published["all"] != 10000 || got.Lanes != 1 {
		t.Errorf("got %+v", got)
	}
}

// TestSink_Observe wants each batch to be reported with its facts.
func TestSink_Observe(t *testing.T) {
	g := newGate(1)
	tries := 0
	g.fail = func(*sink.Batch) error {
		if tries++; tries == 1 {
			return errTest
		}
		return nil
	}
	g.open = true
	cfg := testConfig("t")
	var got []sink.BatchResult
	cfg.Observe = func(r sink.BatchResult) { got = append(got, r) }
	s := start(t, cfg, g)
	e := to("t", event(1, "k", "v"))
	e.CommitTime = time.Now().Add(-time.Minute)
	s.accept(e)
	s.drain()
	if len(got) != 1 || got[0].Topic != "t" || got[0].Events != 1 || got[0].Bytes == 0 || got[0].Tries != 2 ||
		got[0].CommitAge < time.Minute || got[0].Produce <= 0 {
		t.Errorf("got %+v", got)
	}
}

// TestSink_Memory fills the window over a thousand partitions while nothing is acknowledged.
func TestSink_Memory(t *testing.T) {
	g := newGate(1000)
	cfg := testConfig("t")
	s := start(t, cfg, g)
	payload := make([]byte, 200)
	fill := func(n int) {
		for i := range n {
			e := to("t", event(i, fmt.Sprint("key", i), ""))
			e.Payload = payload
			s.accept(e)
		}
	}
	heap := func() int64 { // signed: a collection in between may take more than what is measured
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := heap()
	fill(5000) // about five for each partition, so all have a lane, a batch in flight and one that waits
	quiet := heap() - before
	fill(40000)
	full, held := heap()-before, s.Stats().BacklogBytes
	t.Logf("5000 events: %d MB; 45000 events, %d MB of records: %d MB", quiet>>20, held>>20, full>>20)
	if quiet > 24<<20 {
		t.Errorf("a thousand partitions with little cost %d bytes", quiet)
	}
	if full > 48<<20 {
		t.Errorf("a window of %d bytes costs %d", held, full)
	}
	g.let(true)
	s.drain()
}
