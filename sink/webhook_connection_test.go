package sink_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// TestWebhook_Concurrency wants no more requests at a time than agreed, over all topics, on connections that are kept.
func TestWebhook_Concurrency(t *testing.T) {
	v := newReceiver(t)
	proxy, err := faultproxy.New(v.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	var mu sync.Mutex // guards the fields below
	now, most := 0, 0
	release := make(chan struct{})
	v.answering(func(_ received, w http.ResponseWriter) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-release
		fmt.Fprint(w, "thank you")
		mu.Lock()
		defer mu.Unlock()
		now--
	})
	s := start(t, testConfig("a", "b"), sink.NewWebhook(webhookConfig("http://"+proxy.Addr())))
	for i := range 200 {
		s.accept(to([]string{"a", "b"}[i%2], event(i, fmt.Sprint("key", i%40), fmt.Sprint(i))))
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return now == 4 }, "four requests are under way")
	close(release)
	s.drain()
	s.awaitAcked(200)
	if most != 4 {
		t.Errorf("%d requests at a time, want 4", most)
	}
	if n := proxy.Accepted(); n > 8 {
		t.Errorf("%d connections for 200 requests", n)
	}
	checkGoroutines(t)
}

// TestWebhook_AnsweredEarly wants a value that is still being written when its answer comes to be left alone: its bytes
// are soon another event's.
func TestWebhook_AnsweredEarly(t *testing.T) {
	const size = 4 << 20
	early := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.WriteHeader(http.StatusOK) // and reads nothing
	}))
	t.Cleanup(early.Close)
	cfg := testConfig("t")
	cfg.MaxRecordBytes = 2 * size
	s := start(t, cfg, sink.NewWebhook(webhookConfig(early.URL)))
	for i := range 20 {
		s.accept(to("t", event(i, fmt.Sprint("key", i), strings.Repeat("x", size))))
	}
	s.drain() // the race detector watches
}

// TestWebhook_TLS wants a receiver to prove who it is, and says what is wrong where it cannot.
func TestWebhook_TLS(t *testing.T) {
	v := &receiver{}
	v.Server = httptest.NewUnstartedServer(v)
	v.EnableHTTP2 = true
	v.Config.ErrorLog = log.New(io.Discard, "", 0)
	v.StartTLS()
	t.Cleanup(v.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(v.Certificate())

	stranger := start(t, testConfig("t"), sink.NewWebhook(webhookConfig(v.URL)))
	stranger.accept(to("t", event(1, "k", "1")))
	if said := stranger.board.await(t, state.BrokerDenied); !strings.Contains(said.Hint, "webhook.tls.ca_file") {
		t.Errorf("got %+v", said)
	}
	stranger.stop()
	_ = stranger.wait()
	cfg := webhookConfig(v.URL)
	cfg.TLS = &tls.Config{RootCAs: trusted}
	s := start(t, testConfig("t"), sink.NewWebhook(cfg))
	for i := range 100 {
		s.accept(to("t", event(i, fmt.Sprint("key", i), "")))
	}
	s.drain()
	s.awaitAcked(100)
	checkGoroutines(t)
}

// TestWebhook_Timeout wants a receiver that does not answer in time to be asked again.
func TestWebhook_Timeout(t *testing.T) {
	v := newReceiver(t)
	resume := v.stall()
	cfg := webhookConfig(v.URL)
	cfg.RequestTimeout = 100 * time.Millisecond
	s := start(t, testConfig("t"), sink.NewWebhook(cfg))
	s.accept(to("t", event(1, "k", "1")))
	s.board.await(t, state.BrokerUnreachable)
	if s.Stats().Retries["timeout"] == 0 {
		t.Errorf("got %v", s.Stats().Retries)
	}
	resume()
	s.awaitAcked(1)
	s.board.awaitClear(t)
}
