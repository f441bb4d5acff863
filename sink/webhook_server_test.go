package sink_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// receiver takes webhooks and remembers them.
type receiver struct {
	*httptest.Server

	mu       sync.Mutex // guards the fields below
	requests []received
	answer   func(r received, w http.ResponseWriter) // nil: 204
	losing   bool
	stalled  chan struct{} // nil: it answers
}

// received is a request as it came.
type received struct {
	path   string
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T) *receiver {
	v := &receiver{}
	v.Server = httptest.NewServer(v)
	t.Cleanup(v.Close)
	return v
}

func (v *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r := received{path: req.URL.EscapedPath(), header: req.Header, body: body}
	v.mu.Lock()
	stalled, lose, answer := v.stalled, v.losing, v.answer
	v.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-req.Context().Done():
			return
		}
	}
	if answer == nil {
		answer = func(_ received, w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }
	}
	judged := httptest.NewRecorder()
	answer(r, judged)
	v.mu.Lock()
	if judged.Code < 300 {
		v.requests = append(v.requests, r)
	}
	v.losing = false
	v.mu.Unlock()
	if lose {
		panic(http.ErrAbortHandler) // the connection is cut
	}
	for name, values := range judged.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(judged.Code)
	_, _ = w.Write(judged.Body.Bytes())
}

// answering sets what is answered from now on.
func (v *receiver) answering(f func(r received, w http.ResponseWriter)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.answer = f
}

// taken returns the requests that were answered with success.
func (v *receiver) taken() []received {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]received(nil), v.requests...)
}

func (v *receiver) lose() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.losing = true
}

func (v *receiver) stall() (resume func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := make(chan struct{})
	v.stalled = c
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.stalled = nil
		close(c)
	}
}

// record reads a request back as the record that it was.
func (r received) record(t *testing.T) sinktest.Record {
	decode := func(s string) string {
		out, err := url.PathUnescape(s)
		if err != nil {
			t.Errorf("header value %q: %v", s, err)
		}
		return out
	}
	names := map[string]string{
		"Ce-Id": "id", "Ce-Eventkey": "event_key", "Ce-Type": "event_type", "Ce-Aggregatetype": "aggregate_type", "Ce-Time": "occurred_at",
		"Ce-Tenant": "tenant", "Ce-Relayposition": "relay_position", "Ce-Relayreplay": "relay_replay",
		"Traceparent": "traceparent",
	}
	out := sinktest.Record{Key: decode(r.header.Get("Ce-Partitionkey")), Value: r.body}
	if r.header.Get("Ce-Tombstone") == "true" {
		out.Value = nil
	}
	for name, values := range r.header {
		own, found := strings.CutPrefix(name, "Relay-Header-")
		if !found {
			own = names[name]
		}
		if own == "" {
			continue
		}
		for _, v := range values {
			out.Headers = append(out.Headers, sinktest.Header{Name: strings.ToLower(decode(own)), Value: decode(v)})
		}
	}
	return out
}

func webhookConfig(to string) sink.WebhookConfig {
	cfg := sink.DefaultWebhookConfig()
	cfg.URL = to
	cfg.Concurrency = 4
	cfg.RequestTimeout = 5 * time.Second
	return cfg
}

// webhookTarget is a receiver behind a proxy. Requests of different partitions come in any order, so a record's
// partition is not known; keys have their order all the same.
func webhookTarget(t *testing.T) sinktest.Target {
	v := newReceiver(t)
	v.answering(func(r received, w http.ResponseWriter) {
		if string(r.body) == "never" {
			http.Error(w, "never", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	proxy, err := faultproxy.New(v.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	return sinktest.Target{
		New:        func() sink.Publisher { return sink.NewWebhook(webhookConfig("http://" + proxy.Addr())) },
		Topic:      "t",
		LoseAnswer: v.lose,
		Stall:      v.stall,
		Down: func() func() {
			proxy.Set(faultproxy.Faults{Refuse: true})
			proxy.Reset()
			return proxy.Heal
		},
		Poison: func() []byte { return []byte("never") },
		Read: func() (out []sinktest.Record) {
			for _, r := range v.taken() {
				out = append(out, r.record(t))
			}
			return out
		},
	}
}
