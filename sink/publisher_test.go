package sink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// lines collects what is written to it, and fails where it is told to.
type lines struct {
	mu   sync.Mutex
	data []byte
	cut  int // the next write ends with an error after so many bytes; 0: it succeeds
}

func (l *lines) cutNext(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = n
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut > 0 && l.cut < len(p) {
		n := l.cut
		l.cut = 0
		l.data = append(l.data, p[:n]...)
		return n, errTest
	}
	l.data = append(l.data, p...)
	return len(p), nil
}

// records reads the lines back.
func (l *lines) records(t *testing.T) (out []sinktest.Record) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(string(l.data)) {
		var r struct {
			Key       string
			Partition *int32
			Topic     string
			Value     json.RawMessage
			Base64    []byte `json:"value_base64"`
			Headers   map[string]string
			Timestamp time.Time
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if r.Topic == "" || r.Partition == nil || r.Timestamp.IsZero() {
			t.Errorf("line %q lacks something", line)
		}
		out = append(out, sinktest.Record{Partition: *r.Partition, Key: r.Key, Value: r.Value})
		p := &out[len(out)-1]
		switch {
		case r.Value == nil:
			p.Value = r.Base64
		case string(r.Value) == "null":
			p.Value = nil
		}
		for name, value := range r.Headers {
			p.Headers = append(p.Headers, sinktest.Header{Name: name, Value: value})
		}
	}
	return out
}

// TestStdout_Cut wants a write that fails in the middle of a line to be taken up there, also when another lane has
// something to write meanwhile.
func TestStdout_Cut(t *testing.T) {
	w := &lines{cut: 100}
	s := start(t, testConfig("a", "b"), sink.NewStdout(w))
	var events []outbox.Committed
	for i := range 20 {
		events = append(events, to([]string{"a", "b"}[i%2], event(i, "k", fmt.Sprint(i))))
	}
	s.accept(events...)
	s.drain()
	got := w.records(t)
	if len(got) != 20 {
		t.Fatalf("got %d lines, want 20", len(got))
	}
	seen := map[string]bool{}
	for _, p := range got {
		seen[string(p.Value)] = true
	}
	if len(seen) != 20 || s.Stats().Retries["broker"] == 0 {
		t.Errorf("got %d different records, stats %+v", len(seen), s.Stats())
	}
}

// TestStdout_Close wants no line to be written after Close.
func TestStdout_Close(t *testing.T) {
	w := &lines{}
	out := sink.NewStdout(w)
	kept := &keeper{Publisher: out}
	s := start(t, testConfig("t"), kept)
	s.accept(to("t", event(1, "k", "1")))
	s.awaitAcked(1)
	if err := out.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := out.Send(t.Context(), kept.last); err == nil {
		t.Error("Send succeeds after Close")
	}
	if got := w.records(t); len(got) != 1 {
		t.Errorf("%d lines, want 1", len(got))
	}
}

// keeper keeps the last batch that was sent.
type keeper struct {
	sink.Publisher
	last *sink.Batch
}

func (k *keeper) Send(ctx context.Context, b *sink.Batch) error {
	k.last = b
	return k.Publisher.Send(ctx, b)
}
