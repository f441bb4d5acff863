package sink_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestWebhook_Request wants a CloudEvent in binary mode.
func TestWebhook_Request(t *testing.T) {
	v := newReceiver(t)
	cfg := webhookConfig(v.URL + "/hooks/{topic}?x=1")
	cfg.Source = "/shop"
	s := start(t, testConfig("t.one"), sink.NewWebhook(cfg))
	e := to("t.one", event(1, "kéy", `{"a": 1.0}`))
	e.EventKey, e.OccurredAt = []byte("placed:1"), []byte("2026-11-30 18:57:22+00")
	e.Headers = []byte(`{"tracestate":"a=1,b=2","content-type":"application/vnd.shop+json","Host":"evil","Authorization":"mine","ce_id":"forged"}`)
	bare := to("t.one", event(2, "k", "\xff\x00"))
	bare.EventType, bare.OccurredAt = nil, []byte("infinity")
	null := to("t.one", event(3, "k", ""))
	null.Payload = nil
	s.accept(e, bare, null)
	s.drain()
	got := map[string]map[string]string{}
	for _, r := range v.taken() {
		h := map[string]string{}
		for name, values := range r.header {
			h[name] = strings.Join(values, " | ")
		}
		h["path"] = r.path
		got[h["Ce-Id"]] = h
	}
	position := func(n int) string { return fmt.Sprintf("%s-00000001-%016x-00000001", source, 1000+n) }
	common := func(more map[string]string) map[string]string {
		out := map[string]string{
			"path": "/hooks/t.one", "User-Agent": "relay", "Ce-Specversion": "1.0", "Ce-Source": "/shop", "Ce-Type": "OrderPlaced",
			"Ce-Topic": "t.one", "Ce-Aggregatetype": "order", "Ce-Partitionkey": "k",
		}
		for name, value := range more {
			out[name] = value
		}
		out["Idempotency-Key"] = out["Ce-Id"]
		return out
	}
	want := map[string]map[string]string{
		"id-1": common(map[string]string{
			"Ce-Id": "id-1", "Ce-Partitionkey": "k%C3%A9y", "Ce-Relayposition": position(1), "Ce-Eventkey": "placed:1",
			"Ce-Time": "2026-11-30T18:57:22.000000Z", "Content-Type": "application/vnd.shop+json", "Content-Length": "10",
			"Tracestate": "a=1,b=2", "Relay-Header-Host": "evil", "Relay-Header-Authorization": "mine", "Relay-Header-Ce_id": "forged",
		}),
		"id-2": common(map[string]string{
			"Ce-Id": "id-2", "Ce-Type": "t.one", "Ce-Relayposition": position(2), "Content-Type": "application/octet-stream", "Content-Length": "2",
		}),
		"id-3": common(map[string]string{"Ce-Id": "id-3", "Ce-Relayposition": position(3), "Ce-Tombstone": "true", "Content-Length": "0"}),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestWebhook_RouteCloudEvents wants the attributes that a route has made to be those of the request.
func TestWebhook_RouteCloudEvents(t *testing.T) {
	v := newReceiver(t)
	cfg := testConfig()
	cfg.Routes = []sink.Route{{Topic: "t", CloudEvents: &sink.CloudEvents{Source: "/orders", Type: "aggregate_type"}}}
	s := start(t, cfg, sink.NewWebhook(webhookConfig(v.URL)))
	e := event(1, "k", `{}`)
	e.PayloadKind = outbox.KindJSON
	s.accept(e)
	s.drain()
	h := v.taken()[0].header
	for name, want := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "id-1", "Ce-Source": "/orders", "Ce-Type": "order", "Ce-Subject": "k", "Ce-Eventtype": "OrderPlaced",
		"Content-Type": "application/json",
	} {
		if got := h.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// TestWebhook_Answers walks the table of judge.
func TestWebhook_Answers(t *testing.T) {
	tests := []struct {
		codes []int
		state state.State
		hint  string
	}{
		{[]int{500, 502, 503, 504, 599, 408, 409, 421, 425, 429}, state.BrokerUnreachable, "look at the receiver"},
		{[]int{301, 302, 304, 307, 308}, state.BrokerDenied, "redirects are not followed"},
		{[]int{401, 403, 407}, state.BrokerDenied, "credentials"},
		{[]int{404, 405}, state.BrokerDenied, "webhook.url"},
		{[]int{410}, state.BrokerDenied, "gone for good"},
		{[]int{400, 402, 406, 411, 412, 413, 414, 415, 422, 431, 451, 499}, state.Halted, "repair it"},
	}
	for _, tt := range tests {
		for _, code := range tt.codes {
			t.Run(strconv.Itoa(code), func(t *testing.T) {
				t.Parallel()
				v := newReceiver(t)
				v.answering(func(_ received, w http.ResponseWriter) {
					w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
					http.Error(w, "what I say\r\n\x1b[31m"+strings.Repeat("very ", 100_000), code)
				})
				cfg := testConfig("t")
				cfg.Recheck = 50 * time.Millisecond
				s := start(t, cfg, sink.NewWebhook(webhookConfig(v.URL)))
				s.accept(to("t", event(1, "k", "1")), to("t", event(2, "k", "2")))
				said := s.board.await(t, tt.state)
				if !strings.Contains(said.Hint, tt.hint) {
					t.Errorf("the hint is %q, want %q in it", said.Hint, tt.hint)
				}
				shown := `: "what I say [31mvery very`
				if code == http.StatusNotModified { // has no body
					shown = ""
				}
				if !strings.Contains(said.Reason, fmt.Sprintf("answers %d", code)) || !strings.Contains(said.Reason, shown) {
					t.Errorf("the reason is %q", said.Reason)
				}
				if len(said.Reason) > 600 || strings.ContainsAny(said.Reason, "\r\n\x1b") {
					t.Errorf("the reason shows too much: %q", said.Reason)
				}
				if s.isAcked(1) {
					t.Error("the event is acknowledged")
				}
				v.answering(nil)
				s.drain() // all of them are tried again
				s.awaitAcked(2)
			})
		}
	}
}

// TestWebhook_RetryAfter wants a receiver that asks to be left alone to be left alone, by all partitions, and no longer
// than agreed.
func TestWebhook_RetryAfter(t *testing.T) {
	for name, value := range map[string]func() string{
		"seconds": func() string { return "3600" },
		"date":    func() string { return time.Now().Add(time.Hour).UTC().Format(http.TimeFormat) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newReceiver(t)
			var mu sync.Mutex // guards the fields below
			var asked []time.Time
			busy := true
			v.answering(func(_ received, w http.ResponseWriter) {
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, time.Now())
				if busy {
					busy = false
					w.Header().Set("Retry-After", value())
					w.WriteHeader(http.StatusTooManyRequests)
				}
			})
			const most = time.Second
			cfg := webhookConfig(v.URL)
			cfg.RetryAfterMost = most
			s := start(t, testConfig("t"), sink.NewWebhook(cfg))
			s.accept(to("t", event(0, "first", "")))
			s.board.await(t, state.BrokerUnreachable) // at once, although nothing has failed for long
			for i := 1; i < 20; i++ {
				s.accept(to("t", event(i, fmt.Sprint("key", i), "")))
			}
			s.drain()
			s.awaitAcked(20)
			mu.Lock()
			defer mu.Unlock()
			if len(asked) != 21 {
				t.Errorf("%d requests, want 21", len(asked))
			}
			if gap := asked[1].Sub(asked[0]); gap < most*9/10 || gap > 5*most {
				t.Errorf("the next request came after %v, want %v", gap, most)
			}
		})
	}
}

// TestWebhook_Sign wants signatures that others can verify, one for each secret, read anew.
func TestWebhook_Sign(t *testing.T) {
	v := newReceiver(t)
	old, fresh := []byte("an old key of twenty-four b"), []byte("a new key of twenty-four by")
	var mu sync.Mutex // guards secrets
	secrets := sink.WebhookSecrets{Headers: http.Header{"Authorization": {"Bearer hunter2"}}, Keys: [][]byte{old}}
	cfg := webhookConfig(v.URL)
	cfg.Secrets = func() (sink.WebhookSecrets, error) {
		mu.Lock()
		defer mu.Unlock()
		return secrets, nil
	}
	s := start(t, testConfig("t"), sink.NewWebhook(cfg))
	s.accept(to("t", event(1, "k", "body.one")))
	s.awaitAcked(1)
	mu.Lock()
	secrets.Keys = [][]byte{fresh, old}
	mu.Unlock()
	e := to("t", event(2, "k", ""))
	e.ID = []byte("order.2") // whose full stop must not look like a separator
	s.accept(e)
	s.drain()

	taken := v.taken()
	for i, want := range []struct {
		id   string
		keys [][]byte
	}{{"id-1", [][]byte{old}}, {"order%2E2", [][]byte{fresh, old}}} {
		h := taken[i].header
		if h.Get("Authorization") != "Bearer hunter2" || h.Get("Webhook-Id") != want.id {
			t.Errorf("request %d: headers %v", i, h)
		}
		at, err := strconv.ParseInt(h.Get("Webhook-Timestamp"), 10, 64)
		if err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
			t.Errorf("request %d: timestamp %q", i, h.Get("Webhook-Timestamp"))
		}
		signatures := strings.Split(h.Get("Webhook-Signature"), " ")
		if len(signatures) != len(want.keys) {
			t.Fatalf("request %d: signatures %q", i, signatures)
		}
		for j, key := range want.keys {
			mac := hmac.New(sha256.New, key)
			fmt.Fprintf(mac, "%s.%d.%s", want.id, at, taken[i].body)
			if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); signatures[j] != want {
				t.Errorf("request %d: signature %q, want %q", i, signatures[j], want)
			}
		}
	}
}

