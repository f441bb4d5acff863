package outbox

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// The limits. The table's constraints repeat them.
const (
	maxTenant        = 64
	maxEventKey      = 255
	maxAggregateType = 64
	maxAggregateID   = 255
	maxEventType     = 64
	maxPartitionKey  = 255
	maxTopic         = 249
	maxHeaderName    = 256       // bytes
	maxHeaders       = 16 * 1024 // bytes, names and values
)

// Validate returns nil or all that is wrong with e, joined: each is a *FieldError. Write calls it; the table's
// constraints accept and refuse the same events.
func (e Event) Validate() error {
	var c checker
	c.text("tenant", e.Tenant, 0, maxTenant)
	c.oneLine("tenant", "", e.Tenant)
	c.text("event_key", e.EventKey, 1, maxEventKey)
	c.oneLine("event_key", "", e.EventKey)
	c.aggregateType(e.AggregateType)
	c.text("aggregate_id", e.AggregateID, 1, maxAggregateID)
	c.text("event_type", e.EventType, 1, maxEventType)
	c.oneLine("event_type", "", e.EventType)
	c.text("partition_key", e.PartitionKey, 0, maxPartitionKey)
	c.topic(e.Topic)
	c.payload(e.Payload)
	if e.Payload != nil && e.PayloadBytes != nil {
		c.add(&FieldError{Field: "payload_bytes", Problem: Exclusive})
	}
	c.headers(e.Headers)
	if y := e.OccurredAt.UTC().Year(); y < 1 || y > 9999 {
		c.add(&FieldError{Field: "occurred_at", Problem: BadYear})
	}
	return errors.Join(c.errs...)
}

// checker collects problems.
type checker struct{ errs []error }

func (c *checker) add(e *FieldError) { c.errs = append(c.errs, e) }

// text checks a string that must have min to max characters.
func (c *checker) text(field, s string, min, max int) {
	c.characters(field, "", s)
	c.length(field, s, min, max)
}

func (c *checker) length(field, s string, min, max int) {
	switch n := utf8.RuneCountInString(s); {
	case n < min:
		c.add(&FieldError{Field: field, Problem: Empty, Length: n, Limit: max, Unit: "characters"})
	case n > max:
		c.add(&FieldError{Field: field, Problem: TooLong, Length: n, Limit: max, Unit: "characters"})
	}
}

// characters checks what PostgreSQL refuses in any text.
func (c *checker) characters(field, header, s string) {
	if !utf8.ValidString(s) {
		c.add(&FieldError{Field: field, Header: header, Problem: NotUTF8})
	}
	if strings.IndexByte(s, 0) >= 0 {
		c.add(&FieldError{Field: field, Header: header, Problem: HasNUL})
	}
}

// oneLine checks what becomes a header of the record: a line break would make one header look like two elsewhere.
func (c *checker) oneLine(field, header, s string) {
	if strings.ContainsAny(s, "\r\n") {
		c.add(&FieldError{Field: field, Header: header, Problem: HasLineBreak})
	}
}

// aggregateType allows what may stand in a topic's name, into which the default route puts it.
func (c *checker) aggregateType(s string) {
	c.length("aggregate_type", s, 1, maxAggregateType)
	if strings.ContainsFunc(s, notInTopic) {
		c.add(&FieldError{Field: "aggregate_type", Problem: BadCharacter})
	}
}

// topic applies Kafka's rule for names and keeps writers off the internal topics.
func (c *checker) topic(s string) {
	if s == "" {
		return
	}
	if len(s) > maxTopic {
		c.add(&FieldError{Field: "topic", Problem: TooLong, Length: utf8.RuneCountInString(s), Limit: maxTopic, Unit: "characters"})
	}
	if s == "." || s == ".." || strings.HasPrefix(s, "__") || strings.ContainsFunc(s, notInTopic) {
		c.add(&FieldError{Field: "topic", Problem: BadName})
	}
}

func notInTopic(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
}

// payload checks JSON as the column's type does: the grammar, and UTF-8, which json.Valid leaves alone.
func (c *checker) payload(p json.RawMessage) {
	switch {
	case p == nil:
	case !utf8.Valid(p):
		c.add(&FieldError{Field: "payload", Problem: NotUTF8})
	case !json.Valid(p):
		c.add(&FieldError{Field: "payload", Problem: NotJSON})
	}
}

func (c *checker) headers(h map[string]string) {
	total := 0
	for _, name := range slices.Sorted(maps.Keys(h)) {
		value := h[name]
		total += len(name) + len(value)
		short := name[:min(len(name), 64)]
		switch {
		case name == "":
			c.add(&FieldError{Field: "headers", Problem: NoName})
		case len(name) > maxHeaderName:
			c.add(&FieldError{Field: "headers", Header: short, Problem: TooLong, Length: len(name), Limit: maxHeaderName, Unit: "bytes"})
		case strings.ContainsAny(name, "\r\n"):
			c.add(&FieldError{Field: "headers", Header: short, Problem: BadName})
		case ReservedHeader(name):
			c.add(&FieldError{Field: "headers", Header: short, Problem: Reserved})
		}
		c.characters("headers", short, name)
		c.characters("headers", short, value)
		c.oneLine("headers", short, value)
	}
	if total > maxHeaders {
		c.add(&FieldError{Field: "headers", Problem: TooLong, Length: total, Limit: maxHeaders, Unit: "bytes"})
	}
}
