package deliver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/internal/standardwebhook"
)

// webhookBody is the rule's body, or the one that Standard Webhooks recommends.
func webhookBody(d *Delivery) ([]byte, error) {
	if body, ok := d.Fields["body"]; ok {
		if !json.Valid([]byte(body)) {
			return nil, errors.New("the body is not JSON: write values as {{ json .payload.name }}")
		}
		return []byte(body), nil
	}
	data := d.Fields["data"]
	if data == "" {
		data = "{}"
	}
	return json.Marshal(struct {
		Type      string          `json:"type"`
		Timestamp time.Time       `json:"timestamp"`
		EventKey  string          `json:"event_key"`
		Data      json.RawMessage `json:"data"`
	}{d.Event.Type, d.Event.OccurredAt.UTC(), d.Event.Key, json.RawMessage(data)})
}

// request makes a request with the secrets as they are now.
func (w *webhook) request(ctx context.Context, method string, u *url.URL, key string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the URL cannot be used")
	}
	keys, err := w.signingKeys()
	if err != nil {
		return nil, err
	}
	auth, err := w.authorization()
	if err != nil {
		return nil, err
	}
	h := req.Header
	h.Set("User-Agent", "relay")
	if method == http.MethodPost {
		h.Set("Content-Type", "application/json")
	}
	// In lower case http.Transport does not know it, else it would take it for leave to send a request again that was cut
	// short. Whether to do that is the ledger's.
	h["idempotency-key"] = []string{key}
	if auth != "" {
		h.Set("Authorization", auth)
	}
	if len(keys) > 0 {
		timestamp, signature := standardwebhook.Sign(key, body, keys, time.Now())
		h["webhook-id"], h["webhook-timestamp"], h["webhook-signature"] = []string{key}, []string{timestamp}, []string{signature}
	}
	return req, nil
}

func (w *webhook) signingKeys() ([][]byte, error) {
	if !w.keys.set() {
		return nil, nil
	}
	text, err := w.keys.read()
	if err != nil {
		return nil, fmt.Errorf("secret: %w", err)
	}
	var keys [][]byte
	for line := range strings.FieldsSeq(text) {
		key, err := standardwebhook.ParseKey(line)
		if err != nil {
			return nil, fmt.Errorf("secret: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (w *webhook) authorization() (string, error) {
	if !w.auth.set() {
		return "", nil
	}
	text, err := w.auth.read()
	if err == nil && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		err = errors.New("has characters that no header may have")
	}
	if err != nil {
		return "", fmt.Errorf("authorization: %w", err)
	}
	return text, nil
}

// do makes the request. sent: the receiver may have got it, whatever the error says.
func (w *webhook) do(req *http.Request) (res *http.Response, sent bool, err error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{
		// It is called again when nothing was written to a connection that had been closed.
		GetConn: func(string) { connected.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}
	t := w.secure
	if req.URL.Scheme == "http" {
		t = w.plain
	}
	res, err = t.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	return res, connected.Load(), err
}

// finish reads what there is to read, within limits, and has the connection used again.
func finish(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswer)
	res.Body.Close()
}

// reference makes what a provider calls a delivery fit to be stored.
func reference(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	return text[:min(len(text), maxReference)]
}