// TestWebhook_SecretsStay wants a receiver that echoes our secrets to put them into no reason, and secrets that cannot
// be read to be a state.
func TestWebhook_SecretsStay(t *testing.T) {
	v := newReceiver(t)
	v.answering(func(r received, w http.ResponseWriter) {
		http.Error(w, "bad token "+r.header.Get("X-Api-Key"), http.StatusForbidden)
	})
	var mu sync.Mutex // guards err
	var err error
	cfg := webhookConfig(v.URL)
	cfg.Secrets = func() (sink.WebhookSecrets, error) {
		mu.Lock()
		defer mu.Unlock()
		return sink.WebhookSecrets{Headers: http.Header{"X-Api-Key": {"hunter2"}}}, err
	}
	s := start(t, testConfig("t"), sink.NewWebhook(cfg))
	s.accept(to("t", event(1, "k", "1")))
	if said := s.board.await(t, state.BrokerDenied); strings.Contains(said.Reason, "hunter2") || !strings.Contains(said.Reason, "bad token [redacted]") {
		t.Errorf("the reason is %q", said.Reason)
	}
	v.answering(nil)
	s.awaitAcked(1)
	mu.Lock()
	err = errors.New("no such file")
	mu.Unlock()
	s.accept(to("t", event(2, "k", "2")))
	if said := s.board.await(t, state.BrokerDenied); !strings.Contains(said.Reason, "no such file") {
		t.Errorf("the reason is %q", said.Reason)
	}
}

