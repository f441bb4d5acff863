package cdc

import (
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
)

// emitVersion is the first byte of what outbox.emit writes.
const emitVersion = 1

// emitFields are the fields of an emitted event in their order. Each is its length as a 32-bit big-endian integer, -1
// for NULL, and its bytes: text in UTF-8, the ID as the 16 bytes of a uuid, occurred_at as PostgreSQL's 8 bytes of a
// timestamptz, the payload in either of two fields. Nothing follows the last.
var emitFields = [...]Field{
	FieldID, FieldTenant, FieldEventKey, FieldAggregateType, FieldAggregateID, FieldEventType, FieldPayload, FieldPayloadBytes,
	FieldHeaders, FieldTopic, FieldPartitionKey, FieldOccurredAt,
}

// messageDecoder makes events of logical messages.
type messageDecoder struct {
	mappings []MessageMapping
	source   string
}

// find returns the mapping of a prefix, nil for none. A few are walked faster than hashed.
func (d *messageDecoder) find(prefix []byte) *MessageMapping {
	if d == nil {
		return nil
	}
	for i := range d.mappings {
		if string(prefix) == d.mappings[i].Prefix {
			return &d.mappings[i]
		}
	}
	return nil
}

// messageRoom is what add may need in the arena.
func messageRoom(m logicalMessage) int {
	return len(m.prefix) + len(m.content) + outbox.PositionLen + grownBy(oidUUID) + grownBy(oidTimestamptz)
}

// add appends the message as an event. One with a content that outbox.emit did not write is an event all the same,
// that cannot be published: whoever may write messages may write that, and the stream must not break over it.
func (d *messageDecoder) add(c *chunk, m *MessageMapping, msg logicalMessage, pos outbox.Position) {
	c.grow(messageRoom(msg))
	c.events = append(c.events, outbox.Committed{Position: pos, Route: m.Route})
	ev := &c.events[len(c.events)-1]
	content := c.keep(msg.content)
	if m.Emitted {
		err := c.emitted(ev, content)
		if err == nil {
			return
		}
		*ev = outbox.Committed{Position: pos, Route: m.Route, Unreadable: "its message has no content that outbox.emit writes: " + err.Error()}
	} else {
		ev.Payload, ev.PayloadKind = content, outbox.KindBytes
		ev.AggregateID = c.keep(msg.prefix)
	}
	start := len(c.arena)
	c.arena = outbox.AppendPosition(c.arena, d.source, pos)
	ev.ID = c.arena[start:len(c.arena):len(c.arena)]
}

// keep copies bytes into the chunk.
func (c *chunk) keep(b []byte) []byte {
	start := len(c.arena)
	c.arena = append(c.arena, b...)
	return c.arena[start:len(c.arena):len(c.arena)]
}

// emitted fills an event from a content of outbox.emit.
func (c *chunk) emitted(ev *outbox.Committed, content []byte) error {
	cur := cursor{b: content}
	if version := cur.u8(); version != emitVersion && !cur.short {
		return fmt.Errorf("version %d is not known", version)
	}
	for _, f := range emitFields {
		n := int32(cur.u32())
		if n == -1 && !cur.short {
			continue
		}
		value := cur.take(int(n))
		if cur.short {
			break
		}
		if value == nil {
			value = []byte{}
		}
		col := column{field: f, oid: oidText, kind: outbox.KindJSON}
		switch f {
		case FieldID:
			col.oid = oidUUID
		case FieldOccurredAt:
			col.oid = oidTimestamptz
		case FieldPayloadBytes:
			col.kind = outbox.KindBytes
			if ev.Payload != nil {
				return errors.New("it has two payloads")
			}
		}
		value, err := c.value(&col, 'b', value)
		if err != nil {
			return err
		}
		if f == FieldPayload || f == FieldPayloadBytes {
			ev.PayloadKind = col.kind
		}
		f.set(ev, value)
	}
	switch {
	case cur.short:
		return errTruncated
	case len(cur.b) > 0:
		return fmt.Errorf("%d bytes follow it", len(cur.b))
	case len(ev.ID) == 0:
		return errors.New("it has no ID")
	}
	return nil
}
