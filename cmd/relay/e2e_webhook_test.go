package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestE2E_Webhook kills a relay that posts to a receiver: every event arrives, first copies in order, signed with the
// secrets that its files hold.
func TestE2E_Webhook(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards the fields below
	var got []string
	unsigned := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, req.Header.Get("Idempotency-Key"))
		if req.Header.Get("Webhook-Signature") == "" || req.Header.Get("Authorization") != "Bearer hunter2" {
			unsigned++
		}
	}))
	t.Cleanup(receiver.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"signing": "whsec_bm90IGEgc2VjcmV0LCBub3QgYSBzZWNyZXQ=\n", "headers": "Authorization: Bearer hunter2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := newRigWithoutTopic(t, sharedPostgres(t), []string{"127.0.0.1:1"})
	settings := []string{
		"RELAY_SINK_TYPE=webhook", "RELAY_WEBHOOK_URL=" + receiver.URL + "/{topic}",
		"RELAY_WEBHOOK_SIGNING_SECRET_FILE=" + filepath.Join(dir, "signing"), "RELAY_WEBHOOK_SECRET_HEADERS_FILE=" + filepath.Join(dir, "headers"),
	}
	p := r.startStreaming(settings...)
	ids := r.publish("order-1", 200)
	p.kill()
	ids = append(ids, r.publish("order-1", 100)...)
	p = r.startStreaming(settings...)
	r.drained(p, 20*time.Second)
	p.stop()

	mu.Lock()
	defer mu.Unlock()
	var first []string
	for _, id := range got {
		if !slices.Contains(first, id) {
			first = append(first, id)
		}
	}
	if !slices.Equal(first, ids) {
		t.Errorf("%d events arrived, not the %d that were committed in their order", len(first), len(ids))
	}
	if unsigned > 0 {
		t.Errorf("%d of %d requests lack a signature or a header", unsigned, len(got))
	}
}
