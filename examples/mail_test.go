package examples_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// mailAPI is a provider of mail that behaves as the address says: bounce is refused for good, silence is taken and never
// answered, busy is refused the first time, everybody else's mail is taken.
type mailAPI struct {
	url string

	// mu guards got.
	mu  sync.Mutex
	got map[string][]string // idempotency keys by address, in order
}

func newMailAPI(t *testing.T) *mailAPI {
	t.Helper()
	m := &mailAPI{got: map[string][]string{}}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	m.url = server.URL + "/messages"
	return m
}

func (m *mailAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var mail struct{ To, Subject string }
	if json.NewDecoder(r.Body).Decode(&mail) != nil || mail.Subject != "Größer & <b>besser</b>" || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	to, _, _ := strings.Cut(mail.To, "@")
	m.mu.Lock()
	m.got[to] = append(m.got[to], r.Header.Get("Idempotency-Key"))
	n := len(m.got[to])
	m.mu.Unlock()
	switch {
	case to == "bounce":
		w.WriteHeader(http.StatusUnprocessableEntity)
	case to == "silence":
		panic(http.ErrAbortHandler) // the connection ends without an answer
	case to == "busy" && n == 1:
		w.WriteHeader(http.StatusTooManyRequests)
	default:
		w.WriteHeader(http.StatusCreated)
	}
	_ = json.NewEncoder(w).Encode(map[string]string{"id": "msg-" + to})
}

func (m *mailAPI) requests() map[string][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.got)
}
