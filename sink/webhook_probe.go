package sink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// WebhookProbe is what can be seen of a receiver without a request.
type WebhookProbe struct {
	Host      string
	Addresses []string  // that Host has
	Address   string    // that took the connection
	Proxy     bool      // Address is a proxy's, and nothing behind it was looked at
	TLS       string    // version; empty: in the clear
	Expires   time.Time // when the first of the certificates that were shown ends
}

// probeListen is how long a receiver has to refuse our certificate, which comes only after the handshake of TLS 1.3.
const probeListen = 300 * time.Millisecond

// ProbeWebhook resolves the receiver's name, connects, and shakes hands, as a Webhook does before its first request. It
// sends no request. An error that means something is a *Fault. cfg must be valid.
func ProbeWebhook(ctx context.Context, cfg WebhookConfig) (WebhookProbe, error) {
	w := NewWebhook(cfg)
	ctx, cancel := context.WithTimeout(ctx, cfg.RequestTimeout)
	defer cancel()
	lost := func(what string, err error) error {
		return &Fault{Kind: FaultLost, Err: fmt.Errorf("%s: %w", what, err), Hint: "look at webhook.url, at the receiver and at the network between"}
	}
	to := w.url
	to.Path = strings.ReplaceAll(to.Path, topicPlace, "topic")
	out := WebhookProbe{Host: to.Hostname()}
	proxy, err := w.http.Proxy(&http.Request{URL: &to, Header: http.Header{}})
	if err != nil {
		return out, &Fault{Kind: FaultLost, Err: errors.New("the proxy's URL cannot be read"), Hint: "look at HTTPS_PROXY, HTTP_PROXY and NO_PROXY"}
	}
	if proxy != nil {
		to, out.Proxy = *proxy, true
	}
	if out.Addresses, err = net.DefaultResolver.LookupHost(ctx, to.Hostname()); err != nil {
		return out, lost(fmt.Sprintf("resolve %q", to.Hostname()), err)
	}
	out.Address = net.JoinHostPort(to.Hostname(), portOf(&to))
	conn, err := w.sockets.dialer.DialContext(ctx, "tcp", out.Address)
	if err != nil {
		return out, lost("connect to "+out.Address, err)
	}
	defer conn.Close()
	if to.Scheme != "https" || out.Proxy {
		return out, nil
	}
	secure := w.http.TLSClientConfig.Clone()
	if secure.ServerName == "" {
		secure.ServerName = to.Hostname()
	}
	secure.NextProtos = []string{"h2", "http/1.1"}
	c := tls.Client(conn, secure)
	if err := c.HandshakeContext(ctx); err != nil {
		return out, w.unanswered(fmt.Errorf("TLS handshake with %s: %w", out.Address, err))
	}
	state := c.ConnectionState()
	out.TLS = tls.VersionName(state.Version)
	for i, cert := range state.PeerCertificates {
		if i == 0 || cert.NotAfter.Before(out.Expires) {
			out.Expires = cert.NotAfter
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(probeListen)); err != nil {
		return out, lost("connect to "+out.Address, err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil && refusedConnection(err) {
		return out, w.unanswered(fmt.Errorf("TLS handshake with %s: %w", out.Address, err))
	}
	return out, nil
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	case strings.HasPrefix(u.Scheme, "socks5"):
		return "1080"
	}
	return "80"
}
