package sink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// WebhookConfig holds the settings of a Webhook. Start from DefaultWebhookConfig.
type WebhookConfig struct {
	// URL is where events are posted to: https, or http. {topic} in its path stands for the event's topic. Required.
	URL string
	// AllowPlaintext accepts http to other machines, where everybody on the way can read and change events. Without
	// it http is for loopback addresses. Default false.
	AllowPlaintext bool
	// Concurrency is how many requests are under way at most, and the number of partitions that each topic's keys
	// are spread over. Default 8; 1 to 1024.
	Concurrency int
	// RequestTimeout bounds each request, its answer included. Default 30 s, at least 100 ms.
	RequestTimeout time.Duration
	// RetryAfterMost bounds how long a receiver may ask to be left alone. Default 5 min.
	RetryAfterMost time.Duration
	// Source is the attribute ce-source of events whose route does not make them CloudEvents: a URI reference.
	// Default "/relay".
	Source string
	// ContentType is that of values whose record has no header content-type. Empty: application/json where the value
	// is that, else application/octet-stream.
	ContentType string
	// Secrets returns what proves to the receiver who sends. It is called before each batch, so that what was
	// renewed is used at once. Nil: nothing does.
	Secrets func() (WebhookSecrets, error)
	// TLS is used for https; nil: the system's authorities and no certificate. Its MinVersion is raised to TLS 1.2.
	TLS *tls.Config
}

// WebhookSecrets are headers of every request, and keys to sign it with: as many signatures, so that the receiver can
// go from one key to the next.
type WebhookSecrets struct {
	Headers http.Header
	Keys    [][]byte
}

// WebhookBatchBytes is what Config.BatchBytes should be for a Webhook. A batch is acknowledged as a whole, so it is what
// a session that is killed may send again, for each partition.
const WebhookBatchBytes = 16 << 10

// DefaultWebhookConfig returns the settings that serve most; URL is left to fill in.
func DefaultWebhookConfig() WebhookConfig {
	return WebhookConfig{Concurrency: 8, RequestTimeout: 30 * time.Second, RetryAfterMost: 5 * time.Minute, Source: "/relay"}
}

// Validate returns every problem of the settings, joined, or nil.
func (c WebhookConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := c.validateURL(); err != nil {
		errs = append(errs, err)
	}
	if c.Concurrency < 1 || c.Concurrency > 1024 {
		bad("concurrency %d: want 1 to 1024", c.Concurrency)
	}
	if c.RequestTimeout < 100*time.Millisecond {
		bad("request timeout %v: want at least 100ms", c.RequestTimeout)
	}
	if c.RetryAfterMost <= 0 {
		bad("retry after at most %v: want more than 0", c.RetryAfterMost)
	}
	if c.Source == "" || hasControl([]byte(c.Source)) {
		bad("source %q: want a URI reference", c.Source)
	}
	if hasControl([]byte(c.ContentType)) {
		bad("content type %q: want one line", c.ContentType)
	}
	return errors.Join(errs...)
}

// Errors of WebhookConfig.Validate that have a way out of their own.
var (
	// ErrWebhookPlaintext is returned for http to another machine without AllowPlaintext.
	ErrWebhookPlaintext = errors.New("http to another machine is readable by everybody on the way")
	// ErrWebhookUserInfo is returned for a URL with a user name or a password.
	ErrWebhookUserInfo = errors.New("the URL has a user name or a password, and URLs are shown")
)

func (c WebhookConfig) validateURL() error {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil: // whose text would show all of it
		return errors.New("the URL cannot be read")
	case u.User != nil:
		return ErrWebhookUserInfo
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Opaque != "":
		return fmt.Errorf("URL %q: want http or https and a host", c.URL)
	case u.Fragment != "":
		return fmt.Errorf("URL %q: a fragment is not sent", c.URL)
	case strings.Contains(u.RawQuery, topicPlace):
		return fmt.Errorf("URL %q: %s belongs in the path", c.URL, topicPlace)
	case u.Scheme == "http" && !c.AllowPlaintext && !isLoopback(u.Hostname()):
		return ErrWebhookPlaintext
	}
	return nil
}

