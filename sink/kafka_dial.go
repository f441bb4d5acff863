package sink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
)

// door makes a TCP connection one that requests can be made on: encrypted and authenticated as the settings say.
// kafka-go could do both; done here, what goes wrong is known for what it is, and nothing hangs.
type door struct {
	tls      *tls.Config // nil: in the clear
	sasl     *SASL       // nil: nobody asks
	clientID string
}

func newDoor(cfg KafkaConfig) door {
	d := door{sasl: cfg.SASL, clientID: cfg.ClientID}
	if cfg.TLS != nil {
		d.tls = cfg.TLS.Clone()
		d.tls.MinVersion = max(d.tls.MinVersion, tls.VersionTLS12)
	}
	return d
}

// pass returns the connection to use in c's place.
func (d *door) pass(ctx context.Context, c net.Conn, address string) (net.Conn, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return nil, err
		}
		defer c.SetDeadline(time.Time{})
	}
	// A handshake does not look at the context while it reads.
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if d.tls != nil {
		cfg := d.tls
		if cfg.ServerName == "" {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			cfg = cfg.Clone()
			cfg.ServerName = host
		}
		t := tls.Client(c, cfg)
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS handshake with %s: %w", address, err)
		}
		c = t
	}
	if d.sasl != nil {
		if err := d.authenticate(c); err != nil {
			return nil, fmt.Errorf("authenticate at %s: %w", address, err)
		}
	}
	return c, nil
}

// authenticate says who we are. A broker that says no says why; one that hangs up may mean no.
func (d *door) authenticate(c net.Conn) error {
	pc := protocol.NewConn(c, d.clientID)
	pc.SetVersions(map[protocol.ApiKey]int16{protocol.SaslHandshake: 1, protocol.SaslAuthenticate: 1})
	res, err := pc.RoundTrip(&saslhandshake.Request{Mechanism: d.sasl.Mechanism})
	if err != nil {
		return err
	}
	if code := kafka.Error(res.(*saslhandshake.Response).ErrorCode); code != 0 {
		return code
	}
	exchange, message, err := d.sasl.begin()
	if err != nil {
		return err
	}
	for done := false; !done; {
		res, err := pc.RoundTrip(&saslauthenticate.Request{AuthBytes: message})
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return &hangUpError{err}
		}
		if err != nil {
			return err
		}
		answer := res.(*saslauthenticate.Response)
		if code := kafka.Error(answer.ErrorCode); code != 0 {
			return code
		}
		if done, message, err = exchange.next(answer.AuthBytes); err != nil {
			return &mistrustError{err}
		}
	}
	return nil
}

// hangUpError says that the broker ended the connection instead of answering our credentials.
type hangUpError struct{ err error }

func (e *hangUpError) Error() string { return "the broker hung up when it had seen the credentials" }
func (e *hangUpError) Unwrap() error { return e.err }

// mistrustError says that the broker did not prove that it knows the user.
type mistrustError struct{ err error }

func (e *mistrustError) Error() string { return e.err.Error() }
func (e *mistrustError) Unwrap() error { return e.err }
