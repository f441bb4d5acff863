package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// request makes the request for a record. Its attributes are those of a CloudEvent:
//
//	ce-id                  the event's ID
//	ce-source, ce-type     from the route's CloudEvents, else WebhookConfig.Source and the event type
//	ce-time, ce-subject    where there are such
//	ce-partitionkey        the record's key
//	ce-topic               the topic
//	ce-eventkey, ce-eventtype, ce-aggregatetype, ce-tenant, ce-relayposition, ce-relayreplay
//	                       the headers of the record of these names
//	ce-tombstone           true: the value is null, which is another thing than an empty one
//
// Of the row's own headers traceparent, tracestate, baggage and content-type pass under their names, and every other
// one as relay-header-<name>, so that a row cannot set a header that means something to the receiver's server.
func (w *Webhook) request(ctx context.Context, topic string, r Record, body *webhookBody, secrets WebhookSecrets) *http.Request {
	u := w.url
	if strings.Contains(u.Path, topicPlace) {
		u.Path, u.RawPath = strings.ReplaceAll(u.Path, topicPlace, topic), "" // a topic's name needs no escapes
	}
	h := make(http.Header, 16)
	for name, values := range secrets.Headers {
		h[name] = values
	}
	c := requestCoder{header: h}
	id := c.attributes(r, w.cfg.Source, topic)
	if r.Value == nil {
		h["Ce-Tombstone"] = []string{"true"}
	} else if h["Content-Type"] == nil {
		h["Content-Type"] = []string{w.contentType(r.Value)}
	}
	h["Idempotency-Key"] = []string{encodeHeader(id)}
	h["User-Agent"] = []string{"relay"}
	sign(h, id, r.Value, secrets.Keys, time.Now())
	req := &http.Request{
		Method: http.MethodPost, URL: &u, Host: u.Host, Header: h, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: body, ContentLength: int64(len(r.Value)),
	}
	if len(r.Value) == 0 {
		req.Body = http.NoBody // with a length of 0, which a body would leave open
	}
	return req.WithContext(ctx)
}

func (w *Webhook) contentType(value []byte) string {
	switch {
	case w.cfg.ContentType != "":
		return w.cfg.ContentType
	case json.Valid(value):
		return "application/json"
	}
	return "application/octet-stream"
}

// requestCoder turns a record's headers into those of a request.
type requestCoder struct {
	header http.Header
}

func (c *requestCoder) set(name string, value []byte) { c.header[name] = []string{encodeHeader(value)} }

// attributes sets all headers that come from the record and returns the event's ID.
func (c *requestCoder) attributes(r Record, source, topic string) (id []byte) {
	made := false // by the route
	var eventType, occurredAt []byte
	for name, value := range r.Headers() {
		switch string(name) {
		case "ce_specversion":
			made = true
		case "id":
			id = value
		case "event_type":
			eventType = value
		case "occurred_at":
			occurredAt = value
		}
	}
	if !made {
		c.set("Ce-Specversion", []byte("1.0"))
		c.set("Ce-Id", id)
		c.set("Ce-Source", []byte(source))
		if len(eventType) == 0 {
			eventType = []byte(topic)
		}
		c.set("Ce-Type", eventType)
		if n := len(occurredAt); n > 0 && occurredAt[n-1] == 'Z' { // RFC 3339; infinity is not
			c.set("Ce-Time", occurredAt)
		}
	}
	c.set("Ce-Partitionkey", r.Key)
	c.set("Ce-Topic", []byte(topic))
	for name, value := range r.Headers() {
		switch string(name) {
		case "id", "occurred_at":
		case "event_type":
			if made {
				c.set("Ce-Eventtype", value)
			}
		case "event_key":
			c.set("Ce-Eventkey", value)
		case "aggregate_type":
			c.set("Ce-Aggregatetype", value)
		case "tenant":
			c.set("Ce-Tenant", value)
		case "relay_position":
			c.set("Ce-Relayposition", value)
		case "relay_replay":
			c.set("Ce-Relayreplay", value)
		default:
			c.own(name, value, made)
		}
	}
	return id
}

// own sets a header that the row or its route has made.
func (c *requestCoder) own(name, value []byte, made bool) {
	switch text := string(name); {
	case text == "traceparent", text == "tracestate", text == "baggage", text == "content-type":
		c.header[http.CanonicalHeaderKey(text)] = []string{encodeLine(value)}
	case made && bytes.HasPrefix(name, []byte("ce_")):
		c.set(http.CanonicalHeaderKey("ce-"+text[len("ce_"):]), value)
	default:
		text = http.CanonicalHeaderKey("relay-header-" + encodeName(name))
		c.header[text] = append(c.header[text], encodeHeader(value))
	}
}

const hexDigits = "0123456789ABCDEF"

// encode replaces the bytes that keep refuses by their value, as %20.
func encode(b []byte, keep func(c byte) bool) string {
	n := 0
	for _, c := range b {
		if !keep(c) {
			n++
		}
	}
	if n == 0 {
		return string(b)
	}
	out := make([]byte, 0, len(b)+2*n)
	for _, c := range b {
		if keep(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(out)
}

// encodeHeader encodes a value as the HTTP binding of CloudEvents asks for.
func encodeHeader(b []byte) string {
	return encode(b, func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' })
}

// encodeLine leaves a value of a header with rules of its own alone, but for what no header may hold.
func encodeLine(b []byte) string {
	return encode(b, func(c byte) bool { return c >= ' ' && c < 0x7f })
}

// encodeName leaves in a name what may stand in one.
func encodeName(b []byte) string {
	return encode(b, func(c byte) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("!#$&'*+-.^_`|~", c) >= 0
	})
}

// webhookBody reads a value that belongs to a batch. A receiver may answer before it has read all of it, and then the
// connection goes on reading while the batch is recycled: so it is let go of when the answer has come.
type webhookBody struct {
	mu   sync.Mutex // guards the field below
	left *bytes.Reader
}

var errDetached = errors.New("the request is over")

func newWebhookBody(value []byte) *webhookBody { return &webhookBody{left: bytes.NewReader(value)} }

func (b *webhookBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == nil {
		return 0, errDetached
	}
	return b.left.Read(p)
}

func (b *webhookBody) Close() error { return nil }

func (b *webhookBody) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = nil
}

var _ io.ReadCloser = (*webhookBody)(nil)
