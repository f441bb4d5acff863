package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger/inbox"
)

// DeliverHTTPConfig is about the listener from which browsers get notifications. It is apart from that for health and
// metrics, because others reach it.
type DeliverHTTPConfig struct {
	// SecretFile names a file with the keys that tokens are signed with; without it nothing is served. It is read for
	// each request, so that a replaced secret is found without a restart.
	SecretFile string
	// Listen is the address. Default "127.0.0.1:7072".
	Listen string
	// AllowRemote accepts a Listen address that other machines reach: tokens and notifications travel there as they
	// are, so a proxy in front that ends TLS is the better way. Default false.
	AllowRemote bool
	// Origins are the sites whose pages may ask, like https://app.example. Default none but the server's own.
	Origins []string
}

func (c *DeliverHTTPConfig) validate(add addMistake) {
	listen := AdminConfig{Listen: c.Listen, AllowRemote: c.AllowRemote}
	listen.validate(func(_, problem, hint string) {
		add("deliver.http.listen", problem, strings.NewReplacer("admin.", "deliver.http.", "7070", "7072").Replace(hint))
	})
	for _, o := range c.Origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || o != u.Scheme+"://"+strings.ToLower(u.Host) {
			add("deliver.http.origins", fmt.Sprintf("%s is not an origin", quoted(o)), "write scheme and host in lower case, and the port if it is not the scheme's, like https://app.example")
		}
	}
	if c.SecretFile == "" {
		return
	}
	if c.Listen == "" {
		add("deliver.http.listen", "is empty, and deliver.http.secret_file asks for a listener", "set an address, or leave the secret out")
	}
	if _, err := c.keys(); err != nil {
		add("deliver.http.secret_file", errText(err), "it holds one or two lines of a key id, a space and a secret of at least 32 characters, and only its owner may read it; (umask 077; echo \"k1 $(openssl rand -hex 32)\" > file) makes one")
	}
}

// keys reads the keys anew.
func (c *DeliverHTTPConfig) keys() ([]inbox.Key, error) {
	text, err := readPrivateFile(c.SecretFile)
	if err != nil {
		return nil, err
	}
	keys, err := inbox.ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("read secret file %q: %w", c.SecretFile, err)
	}
	return keys, nil
}

// browserListener is what serves browsers, where it is asked for.
type browserListener struct {
	*inbox.Inbox
	ln net.Listener
}

// listenBrowsers opens the listener; nil: none is asked for.
func (c *Config) listenBrowsers(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, t *throttle) (*browserListener, error) {
	h := &c.Deliver.HTTP
	if h.SecretFile == "" {
		return nil, nil
	}
	cfg := inbox.DefaultConfig()
	cfg.Keys, cfg.Origins = h.keys, h.Origins
	cfg.Notice = func(err error) {
		what, _, _ := strings.Cut(errText(err), ":")
		if held, ok := t.allow("inbox " + what); ok {
			log.Warn("notifications held up", logErr, err, logCount, held+1)
		}
	}
	b, err := inbox.New(cfg, pool)
	if err != nil {
		return nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", h.Listen)
	if err != nil {
		return nil, &hintError{fmt.Errorf("listen for browsers: %w", err), "another one may run here: choose another deliver.http.listen"}
	}
	log.Info("serving notifications", logReason, ln.Addr().String())
	return &browserListener{b, ln}, nil
}