const topicPlace = "{topic}"

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Webhook is the Publisher that posts each event to a URL, as a CloudEvent 1.0 in binary mode of the HTTP protocol
// binding: attributes are headers, and the body is the value as it is. Keys are spread over partitions, and of one
// partition an event is sent when the one before it was taken.
//
// It delivers at least once: an answer that is lost, and the end of a session, lead to the same request again. Its
// Idempotency-Key, the event's ID, tells the receiver. Nothing keeps an earlier session's last requests, if they
// are still on their way, from arriving behind this one's first.
type Webhook struct {
	cfg     WebhookConfig
	url     url.URL
	http    *http.Transport
	sockets sockets
	slots   chan struct{} // one for each request under way
	quiet   atomic.Int64  // Unix nanoseconds until which the receiver wants to be left alone
}

// NewWebhook returns the publisher of one session. It opens nothing. cfg must be valid.
func NewWebhook(cfg WebhookConfig) *Webhook {
	w := &Webhook{cfg: cfg, slots: make(chan struct{}, cfg.Concurrency)}
	if u, err := url.Parse(cfg.URL); err == nil {
		w.url = *u
	}
	secure := &tls.Config{}
	if cfg.TLS != nil {
		secure = cfg.TLS.Clone()
	}
	secure.MinVersion = max(secure.MinVersion, tls.VersionTLS12)
	w.sockets.dialer = net.Dialer{Timeout: cfg.RequestTimeout / 2, KeepAlive: 15 * time.Second}
	w.http = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           w.sockets.dial,
		TLSClientConfig:       secure,
		TLSHandshakeTimeout:   cfg.RequestTimeout / 2,
		ResponseHeaderTimeout: cfg.RequestTimeout,
		MaxIdleConnsPerHost:   cfg.Concurrency,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: cfg.RequestTimeout / 2},
	}
	return w
}

// Open does nothing: there is no request that every receiver would take well.
func (w *Webhook) Open(context.Context) error { return nil }

// Partitions is the concurrency.
func (w *Webhook) Partitions(context.Context, string) (int, error) { return w.cfg.Concurrency, nil }

// Send posts the batch's events one after the other, from the first on that was not taken before.
func (w *Webhook) Send(ctx context.Context, b *Batch) error {
	if err := b.refused; err != nil && b.sent < b.Len() {
		// It was said of the larger batch that this one was split from.
		if b.Len() == 1 {
			b.refused = nil
		}
		return err
	}
	var secrets WebhookSecrets
	if w.cfg.Secrets != nil {
		var err error
		if secrets, err = w.cfg.Secrets(); err != nil {
			return &Fault{Kind: FaultDenied, Err: fmt.Errorf("read the secrets: %w", err),
				Hint: "the files must exist, be readable by the relay and private"}
		}
	}
	n := 0
	for r := range b.Records() {
		if n++; n <= b.sent {
			continue
		}
		if err := w.post(ctx, b.Topic, r, secrets); err != nil {
			if verdictOf(err, false).class == poison && b.Len() > 1 {
				b.refused = err
			}
			return err
		}
		b.sent++
	}
	return nil
}

// post makes one request, when its turn comes.
func (w *Webhook) post(ctx context.Context, topic string, r Record, secrets WebhookSecrets) error {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.slots }()
	if left := time.Until(time.Unix(0, w.quiet.Load())); left > 0 {
		return &Fault{Kind: FaultBusy, Err: fmt.Errorf("the receiver wants to be left alone for %v", left.Round(time.Second)), After: left}
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.RequestTimeout)
	defer cancel()
	body := newWebhookBody(r.Value)
	defer body.detach()
	res, err := w.http.RoundTrip(w.request(ctx, topic, r, body, secrets))
	if err != nil {
		return w.unanswered(err)
	}
	defer res.Body.Close()
	err = w.judge(res, secrets)
	if later := askedFor(err); later > 0 {
		w.quiet.Store(time.Now().Add(later).UnixNano())
	}
	return err
}

// Close cuts every connection, requests under way included.
func (w *Webhook) Close(ctx context.Context) error {
	w.http.CloseIdleConnections()
	return w.sockets.close(ctx)
}
