package deliver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboxrelay/relay/ledger"
)

// Event is a business event as a record of the relay tells it.
type Event struct {
	ID            string // the outbox row's; may be empty
	Tenant        string
	Key           string // the stable name of the business event
	Type          string
	AggregateType string
	AggregateID   string // the record's key: the aggregate's id unless the event had a partition key of its own
	OccurredAt    time.Time
	Payload       []byte            // JSON; nil: a tombstone
	Headers       map[string]string // all of the record's
	Source        string            // where it was read, for people: topic/partition/offset

	value any // of the payload
}

// The headers that the relay writes.
const (
	headerID            = "id"
	headerEventKey      = "event_key"
	headerEventType     = "event_type"
	headerAggregateType = "aggregate_type"
	headerOccurredAt    = "occurred_at"
	headerTenant        = "tenant"
)

// headerRecordKey keeps the record's key among what the ledger remembers. The relay refuses names that begin so.
const headerRecordKey = "relay_record_key"

// maxSource is how much of a source the ledger keeps; a topic's name alone may be nearly as long. Its end tells more.
const maxSource = 255

// prepare checks e and reads its payload. The error is a *RecordError.
func (e *Event) prepare() error {
	key := ledger.Key{Tenant: e.Tenant, EventKey: e.Key, Channel: "-"}
	if err := key.Validate(); err != nil {
		return &RecordError{ClassKeyInvalid, err.Error()}
	}
	if n := utf8.RuneCountInString(e.Type); n == 0 || n > 64 || !utf8.ValidString(e.Type) || strings.ContainsRune(e.Type, 0) {
		return &RecordError{ClassForeign, "event_type has not 1 to 64 characters"}
	}
	if e.OccurredAt.IsZero() {
		return &RecordError{ClassForeign, "occurred_at is not set"}
	}
	value, err := parseJSON(e.Payload)
	if err != nil {
		return &RecordError{ClassPayload, err.Error()}
	}
	e.value = value
	return nil
}

// parseJSON reads one JSON value for templates: numbers stay as they are written, and a null inside is empty text, for
// text/template would show it as "<no value>". nil is null. Its errors quote nothing.
func parseJSON(text []byte) (any, error) {
	if text == nil {
		return nil, nil
	}
	if !utf8.Valid(text) {
		return nil, errors.New("the payload is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("the payload is not JSON, byte %d", dec.InputOffset())
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the payload goes on after its end, byte %d", dec.InputOffset())
	}
	return withoutNulls(v), nil
}

func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if v[k] = withoutNulls(x); x == nil {
				v[k] = ""
			}
		}
	case []any:
		for i, x := range v {
			if v[i] = withoutNulls(x); x == nil {
				v[i] = ""
			}
		}
	}
	return v
}

// content is what the ledger remembers of e.
func (e *Event) content() ledger.Content {
	headers := make(map[string]string, len(e.Headers)+1)
	for name, value := range e.Headers {
		headers[storable(name)] = storable(value)
	}
	headers[headerRecordKey] = storable(e.AggregateID)
	return ledger.Content{Type: e.Type, Payload: e.Payload, Headers: headers, Source: e.Source[max(0, len(e.Source)-maxSource):]}
}

// storable makes a header fit for jsonb.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// remembered is the event of a claimed row.
func remembered(r ledger.Reservation) (Event, error) {
	h := r.Content.Headers
	e := Event{
		ID: h[headerID], Tenant: r.Key.Tenant, Key: r.Key.EventKey, Type: r.Content.Type, AggregateType: h[headerAggregateType],
		AggregateID: h[headerRecordKey], OccurredAt: r.Key.OccurredAt, Payload: r.Content.Payload, Headers: h, Source: r.Content.Source,
	}
	if e.Type == "" {
		return e, errors.New("the ledger does not remember the event")
	}
	value, err := parseJSON(e.Payload)
	e.value = value
	return e, err
}

// params are the named parameters of queries.
func (e *Event) params() map[string]any {
	p := map[string]any{
		"event_id": e.ID, "event_key": e.Key, "event_type": e.Type, "tenant": e.Tenant, "aggregate_type": e.AggregateType,
		"aggregate_id": e.AggregateID, "occurred_at": e.OccurredAt.UTC().Format("2006-01-02 15:04:05.999999+00"), "payload": nil,
	}
	if e.Payload != nil {
		p["payload"] = string(e.Payload)
	}
	return p
}

// eventParams are the names that params has, and recipientParams those of a query about one recipient besides.
func eventParams() []string {
	return []string{"event_id", "event_key", "event_type", "tenant", "aggregate_type", "aggregate_id", "occurred_at", "payload"}
}

func recipientParams() []string {
	return append(eventParams(), "recipient", "recipient_type", "recipient_id", "channel")
}

// withRecipient adds what a query about one recipient may name.
func withRecipient(p map[string]any, recipient, channel string) map[string]any {
	typ, id := splitRecipient(recipient)
	p["recipient"], p["recipient_type"], p["recipient_id"], p["channel"] = recipient, typ, id, channel
	return p
}

// splitRecipient takes apart what ledger.Recipient joined. What has no type is all id.
func splitRecipient(recipient string) (typ, id string) {
	typ, id, found := strings.Cut(recipient, ":")
	if !found {
		return "", recipient
	}
	return typ, strings.NewReplacer("%3A", ":", "%25", "%").Replace(id)
}
