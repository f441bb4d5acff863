package deliver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"strings"
	"time"
)

// mailKind sends a mail through a server of the application's, over TLS. The mail's Message-ID is the same at every
// attempt, so what came twice can be told from two mails.
func mailKind(env lookupEnv) Kind {
	return Kind{
		Name:   "mail",
		Fields: []Field{{Name: "subject", Required: true}, {Name: "to"}, {Name: "text"}, {Name: "html", HTML: true}},
		Settings: []Setting{
			{Name: "server", Required: true}, {Name: "from", Required: true}, {Name: "tls"}, {Name: "ca_file"}, {Name: "username"},
			{Name: "password_file"}, {Name: "password_env"}, {Name: "hello"}, {Name: "timeout"}, {Name: "insecure"},
		},
		Check: func(_ Settings, given func(string) bool) error {
			if !given("text") && !given("html") {
				return errors.New("neither text nor html is set")
			}
			return nil
		},
		New: func(s Settings) (Channel, error) { return newMailer(s, env) },
	}
}

type mailer struct {
	server   string // host:port
	host     string
	security security
	secure   *tls.Config
	username string
	password secret
	hello    string // how it calls itself to the server
	from     *mail.Address
	domain   string // of Message-IDs
	timeout  time.Duration
	dialer   net.Dialer
}

// security is how a connection is kept from others. The words are those of the setting tls.
type security string

const (
	startTLS    security = "starttls" // from the first command on that tells anything
	implicitTLS security = "implicit" // from the first byte on
	plaintext   security = ""         // not at all, on this machine
)

const mailTimeout = 30 * time.Second

func newMailer(s Settings, env lookupEnv) (Channel, error) {
	m := &mailer{server: s["server"], security: startTLS, username: s["username"], hello: s["hello"]}
	var errs []error
	bad := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	var err error
	m.host, err = hostOf(m.server)
	bad("server", err)
	if s["tls"] != "" {
		m.security = security(s["tls"])
	}
	if m.security != startTLS && m.security != implicitTLS {
		bad("tls", fmt.Errorf("%q is not starttls or implicit", s["tls"]))
	}
	insecure, err := s.flag("insecure")
	errs = append(errs, err)
	switch {
	case insecure && !loopback(m.host):
		bad("insecure", errors.New("is for a server on this machine: everybody on the way could read the mails"))
	case insecure && s["tls"] != "":
		bad("insecure", errors.New("tls is set too"))
	case insecure:
		m.security = plaintext
	}
	m.from, m.domain, err = sender(s["from"])
	bad("from", err)
	if m.hello == "" {
		m.hello = m.domain
	}
	if strings.ContainsFunc(m.hello, func(r rune) bool { return r <= ' ' || r > '~' }) {
		bad("hello", errors.New("is not a host's name"))
	}
	if m.timeout, err = s.duration("timeout", mailTimeout); err != nil {
		errs = append(errs, err)
	}
	m.password, err = s.secret("password", env)
	errs = append(errs, err)
	if m.password.set() != (m.username != "") {
		bad("username", errors.New("and password_file, or password_env, go together"))
	}
	m.secure, err = s.tls()
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	m.secure.ServerName = m.host
	return m, nil
}

func hostOf(server string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil || host == "" || port == "" {
		return "", errors.New("is not host:port, like smtp.example:587")
	}
	return host, nil
}

// loopback reports whether a host is this machine, by what it is called.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// sender reads the setting from, and its domain.
func sender(text string) (*mail.Address, string, error) {
	a, err := address(text)
	if err != nil {
		return nil, "", err
	}
	domain := a.Address[strings.LastIndexByte(a.Address, '@')+1:]
	if strings.ContainsFunc(domain, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, "", errors.New("its domain is not ASCII: write it as xn--")
	}
	return a, domain, nil
}

// Send implements Channel. Each mail has a connection of its own: there is none to find broken, and a server that
// counts mails of one connection has nothing to count.
func (m *mailer) Send(ctx context.Context, d Delivery) (string, error) {
	letter, err := m.compose(&d, time.Now())
	if err != nil {
		return "", refusedMail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	c, err := m.connect(ctx)
	if err != nil {
		return "", unsentMail(err)
	}
	defer c.close()
	return c.transact(letter)
}
