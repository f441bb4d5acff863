package deliver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"regexp"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/outboxrelay/relay/ledger"
)

// mailSession is a connection to a mail server that has let us in. Its commands end when the attempt's context does.
type mailSession struct {
	*smtp.Client
	conn net.Conn
	stop func() bool // no longer ends it with the context
}

func (s *mailSession) close() {
	s.stop()
	_ = s.conn.Close() // whatever state it is in, nothing more is said on it
}

// connect dials and identifies itself. Nothing is told in the clear but the name in hello.
func (m *mailer) connect(ctx context.Context) (_ *mailSession, err error) {
	password := ""
	if m.password.set() {
		if password, err = m.password.read(); err != nil {
			return nil, fmt.Errorf("password: %w", err)
		}
	}
	raw, err := m.dialer.DialContext(ctx, "tcp", m.server)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &mailSession{conn: raw, stop: context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	conn := raw
	if m.security == implicitTLS {
		secured := tls.Client(raw, m.secure)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("secure the connection: %w", err)
		}
		conn = secured
	}
	if s.Client, err = smtp.NewClient(conn, m.host); err != nil {
		return nil, answered("greeting", err)
	}
	if err := s.Hello(m.hello); err != nil {
		return nil, answered("EHLO", err)
	}
	if m.security == startTLS {
		if ok, _ := s.Extension("STARTTLS"); !ok {
			return nil, errors.New("the server does not offer STARTTLS")
		}
		if err := s.StartTLS(m.secure); err != nil {
			return nil, answered("STARTTLS", err)
		}
	}
	if m.username != "" {
		if err := m.login(s.Client, password); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// login uses what nearly all servers offer. Over TLS nothing else is safer, unless it is bound to the connection.
func (m *mailer) login(c *smtp.Client, password string) error {
	_, offered := c.Extension("AUTH")
	mechanisms := strings.Fields(strings.ToUpper(offered))
	plain := m.security == plaintext // on this machine
	var auth smtp.Auth
	for _, name := range mechanisms {
		switch {
		case name == "PLAIN":
			auth = smtp.PlainAuth("", m.username, password, m.host, plain)
		case name == "LOGIN" && auth == nil:
			auth = smtp.LoginAuth(m.username, password, m.host, plain)
		}
	}
	if auth == nil {
		return errors.New("the server offers neither AUTH PLAIN nor AUTH LOGIN")
	}
	return answered("AUTH", c.Auth(auth))
}

// transact hands a letter over, and returns what the server calls it. Until the full stop behind the letter nothing
// has happened. From there on the server has it or not, and if its answer is lost, nobody knows.
func (s *mailSession) transact(l *letter) (string, error) {
	if err := s.Mail("<" + l.from + ">"); err != nil {
		return "", judgeMail("MAIL FROM", err)
	}
	if err := s.Rcpt("<" + l.to + ">"); err != nil {
		return "", judgeMail("RCPT TO", err)
	}
	w, err := s.Data()
	if err != nil {
		return "", judgeMail("DATA", err)
	}
	if _, err := w.Write(l.text); err != nil {
		return "", unsentMail(answered("DATA", err))
	}
	if err := w.Close(); err != nil {
		if _, refused := errors.AsType[*textproto.Error](err); refused {
			return "", judgeMail("end of DATA", err)
		}
		return "", ledger.Ambiguous(answered("end of DATA", err))
	}
	ref := ""
	if d, ok := w.(*smtp.DataCloser); ok {
		ref = reference(d.ServerResponse())
	}
	_ = s.conn.SetDeadline(time.Now().Add(quitTimeout)) // the mail is sent; what QUIT says changes nothing
	_ = s.Quit()
	return ref, nil
}

const quitTimeout = 2 * time.Second

// unsentMail says that nothing has happened, and that the mail is not to blame: another attempt may do better.
func unsentMail(err error) error { return ledger.RetryAfter(0, err) }

// judgeMail says what a failed command of a transaction means: with a code from 500 on the server will never take this
// mail; with one from 400 on, or without one, it has not taken it.
func judgeMail(command string, err error) error {
	said := answered(command, err)
	if answer, ok := errors.AsType[*textproto.Error](err); ok && answer.Code/100 == 5 {
		return ledger.Permanent(said)
	}
	return unsentMail(said)
}

// answered words what a command came to. Of an answer only the codes are told: its text often names the recipient. nil
// stays nil.
func answered(command string, err error) error {
	if err == nil {
		return nil
	}
	if answer, ok := errors.AsType[*textproto.Error](err); ok {
		return fmt.Errorf("%s: the server answers %d%s", command, answer.Code, statusCode(answer.Msg))
	}
	if _, ok := errors.AsType[textproto.ProtocolError](err); ok {
		return fmt.Errorf("%s: the server's answer is not SMTP", command)
	}
	return fmt.Errorf("%s: %w", command, err)
}

// statusCode is the enhanced status code (RFC 3463) that an answer begins with.
func statusCode(text string) string {
	if code := regexp.MustCompile(`^[245]\.\d{1,3}\.\d{1,3}\b`).FindString(text); code != "" {
		return " " + code
	}
	return ""
}
