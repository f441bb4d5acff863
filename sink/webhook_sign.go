package sink

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// sign adds the headers of Standard Webhooks: webhook-id, webhook-timestamp and webhook-signature, one signature for
// each key. They cover the ID, the time and the body, and no other header.
func sign(h http.Header, id, body []byte, keys [][]byte, now time.Time) {
	if len(keys) == 0 {
		return
	}
	// A full stop separates what is signed, so none may stand in the ID.
	name := strings.ReplaceAll(encodeHeader(id), ".", "%2E")
	at := strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(name + "." + at + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	h["Webhook-Id"] = []string{name}
	h["Webhook-Timestamp"] = []string{at}
	h["Webhook-Signature"] = []string{strings.Join(signatures, " ")}
}

// ParseWebhookKey reads a signing secret as Standard Webhooks writes it: whsec_ and 24 to 64 bytes in base64. Its errors
// do not show it.
func ParseWebhookKey(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	if !ok {
		return nil, errors.New("a signing secret begins with whsec_")
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errors.New("a signing secret is in base64 behind whsec_")
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, fmt.Errorf("a signing secret has 24 to 64 bytes, not %d", len(key))
	}
	return key, nil
}

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
