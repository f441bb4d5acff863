package inbox

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Key signs tokens. An application that signs them has the same.
type Key struct {
	ID     string
	Secret []byte
}

// Limits of keys and tokens.
const (
	minSecret   = 32
	maxToken    = 2048
	maxLifetime = 24 * time.Hour
)

// ParseKeys reads keys, one a line: an id, a space, a secret of at least 32 characters. There are one or two: the first
// signs, both are taken, so a secret is replaced by putting the new one above the old one and dropping that once its
// tokens have expired. Errors quote nothing.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	for i, line := range strings.Split(strings.TrimRight(text, "\r\n"), "\n") {
		id, secret, found := strings.Cut(strings.TrimSpace(line), " ")
		secret = strings.TrimSpace(secret)
		switch {
		case !found || !regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`).MatchString(id):
			return nil, fmt.Errorf("line %d is not a key id of letters, digits, . _ -, a space and a secret", i+1)
		case len(secret) < minSecret:
			return nil, fmt.Errorf("line %d: the secret is shorter than %d characters", i+1, minSecret)
		case len(keys) == 1 && keys[0].ID == id:
			return nil, errors.New("both lines have one key id")
		case len(keys) == 2:
			return nil, errors.New("more than two keys")
		}
		keys = append(keys, Key{ID: id, Secret: []byte(secret)})
	}
	return keys, nil
}

// Identity is for whom a token was signed, and until when.
type Identity struct {
	Tenant    string
	Recipient string // such as user:42
	Expires   time.Time
}

// claims is the middle part of a token.
type claims struct {
	KeyID     string `json:"kid"`
	Tenant    string `json:"tenant,omitempty"`
	Recipient string `json:"recipient"`
	Expires   int64  `json:"exp"` // seconds since 1970
}

const tokenVersion = "v1."

// Sign returns a token: v1.<claims>.<HMAC-SHA256 of all before the last dot>, the parts in base64url without padding.
func Sign(k Key, who Identity) (string, error) {
	body, err := json.Marshal(claims{k.ID, who.Tenant, who.Recipient, who.Expires.Unix()})
	if err != nil {
		return "", fmt.Errorf("encode token: %w", err)
	}
	signed := tokenVersion + base64.RawURLEncoding.EncodeToString(body)
	return signed + "." + base64.RawURLEncoding.EncodeToString(k.mac(signed)), nil
}

func (k Key) mac(text string) []byte {
	h := hmac.New(sha256.New, k.Secret)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// The refusals of tokens. Nothing about a token is told before its signature is known to be right.
var (
	errNoToken      = &refusal{401, "token_missing", "send a token in the header Authorization: Bearer, in the query as token, or in the cookie " + cookieName}
	errTokenInvalid = &refusal{401, "token_invalid", "the token is not one that this server's keys have signed"}
	errTokenExpired = &refusal{401, "token_expired", "the token has expired: get a new one from the application"}
	errTokenLong    = &refusal{401, "token_lives_too_long", "the token expires in more than 24 hours: sign short-lived ones"}
	errTokenNobody  = &refusal{403, "token_without_recipient", "the token names no recipient, or one that no ledger has"}
)

// verify returns for whom a token was signed. Errors: *refusal.
func verify(keys []Key, token string, now time.Time) (Identity, error) {
	if token == "" {
		return Identity{}, errNoToken
	}
	dot := strings.LastIndexByte(token, '.')
	if len(token) > maxToken || !strings.HasPrefix(token, tokenVersion) || dot < len(tokenVersion) {
		return Identity{}, errTokenInvalid
	}
	signed := token[:dot]
	mac, err := base64.RawURLEncoding.Strict().DecodeString(token[dot+1:])
	if err != nil {
		return Identity{}, errTokenInvalid
	}
	body, err := base64.RawURLEncoding.DecodeString(signed[len(tokenVersion):])
	if err != nil {
		return Identity{}, errTokenInvalid
	}
	var c claims
	if json.Unmarshal(body, &c) != nil {
		return Identity{}, errTokenInvalid
	}
	for _, k := range keys {
		if k.ID == c.KeyID && hmac.Equal(mac, k.mac(signed)) {
			return c.identity(now)
		}
	}
	return Identity{}, errTokenInvalid
}

func (c claims) identity(now time.Time) (Identity, error) {
	who := Identity{Tenant: c.Tenant, Recipient: c.Recipient, Expires: time.Unix(c.Expires, 0)}
	switch {
	case !now.Before(who.Expires):
		return Identity{}, errTokenExpired
	case who.Expires.Sub(now) > maxLifetime:
		return Identity{}, errTokenLong
	case who.Recipient == "" || len([]rune(who.Recipient)) > 255 || len([]rune(who.Tenant)) > 64 || strings.ContainsRune(who.Recipient+who.Tenant, 0):
		return Identity{}, errTokenNobody
	}
	return who, nil
}
