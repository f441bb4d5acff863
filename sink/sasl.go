package sink

import (
	"crypto/rand"
	"errors"
	"fmt"
)

// SASL is how connections to Kafka are authenticated.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. PLAIN sends the password as it is, so it belongs on an
	// encrypted connection.
	Mechanism string
	// Credentials is called for each connection, so that what was changed meanwhile counts from the next one on.
	// Its error must be safe to show.
	Credentials func() (user, password string, err error)
}

// Mechanisms lists the values of SASL.Mechanism.
func Mechanisms() []string { return []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} }

func (s *SASL) validate() error {
	if s.Credentials == nil {
		return errors.New("SASL without credentials")
	}
	switch s.Mechanism {
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
		return nil
	}
	return fmt.Errorf("SASL mechanism %q: want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
}

// exchange answers the broker's messages.
type exchange interface {
	next(message []byte) (done bool, response []byte, err error)
}

// begin reads the credentials and returns the first message.
func (s *SASL) begin() (exchange, []byte, error) {
	user, password, err := s.Credentials()
	if err != nil {
		return nil, nil, &credentialsError{err}
	}
	switch s.Mechanism {
	case "SCRAM-SHA-256":
		x, first := newScram(scram256, user, password, rand.Text())
		return x, first, nil
	case "SCRAM-SHA-512":
		x, first := newScram(scram512, user, password, rand.Text())
		return x, first, nil
	}
	return plainExchange{}, []byte("\x00" + user + "\x00" + password), nil
}

// plainExchange is over with its first message; a refusal is the broker's error.
type plainExchange struct{}

func (plainExchange) next([]byte) (done bool, response []byte, err error) { return true, nil, nil }

// credentialsError says that there are no credentials to show.
type credentialsError struct{ err error }

func (e *credentialsError) Error() string { return "read the Kafka credentials: " + e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }
