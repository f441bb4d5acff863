package deliver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/ledger"
)

// webhookKind posts JSON to a URL that the settings or the recipient's rule name. The receiver is told the same key at
// every attempt, and by a signature who sends.
func webhookKind(env lookupEnv) Kind {
	return Kind{
		Name:   "webhook",
		Fields: []Field{{Name: "url"}, {Name: "body"}, {Name: "data", Object: true}},
		Settings: []Setting{
			{Name: "url"}, {Name: "probe_url"}, {Name: "secret_file"}, {Name: "secret_env"}, {Name: "authorization_file"}, {Name: "authorization_env"},
			{Name: "ca_file"}, {Name: "timeout"}, {Name: "per_host"}, {Name: "allow_private"}, {Name: "insecure"},
		},
		Check: func(s Settings, given func(string) bool) error {
			switch {
			case s["url"] == "" && !given("url"):
				return errors.New("url is not set, here or at the channel")
			case given("url") && (s["authorization_file"] != "" || s["authorization_env"] != ""):
				return errors.New("the channel's authorization goes to the channel's own url, and not where a rule says: leave url out here")
			case given("body") && given("data"):
				return errors.New("body and data are both set: data is part of the body that is made without one")
			}
			return nil
		},
		New: func(s Settings) (Channel, error) { return newWebhook(s, env) },
	}
}

type webhook struct {
	url      string // where a rule names none
	insecure bool
	timeout  time.Duration
	keys     secret // one or more, one a line
	auth     secret // the header Authorization
	secure   *http.Transport
	plain    *http.Transport
}

const (
	webhookTimeout = 15 * time.Second
	// webhookIdle is how long a connection waits for the next request: less than receivers commonly wait. A request that meets a
	// connection while it is closed is uncertain.
	webhookIdle  = 4 * time.Second
	maxAnswer    = 64 << 10 // bytes of an answer's body that are read, so that its connection can be used again
	maxReference = 200
)

func newWebhook(s Settings, env lookupEnv) (Channel, error) {
	w := &webhook{url: s["url"]}
	var errs []error
	var err error
	w.insecure, err = s.flag("insecure")
	errs = append(errs, err)
	private, err := s.flag("allow_private")
	errs = append(errs, err)
	for _, name := range []string{"url", "probe_url"} {
		if s[name] != "" {
			if _, err := w.parse(s[name]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	if p := s["probe_url"]; p != "" && !strings.Contains(p, keyPlace) {
		errs = append(errs, fmt.Errorf("probe_url: has no %s, which stands for the key that is asked about", keyPlace))
	}
	w.timeout, err = s.duration("timeout", webhookTimeout)
	errs = append(errs, err)
	perHost := 4
	if s["per_host"] != "" {
		if perHost, err = strconv.Atoi(s["per_host"]); err != nil || perHost < 1 || perHost > 1000 {
			errs = append(errs, fmt.Errorf("per_host: %q is not a number from 1 to 1000", s["per_host"]))
		}
	}
	if w.keys, err = s.secret("secret", env); err == nil {
		_, err = w.signingKeys()
	}
	errs = append(errs, err)
	if w.auth, err = s.secret("authorization", env); err == nil {
		_, err = w.authorization()
	}
	errs = append(errs, err)
	secure, err := s.tls()
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	far := reachPublic
	if private {
		far = reachPrivate
	}
	w.secure, w.plain = w.transport(far, perHost), w.transport(reachLoopback, perHost)
	w.secure.TLSClientConfig = secure
	if s["probe_url"] != "" {
		return &webhookProber{w, s["probe_url"]}, nil
	}
	return w, nil
}

// transport goes through no proxy, which would be what is dialled, and speaks HTTP/1.1, where a connection is a request:
// that bounds the requests to a host.
func (w *webhook) transport(far reach, perHost int) *http.Transport {
	dialer := &net.Dialer{Timeout: w.timeout, Control: far.control}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: w.timeout, MaxConnsPerHost: perHost, MaxIdleConnsPerHost: perHost,
		IdleConnTimeout: webhookIdle, DisableCompression: true, MaxResponseHeaderBytes: maxAnswer, Protocols: protocols,
	}
}

// parse reads a URL. Its errors do not show it: it may be a secret of the recipient's.
func (w *webhook) parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "" || u.Fragment != "":
		return nil, errors.New("the URL is not one of a host, without a fragment")
	case u.User != nil:
		return nil, errors.New("the URL has a user name or a password: use authorization_file")
	case u.Scheme == "https":
		return u, nil
	case u.Scheme != "http":
		return nil, errors.New("the URL is not https")
	case !w.insecure || !loopback(u.Hostname()):
		return nil, errors.New("the URL is not https, and http is for this machine alone, where insecure is true")
	}
	return u, nil
}

// Send implements Channel.
func (w *webhook) Send(ctx context.Context, d Delivery) (string, error) {
	text := strings.TrimSpace(d.Fields["url"])
	if text == "" {
		text = w.url
	}
	u, err := w.parse(text)
	if err != nil {
		return "", ledger.Permanent(err)
	}
	body, err := webhookBody(&d)
	if err != nil {
		return "", ledger.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	req, err := w.request(ctx, http.MethodPost, u, d.ProviderKey, body)
	if err != nil {
		return "", ledger.RetryAfter(0, err)
	}
	res, sent, err := w.do(req)
	switch {
	case errors.Is(err, errAddress):
		return "", ledger.Permanent(errAddress)
	case err != nil && sent:
		return "", ledger.Ambiguous(fmt.Errorf("no answer: %w", err))
	case err != nil:
		return "", ledger.RetryAfter(0, fmt.Errorf("connect: %w", err))
	}
	finish(res)
	return reference(res.Header.Get("X-Request-Id")), judge(res.StatusCode, res.Header.Get("Retry-After"), time.Now())
}
