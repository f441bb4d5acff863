package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Run runs every test over a publisher. open makes a target for each.
func Run(t *testing.T, open func(t *testing.T) Target) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, target Target)
	}{
		{"bytes", testBytes},
		{"order", testOrder},
		{"durable", testDurable},
		{"resent", testResent},
		{"poison", testPoison},
		{"missing", testMissing},
		{"outage", testOutage},
		{"cancelled", testCancelled},
		{"closed", testClosed},
		{"replaced", testReplaced},
		{"goroutines", testGoroutines},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// testBytes wants keys, values and headers to arrive as they are, null as null and empty as empty.
func testBytes(t *testing.T, target Target) {
	s := start(t, target)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	long := strings.Repeat("long ", 20_000)
	events := []outbox.Committed{
		event(target.Topic, 0, "plain", `{"a": 1.10, "b":[ ]}`), event(target.Topic, 1, "ключ %22\"", " \n"), event(target.Topic, 2, "k", ""),
		event(target.Topic, 3, "k", ""), event(target.Topic, 4, "k", string(all)), event(target.Topic, 5, "k", long),
	}
	events[0].Headers = []byte(`{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","a name: \"x\"":"a value, 100% \"ü\"","empty":""}`)
	events[0].Tenant, events[0].EventKey = []byte("tenant one"), []byte("placed:1")
	events[0].OccurredAt = []byte("2026-11-30 18:57:22.123456+00")
	events[2].Payload = nil
	s.accept(events...)
	s.drain()

	got := map[string]Record{}
	for _, r := range target.Read() {
		got[r.header("id")] = r
	}
	for i, e := range events {
		r, ok := got[string(e.ID)]
		if !ok {
			t.Errorf("event %d is not there", i)
			continue
		}
		if r.Key != string(e.AggregateID) {
			t.Errorf("event %d: key %q, want %q", i, r.Key, e.AggregateID)
		}
		if (r.Value == nil) != (e.Payload == nil) || !bytes.Equal(r.Value, e.Payload) {
			t.Errorf("event %d: value of %d bytes, null %v; want %d bytes, null %v", i, len(r.Value), r.Value == nil, len(e.Payload), e.Payload == nil)
		}
	}
	want := []Header{
		{"id", "id-0"}, {"event_key", "placed:1"}, {"event_type", "OrderPlaced"}, {"aggregate_type", "order"},
		{"occurred_at", "2026-11-30T18:57:22.123456Z"}, {"tenant", "tenant one"},
		{"relay_position", source + "-00000001-00000000000003e8-00000001"},
		{"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {`a name: "x"`, `a value, 100% "ü"`}, {"empty", ""},
	}
	if diff := cmp.Diff(sorted(want), sorted(got["id-0"].Headers)); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// testOrder wants the events of each key in one partition and in order.
func testOrder(t *testing.T, target Target) {
	s := start(t, target)
	const keys, each = 40, 25
	n := 0
	for i := range each {
		var events []outbox.Committed
		for k := range keys {
			events = append(events, event(target.Topic, n, fmt.Sprint("key", k), fmt.Sprint(i)))
			n++
		}
		s.accept(events...)
	}
	s.drain()
	next, place := map[string]int{}, map[string]int32{}
	for _, r := range target.Read() {
		if string(r.Value) != fmt.Sprint(next[r.Key]) {
			t.Fatalf("key %s: value %s, want %d", r.Key, r.Value, next[r.Key])
		}
		if p, known := place[r.Key]; known && p != r.Partition {
			t.Errorf("key %s is in partitions %d and %d", r.Key, p, r.Partition)
		}
		place[r.Key] = r.Partition
		next[r.Key]++
	}
	for k := range keys {
		if got := next[fmt.Sprint("key", k)]; got != each {
			t.Errorf("key %d has %d records, want %d", k, got, each)
		}
	}
}

// testDurable wants a Send that returns nil to leave its records at the other side, that moment and not later.
func testDurable(t *testing.T, target Target) {
	s := start(t, target)
	checks := 0
	s.pub.onSent(func(b *sink.Batch) { // one partition: one at a time
		there := map[string]bool{}
		for _, r := range target.Read() {
			there[r.header("id")] = true
		}
		for r := range b.Records() {
			if id := idOf(r); !there[id] {
				t.Errorf("Send returned nil, and record %s is not there", id)
			}
			checks++
		}
	})
	for i := range 5 {
		first := s.accept(event(target.Topic, 2*i, "k", fmt.Sprint(i)), event(target.Topic, 2*i+1, "k", fmt.Sprint(i)))
		s.awaitAcked(first, first+1)
	}
	if s.drain(); checks != 10 {
		t.Errorf("saw %d records sent, want 10", checks)
	}
}

func idOf(r sink.Record) string {
	for name, value := range r.Headers() {
		if string(name) == "id" {
			return string(value)
		}
	}
	return ""
}

// testResent wants a batch whose answer was lost to come again, in its place, and once where that is promised.
func testResent(t *testing.T, target Target) {
	if target.LoseAnswer == nil {
		t.Skip("the other side cannot lose an answer")
	}
	s := start(t, target)
	s.awaitAcked(s.accept(event(target.Topic, 0, "k", "0")), 1)
	for i := 1; i <= 30; i++ {
		if i%10 == 1 {
			target.LoseAnswer()
		}
		n := s.accept(event(target.Topic, i, "k", fmt.Sprint(i)))
		s.awaitAcked(n, n)
	}
	s.drain()
	if st := s.Stats(); st.Sends == st.Batches {
		t.Fatal("no Send failed, so nothing was tested")
	}
	seen := map[string]int{}
	next := 0
	for _, r := range target.Read() {
		v := string(r.Value)
		if seen[v]++; seen[v] == 1 {
			if v != fmt.Sprint(next) {
				t.Fatalf("record %s comes where %d belongs", v, next)
			}
			next++
		} else if target.Once {
			t.Errorf("record %s is there %d times", v, seen[v])
		}
	}
	if next != 31 {
		t.Errorf("%d records are there, want 31", next)
	}
}

// testPoison wants a record that is never taken to stop its partition and nothing else, and what is before it to go.
func testPoison(t *testing.T, target Target) {
	if target.Poison == nil {
		t.Skip("the other side takes everything")
	}
	s := start(t, target)
	const keys = 20
	n := 0
	round := func(i int) (events []outbox.Committed) {
		for k := range keys {
			events = append(events, event(target.Topic, n, fmt.Sprint("key", k), fmt.Sprint(i)))
			n++
		}
		return events
	}
	var mu sync.Mutex // guards place
	place := map[string]int32{}
	s.pub.onSent(func(b *sink.Batch) {
		mu.Lock()
		defer mu.Unlock()
		for r := range b.Records() {
			place[string(r.Key)] = b.Partition
		}
	})
	s.awaitAcked(s.accept(round(0)...), keys)
	s.pub.onSent(nil)
	bad := event(target.Topic, n, "key0", string(target.Poison()))
	n++
	events := append(round(1), bad)
	events = append(events, round(2)...)
	s.accept(events...)
	said := s.board.await(t, state.Halted)
	if !strings.Contains(said.Reason, string(bad.ID)) {
		t.Errorf("the reason %q does not name event %s", said.Reason, bad.ID)
	}
	const second, third = 1 + keys, 1 + keys + keys + 1
	s.awaitAcked(second, second+keys-1)
	if s.isAcked(third - 1) {
		t.Error("the poison event is acknowledged")
	}
	for k := range keys {
		at := uint64(third + k)
		if place[fmt.Sprint("key", k)] != place["key0"] {
			s.awaitAcked(at, at)
		} else if s.isAcked(at) {
			t.Errorf("key %d went on behind the poison event on its partition", k)
		}
	}
	if err := s.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	for _, r := range target.Read() {
		if r.header("id") == string(bad.ID) || string(r.Value) == "2" && place[r.Key] == place["key0"] {
			t.Errorf("record %s of key %s is there", r.header("id"), r.Key)
		}
	}
}

// testMissing wants a topic that does not exist to be a state of its own.
func testMissing(t *testing.T, target Target) {
	if target.Missing == "" {
		t.Skip("every topic exists")
	}
	s := start(t, target)
	go func() { _ = s.Accept(s.ctx, 1, []outbox.Committed{event(target.Missing, 1, "k", "1")}) }() // until the session ends
	if said := s.board.await(t, state.TopicMissing); !strings.Contains(said.Reason, target.Missing) {
		t.Errorf("the reason %q does not name the topic", said.Reason)
	}
}

// testOutage wants events to wait for the other side, with a state, and then to go, each once and in order.
func testOutage(t *testing.T, target Target) {
	if target.Down == nil {
		t.Skip("the other side cannot be taken away")
	}
	s := start(t, target)
	s.awaitAcked(s.accept(event(target.Topic, 0, "k", "0")), 1)
	up := target.Down()
	for i := 1; i <= 50; i++ {
		s.accept(event(target.Topic, i, "k", fmt.Sprint(i)))
	}
	s.board.await(t, state.BrokerUnreachable)
	up()
	s.drain()
	s.awaitAcked(1, 51)
	var got []string
	for _, r := range target.Read() {
		if v := string(r.Value); target.Once || !slices.Contains(got, v) {
			got = append(got, v)
		}
	}
	for i := range 51 {
		if i >= len(got) || got[i] != fmt.Sprint(i) {
			t.Fatalf("got %d records, the %d-th is not %d: %v", len(got), i, i, got)
		}
	}
}

// testCancelled wants the end of a session to end a Send that nobody answers.
func testCancelled(t *testing.T, target Target) {
	s := stalled(t, target)
	s.pub.bePolite()
	if err := s.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if s.pub.hasHung() {
		t.Error("a Send does not return when its context has ended")
	}
}

// testClosed wants Close to end a Send under way, and every later one.
func testClosed(t *testing.T, target Target) {
	s := stalled(t, target)
	_, before, _ := s.pub.counts()
	ctx, cancel := context.WithTimeout(t.Context(), ends)
	defer cancel()
	if err := s.pub.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	// The lane tries again and again.
	eventually(t, ends, func() string {
		if _, over, _ := s.pub.counts(); over < before+2 {
			return "a Send under way, or a later one, does not return after Close"
		}
		return ""
	})
	if _, _, err := s.pub.counts(); err == nil {
		t.Error("a Send succeeds after Close")
	}
	if s.isAcked(2) {
		t.Error("an event is acknowledged after Close")
	}
	if err := s.pub.Close(ctx); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

// stalled returns a session with a Send under way that nobody answers. Event 1 is acknowledged, event 2 is not.
func stalled(t *testing.T, target Target) *session {
	t.Helper()
	if target.Stall == nil {
		t.Skip("the other side cannot hang")
	}
	s := start(t, target)
	s.awaitAcked(s.accept(event(target.Topic, 1, "k", "1")), 1)
	t.Cleanup(target.Stall())
	began, _, _ := s.pub.counts()
	s.accept(event(target.Topic, 2, "k", "2"))
	eventually(t, within, func() string {
		if now, _, _ := s.pub.counts(); now == began {
			return "no Send begins"
		}
		return ""
	})
	return s
}

// testReplaced wants a session that another one has followed to be refused.
func testReplaced(t *testing.T, target Target) {
	if !target.Fences {
		t.Skip("the publisher does not promise it")
	}
	old := start(t, target)
	old.awaitAcked(old.accept(event(target.Topic, 1, "k", "1")), 1)
	next := start(t, target)
	next.awaitAcked(next.accept(event(target.Topic, 2, "k", "2")), 1)
	old.accept(event(target.Topic, 3, "k", "late"))
	if err := old.wait(); !errors.Is(err, sink.ErrFenced) {
		t.Errorf("the earlier session's Run: %v, want ErrFenced", err)
	}
	next.awaitAcked(next.accept(event(target.Topic, 4, "k", "4")), 2)
	for _, r := range target.Read() {
		if string(r.Value) == "late" {
			t.Error("a record of the earlier session is behind one of its successor")
		}
	}
}

// testGoroutines wants nothing to live on after Close.
func testGoroutines(t *testing.T, target Target) {
	before := runtime.NumGoroutine()
	for i := range 3 {
		s := start(t, target)
		s.accept(event(target.Topic, i, "k", fmt.Sprint(i)), event(target.Topic, 100+i, "another key", fmt.Sprint(i)))
		s.drain()
		if err := s.pub.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	eventually(t, ends, func() string {
		if now := runtime.NumGoroutine(); now > before {
			return fmt.Sprintf("%d goroutines, %d before:\n%s", now, before, stacks())
		}
		return ""
	})
}
