package sink

import (
	"bytes"
	"errors"

	"github.com/outboxrelay/relay/outbox"
)

// CloudEvents makes each record a CloudEvent 1.0 in binary mode of the Kafka protocol binding: the attributes are
// headers beside the others, ce_id, ce_source, ce_specversion, ce_type, and ce_subject and ce_time where the event
// has an aggregate ID and a time. A value that is JSON by its column's type has content-type application/json.
type CloudEvents struct {
	// Source is ce_source: a URI reference that, together with an event's ID, is unique.
	Source string
	// Type names the field or column that is ce_type. Default event_type.
	Type string
	// ContentType is the content type of values whose column does not say it. Empty: none.
	ContentType string
}

type cloudEvents struct {
	fixed                   []header // specversion, source
	id, kind, subject, time []byte   // names
	contentType             header
	json                    []byte
	typ                     ref
}

func newCloudEvents(c CloudEvents, columns []string) (*cloudEvents, error) {
	if c.Type == "" {
		c.Type = "event_type"
	}
	typ, err := newRef(c.Type, columns)
	if err != nil {
		return nil, err
	}
	if c.Source == "" || hasControl([]byte(c.Source)) || hasControl([]byte(c.ContentType)) {
		return nil, errors.New("a CloudEvent needs a source, a URI reference")
	}
	return &cloudEvents{
		fixed: []header{{[]byte("ce_specversion"), []byte("1.0")}, {[]byte("ce_source"), []byte(c.Source)}},
		id:    []byte("ce_id"), kind: []byte("ce_type"), subject: []byte("ce_subject"), time: []byte("ce_time"),
		contentType: header{[]byte("content-type"), []byte(c.ContentType)}, json: []byte("application/json"), typ: typ,
	}, nil
}

// headers appends the attributes. The record's own content-type header, if the row has one, stands.
func (c *cloudEvents) headers(dst []header, e *outbox.Committed, occurredAt []byte, enveloped bool) ([]header, string) {
	own := false
	for _, h := range dst {
		if bytes.HasPrefix(h.name, []byte("ce_")) {
			return dst, "a header uses the reserved name " + string(h.name)
		}
		own = own || string(h.name) == "content-type"
	}
	typ := c.typ.value(e)
	switch {
	case len(typ) == 0:
		return dst, "it has no " + c.typ.name + " to be the type of a CloudEvent"
	case hasControl(typ) || hasControl(e.AggregateID):
		return dst, "one of its columns that become headers has a carriage return, line feed or NUL"
	}
	dst = append(append(dst, c.fixed...), header{c.id, e.ID}, header{c.kind, typ})
	if len(e.AggregateID) > 0 {
		dst = append(dst, header{c.subject, e.AggregateID})
	}
	if n := len(occurredAt); n > 0 && occurredAt[n-1] == 'Z' { // RFC 3339; infinity is not
		dst = append(dst, header{c.time, occurredAt})
	}
	content := c.contentType
	if e.PayloadKind == outbox.KindJSON || enveloped {
		content.value = c.json
	}
	if len(content.value) > 0 && !own && e.Payload != nil {
		dst = append(dst, content)
	}
	return dst, ""
}
