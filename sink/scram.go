package sink

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"hash"
	"strconv"
	"strings"
)

// scramHash is the hash of a SCRAM mechanism.
type scramHash func() hash.Hash

func scram256() hash.Hash { return sha256.New() }
func scram512() hash.Hash { return sha512.New() }

// scram is the client's side of RFC 5802, without channel binding, which Kafka does not offer. It checks the
// server's signature, so a server that does not know the password is found out.
type scram struct {
	hash     scramHash
	password string

	nonce     string // ours
	first     string // client-first-message-bare
	signature []byte // what the server must prove with; nil: the challenge is still to come
}

const (
	scramLeast = 4096 // iterations; fewer are an attack
	scramMost  = 1 << 20
)

var errScram = errors.New("the broker's SCRAM message is not as it should be")

// newScram returns an exchange and its first message.
func newScram(h scramHash, user, password, nonce string) (*scram, []byte) {
	escaped := strings.NewReplacer("=", "=3D", ",", "=2C").Replace(user)
	s := &scram{hash: h, password: password, nonce: nonce, first: "n=" + escaped + ",r=" + nonce}
	return s, []byte("n,," + s.first)
}

// next answers the server's messages: the challenge, then its signature.
func (s *scram) next(message []byte) (done bool, response []byte, err error) {
	if s.signature != nil {
		return true, nil, s.verify(string(message))
	}
	response, err = s.answer(string(message))
	return false, response, err
}

func (s *scram) answer(challenge string) ([]byte, error) {
	nonce, salt, iterations := "", []byte(nil), 0
	for i, part := range strings.SplitN(challenge, ",", 4) {
		if len(part) < 3 || part[1] != '=' {
			return nil, errScram
		}
		var err error
		switch value := part[2:]; {
		case i == 0 && part[0] == 'r':
			nonce = value
		case i == 1 && part[0] == 's':
			salt, err = base64.StdEncoding.DecodeString(value)
		case i == 2 && part[0] == 'i':
			iterations, err = strconv.Atoi(value)
		case i < 3:
			return nil, errScram
		}
		if err != nil {
			return nil, errScram
		}
	}
	if !strings.HasPrefix(nonce, s.nonce) || len(nonce) == len(s.nonce) || len(salt) == 0 || iterations < scramLeast || iterations > scramMost {
		return nil, errScram
	}
	salted, err := pbkdf2.Key(s.hash, s.password, salt, iterations, s.hash().Size())
	if err != nil {
		return nil, err
	}
	final := "c=biws,r=" + nonce
	signed := s.first + "," + challenge + "," + final
	client := s.mac(salted, "Client Key")
	stored := s.hash()
	stored.Write(client)
	proof := s.mac(stored.Sum(nil), signed)
	subtle.XORBytes(proof, proof, client)
	s.signature = s.mac(s.mac(salted, "Server Key"), signed)
	return []byte(final + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

func (s *scram) verify(message string) error {
	value, ok := strings.CutPrefix(message, "v=")
	if !ok {
		return errScram
	}
	value, _, _ = strings.Cut(value, ",")
	signature, err := base64.StdEncoding.DecodeString(value)
	if err != nil || !hmac.Equal(signature, s.signature) {
		return errors.New("the broker does not know the password of the user that it accepts")
	}
	return nil
}

func (s *scram) mac(key []byte, text string) []byte {
	m := hmac.New(s.hash, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}
