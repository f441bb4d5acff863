package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits, in characters. The table's functions repeat them.
const (
	maxTenant    = 64
	maxEventKey  = 255
	maxRecipient = 255
	maxChannel   = 64
)

// Key names one delivery: the dedup key is tenant, event key, recipient and channel. No string may hold a NUL, and
// all are UTF-8.
type Key struct {
	// Tenant says whose event it is, in an application with many tenants. At most 64 characters; may be empty.
	Tenant string
	// EventKey is the stable name of the business event, see EventKey, the function. 1 to 255 characters.
	EventKey string
	// Recipient is who gets the effect, see Recipient, the function. Empty where that is nobody in particular, as
	// for a listener. At most 255 characters.
	Recipient string
	// Channel says by which means, and has settings in ledger.channels. 1 to 64 characters.
	Channel string
	// OccurredAt is when the event happened. It is not part of the identity: it tells an event that is new from one
	// that is older than what the ledger remembers. Zero is refused by channels whose retention is finite.
	OccurredAt time.Time
}

// Validate returns nil or all that is wrong with k, joined: each is a *KeyError.
func (k Key) Validate() error {
	return errors.Join(
		checkText("tenant", k.Tenant, 0, maxTenant),
		checkText("event_key", k.EventKey, 1, maxEventKey),
		checkText("recipient", k.Recipient, 0, maxRecipient),
		checkText("channel", k.Channel, 1, maxChannel),
	)
}

// Event names a business event on one channel: a Key for many recipients.
type Event struct {
	Tenant, EventKey, Channel string
	OccurredAt                time.Time
}

// Key returns the key of one recipient.
func (e Event) Key(recipient string) Key {
	return Key{Tenant: e.Tenant, EventKey: e.EventKey, Recipient: recipient, Channel: e.Channel, OccurredAt: e.OccurredAt}
}

// KeyError says what is wrong with one part of a key. It holds no value, so it may be logged.
type KeyError struct {
	Field   string // tenant, event_key, recipient, channel; or name, parts, type, id of what a key is built from
	Rule    string // which rule it breaks: empty, too_long, not_utf8, has_nul, or one of docs/keys.md
	Problem string // the same in words
}

func (e *KeyError) Error() string { return e.Field + " " + e.Problem }

// checkText checks a string that must have min to max characters. The nil it returns is no *KeyError.
func checkText(field, s string, min, max int) error {
	n := utf8.RuneCountInString(s)
	switch {
	case !utf8.ValidString(s):
		return &KeyError{field, "not_utf8", "is not UTF-8"}
	case strings.IndexByte(s, 0) >= 0:
		return &KeyError{field, "has_nul", "holds a NUL character"}
	case n < min:
		return &KeyError{field, "empty", "is empty"}
	case n > max:
		return &KeyError{field, "too_long", fmt.Sprintf("is too long: %d characters, limit %d", n, max)}
	}
	return nil
}
