package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Event is a business fact to be written to the outbox. Lengths are in characters (Unicode code points) unless
// they are said to be in bytes; Validate checks them, and so do the table's constraints. No string may hold a NUL,
// and all are UTF-8.
type Event struct {
	// ID is the event's identity for ever. Zero: Write makes a version 7 UUID. Set it only to keep an identity
	// that exists already, for example when events move from another system.
	ID uuid.UUID
	// Tenant says whose event it is, in an application with many tenants. At most 64; may be empty. No CR or LF.
	Tenant string
	// EventKey is the stable name of the business event, such as scheduled-post-published:42: the same on every
	// retry and on every run of a scheduler. Consumers recognise repetitions by it. 1 to 255, no CR or LF.
	EventKey string
	// AggregateType says what kind of thing changed, such as order; it routes to the topic, whose name holds it: 1 to 64
	// of the letters a-z and A-Z, digits, '.', '_' and '-'.
	AggregateType string
	// AggregateID says which one changed. It is the partition key unless PartitionKey is set. 1 to 255.
	AggregateID string
	// EventType says what happened, such as OrderPlaced. 1 to 64, no CR or LF.
	EventType string
	// Payload is the record's value as JSON text, published byte for byte. Marshal makes one. Nil together with a
	// nil PayloadBytes is a tombstone, a record without a value.
	Payload json.RawMessage
	// PayloadBytes is the record's value where it is not JSON. Only one of Payload and PayloadBytes may be set;
	// an empty slice that is not nil is a value of no bytes.
	PayloadBytes []byte
	// Headers become headers of the record. A name has 1 to 256 bytes and is not one of the relay's own
	// (ReservedHeader); no name or value has CR or LF; names and values have 16384 bytes at most in all.
	Headers map[string]string
	// Topic asks for a topic by name, if the relay's configuration allows that topic. Empty: the route of the
	// aggregate type decides. Letters, digits, '.', '_' and '-', at most 249, not beginning with "__".
	Topic string
	// PartitionKey is the record's key; events with an equal one keep their commit order. Empty: AggregateID.
	// At most 255.
	PartitionKey string
	// OccurredAt says when it happened; PostgreSQL keeps microseconds. Zero: the transaction's start, by the
	// server's clock. Years 1 to 9999.
	OccurredAt time.Time
}

// Marshal returns v as JSON for Payload. It differs from json.Marshal in that it leaves <, > and & as they are:
// what is written here is published byte for byte.
func Marshal(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("marshal payload: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// ReservedHeader reports whether the relay writes a header of that name itself, the case of ASCII letters aside: some
// consumers do not tell names by it. Such a name is refused in Event.Headers.
func ReservedHeader(name string) bool {
	switch strings.Map(lowerASCII, name) {
	case "id", "event_key", "event_type", "aggregate_type", "occurred_at", "tenant", "relay_position", "relay_replay":
		return true
	}
	return false
}

func lowerASCII(r rune) rune {
	if r >= 'A' && r <= 'Z' {
		return r + 'a' - 'A'
	}
	return r
}
