package sink_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// published reads back what a publisher has made of a topic.
type published struct {
	key, value string
	null       bool
	headers    map[string]string
}

// TestPublishers is what every Publisher must do, run over each one.
func TestPublishers(t *testing.T) {
	publishers := map[string]func(t *testing.T) (sink.Publisher, string, func() []published){
		"kafka": func(t *testing.T) (sink.Publisher, string, func() []published) {
			brokers := testenv.Kafka(t)
			topic := testenv.NewTopic(t, brokers, 1, nil)
			return sink.NewKafka(kafkaConfig(brokers), source), topic, func() (out []published) {
				for _, r := range testenv.Consume(t, brokers, topic) {
					p := published{key: string(r.Key), value: string(r.Value), null: r.Value == nil, headers: map[string]string{}}
					for _, h := range r.Headers {
						p.headers[h.Key] = string(h.Value)
					}
					out = append(out, p)
				}
				return out
			}
		},
		"stdout": func(t *testing.T) (sink.Publisher, string, func() []published) {
			var w lines
			return sink.NewStdout(&w), "t", func() []published { return w.read(t) }
		},
	}
	for name, open := range publishers {
		t.Run(name, func(t *testing.T) {
			pub, topic, read := open(t)
			s := start(t, testConfig(topic), pub)
			first := to(topic, event(1, "k", `{"a": 1}`))
			first.Headers = []byte(`{"traceparent":"00-1"}`)
			tombstone := to(topic, event(2, "k", ""))
			tombstone.Payload = nil
			empty := to(topic, event(3, "k", ""))
			binary := to(topic, event(4, "ключ", "\x00\xff\n"))
			s.accept(first, tombstone, empty, binary)
			for i := 5; i <= 500; i++ {
				s.accept(to(topic, event(i, "k", fmt.Sprint(i))))
			}
			s.drain()
			s.awaitAcked(500)
			got := read()
			if len(got) != 500 {
				t.Fatalf("got %d records, want 500", len(got))
			}
			if got[0].key != "k" || got[0].value != `{"a": 1}` || got[0].headers["traceparent"] != "00-1" || got[0].headers["id"] != "id-1" {
				t.Errorf("got %+v", got[0])
			}
			if !got[1].null || got[2].null || got[2].value != "" {
				t.Errorf("tombstone and empty value became %+v and %+v", got[1], got[2])
			}
			if got[3].key != "ключ" || got[3].value != "\x00\xff\n" {
				t.Errorf("binary value became %+v", got[3])
			}
			for i := 5; i <= 500; i++ {
				if got[i-1].value != fmt.Sprint(i) {
					t.Fatalf("record %d is %q", i, got[i-1].value)
				}
			}
			if err := pub.Close(t.Context()); err != nil {
				t.Errorf("Close again: %v", err)
			}
			checkGoroutines(t)
		})
	}
}

// lines collects what is written to it, and fails where it is told to.
type lines struct {
	mu   sync.Mutex
	data []byte
	cut  int // the next write ends with an error after so many bytes; 0: it succeeds
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

func (l *lines) read(t *testing.T) (out []published) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(strings.TrimSuffix(string(l.data), "\n"), "\n") {
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
		p := published{key: r.Key, value: string(r.Value), null: string(r.Value) == "null", headers: r.Headers}
		if r.Value == nil {
			p.value = string(r.Base64)
		} else if p.null {
			p.value = ""
		}
		out = append(out, p)
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
	got := w.read(t)
	if len(got) != 20 {
		t.Fatalf("got %d lines, want 20", len(got))
	}
	seen := map[string]bool{}
	for _, p := range got {
		seen[p.value] = true
	}
	if len(seen) != 20 || s.Stats().Retries["broker"] == 0 {
		t.Errorf("got %d different records, stats %+v", len(seen), s.Stats())
	}
}