// TestWebhook_Poison wants an event in the middle of a batch to be refused once, and none before it to be sent again.
func TestWebhook_Poison(t *testing.T) {
	v := newReceiver(t)
	var mu sync.Mutex // guards tries
	tries := map[string]int{}
	open := make(chan struct{})
	v.answering(func(r received, w http.ResponseWriter) {
		mu.Lock()
		tries[string(r.body)]++
		mu.Unlock()
		switch string(r.body) {
		case "0":
			<-open // what follows becomes one batch
		case "20":
			http.Error(w, "no", http.StatusBadRequest)
		}
	})
	cfg := testConfig("t")
	cfg.Recheck = time.Hour
	cfg.BatchBytes = sink.WebhookBatchBytes
	s := start(t, cfg, sink.NewWebhook(webhookConfig(v.URL)))
	s.accept(to("t", event(0, "k", "0")))
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return tries["0"] == 1 }, "the first request comes")
	for i := 1; i < 40; i++ {
		s.accept(to("t", event(i, "k", fmt.Sprint(i))))
	}
	close(open)
	said := s.board.await(t, state.Halted)
	if !strings.Contains(said.Reason, `"id-20"`) || !strings.Contains(said.Reason, "400 Bad Request") {
		t.Errorf("got %+v", said)
	}
	s.awaitAcked(20)
	mu.Lock()
	defer mu.Unlock()
	for i := range 40 {
		want := 1
		if i > 20 {
			want = 0
		}
		if got := tries[fmt.Sprint(i)]; got != want {
			t.Errorf("event %d was sent %d times, want %d", i, got, want)
		}
	}
}
