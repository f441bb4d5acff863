package sink_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboxrelay/relay/sink"
)

// TestProbeWebhook sees what stands between the relay and a receiver, and sends it nothing.
func TestProbeWebhook(t *testing.T) {
	a := newAuthority(t)
	var requests atomic.Int32
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	serve := func(c *tls.Config) string {
		v := httptest.NewUnstartedServer(handler)
		v.Config.ErrorLog = log.New(io.Discard, "", 0)
		if v.TLS = c; c != nil {
			v.StartTLS()
		} else {
			v.Start()
		}
		t.Cleanup(v.Close)
		return v.URL
	}
	plain := serve(nil)
	secure := serve(&tls.Config{Certificates: []tls.Certificate{a.server(loopback())}})
	elsewhere := serve(&tls.Config{Certificates: []tls.Certificate{a.server(&x509.Certificate{DNSNames: []string{"other.example"}})}})
	mutual := serve(&tls.Config{Certificates: []tls.Certificate{a.server(loopback())}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + ln.Addr().String()
	_ = ln.Close()
	trusting := &tls.Config{RootCAs: a.pool}
	for _, tt := range []struct {
		name, url string
		tls       *tls.Config
		says      string // "": it is well
		hint      string
	}{
		{"plain", plain, nil, "", ""},
		{"TLS", secure + "/{topic}", trusting, "", ""},
		{"certificate asked for and shown", mutual, &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{a.client()}}, "", ""},
		{"certificate asked for", mutual, trusting, "TLS handshake", "webhook.tls"},
		{"authority unknown", secure, nil, "TLS handshake", "webhook.tls.ca_file"},
		{"name of another", elsewhere, trusting, "TLS handshake", "certificate"},
		{"no TLS there", strings.Replace(plain, "http:", "https:", 1), trusting, "TLS handshake", ""},
		{"nobody listens", closed, nil, "connect to", "network"},
		{"no such name", "https://nowhere.invalid/", nil, "resolve", "webhook.url"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := webhookConfig(tt.url)
			cfg.TLS = tt.tls
			r, err := sink.ProbeWebhook(t.Context(), cfg)
			if tt.says == "" {
				if err != nil || len(r.Addresses) != 1 || (r.TLS != "") != strings.HasPrefix(tt.url, "https") || (r.TLS != "") == r.Expires.IsZero() {
					t.Errorf("got %+v, %v", r, err)
				}
				return
			}
			var fault *sink.Fault
			if !errors.As(err, &fault) || !strings.Contains(err.Error(), tt.says) || !strings.Contains(fault.Hint, tt.hint) {
				t.Errorf("got %v, %+v", err, fault)
			}
		})
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("the receivers got %d requests", n)
	}
}
