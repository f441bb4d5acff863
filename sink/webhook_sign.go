package sink

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/standardwebhook"
)

// sign adds the headers of Standard Webhooks: webhook-id, webhook-timestamp and webhook-signature, one signature for
// each key. They cover the ID, the time and the body, and no other header.
func sign(h http.Header, id, body []byte, keys [][]byte, now time.Time) {
	if len(keys) == 0 {
		return
	}
	// A full stop separates what is signed, so none may stand in the ID.
	name := strings.ReplaceAll(encodeHeader(id), ".", "%2E")
	at, signature := standardwebhook.Sign(name, body, keys, now)
	h["Webhook-Id"] = []string{name}
	h["Webhook-Timestamp"] = []string{at}
	h["Webhook-Signature"] = []string{signature}
}

// ParseWebhookKey reads a signing secret as Standard Webhooks writes it: whsec_ and 24 to 64 bytes in base64. Its errors
// do not show it.
func ParseWebhookKey(text string) ([]byte, error) { return standardwebhook.ParseKey(text) }

// ParseWebhookHeader reads a header of one's own, Name: value. Its errors do not show the value.
func ParseWebhookHeader(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	name, value = http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
	switch {
	case !ok || name == "" || value == "":
		return "", "", errors.New("a header is written Name: value")
	case encodeName([]byte(name)) != name:
		return "", "", errors.New("a header's name has letters, digits and -")
	case encodeLine([]byte(value)) != value:
		return "", "", fmt.Errorf("the value of header %s has characters that no header may have", name)
	case ownHeader(name):
		return "", "", fmt.Errorf("header %s is the relay's own to set", name)
	}
	return name, value, nil
}

// ownHeader reports whether a header is one that requests have anyway.
func ownHeader(name string) bool {
	switch name {
	case "Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer",
		"Upgrade", "Expect", "Idempotency-Key", "Traceparent", "Tracestate", "Baggage":
		return true
	}
	return strings.HasPrefix(name, "Ce-") || strings.HasPrefix(name, "Webhook-") || strings.HasPrefix(name, "Relay-Header-")
}
