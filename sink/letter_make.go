package sink

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox"
)

// maxLetterID bounds what an index has to take.
const maxLetterID = 512

// LetterID is an event's ID as a letter names it: the ID itself, unless it is no text that a database can hold and
// index.
func LetterID(id []byte) string {
	if len(id) <= maxLetterID && utf8.Valid(id) && bytes.IndexByte(id, 0) < 0 {
		return string(id)
	}
	sum := sha256.Sum256(id)
	return fmt.Sprintf("sha256:%s (%d bytes)", hex.EncodeToString(sum[:]), len(id))
}

// letter makes a letter of an event that could not be given to a lane. What could be made of a record is in s.rec.
func (s *Sink) letter(seq uint64, e *outbox.Committed, p *poisonError) *Letter {
	if s.rec.occurredAt == nil && e.OccurredAt != nil {
		s.when = appendOccurred(s.when[:0], e.OccurredAt)
		s.rec.occurredAt = s.when
	}
	l := &Letter{
		Source: s.sourceOf(e), EventID: LetterID(e.ID), Position: string(outbox.AppendPosition(nil, s.rec.source, e.Position)),
		Topic: p.topic, Partition: -1, Key: bytes.Clone(s.rec.key), Null: s.rec.value == nil,
		EventKey: bytes.Clone(e.EventKey), EventType: bytes.Clone(e.EventType), OccurredAt: bytes.Clone(s.rec.occurredAt),
		Class: p.class, Reason: p.reason, Attempts: 1, State: Parked,
		seq: seq,
	}
	if e.Route >= 0 && e.Route < len(s.routes) {
		l.copyTo = s.routes[e.Route].copyTo
	}
	l.keep(s.rec.value)
	if e.Unreadable != "" {
		l.Null = false
	}
	if p.class == classBadHeader {
		l.Unreadable = append([]byte{}, e.Headers...)
	}
	add := func(name string, value []byte, there bool) {
		if there {
			l.Headers = append(l.Headers, Header{name, bytes.Clone(value)})
		}
	}
	add("id", e.ID, true)
	add("event_key", e.EventKey, e.EventKey != nil)
	add("event_type", e.EventType, e.EventType != nil)
	add("aggregate_type", e.AggregateType, e.AggregateType != nil)
	add("occurred_at", s.rec.occurredAt, s.rec.occurredAt != nil)
	add("tenant", e.Tenant, len(e.Tenant) > 0)
	add("relay_position", []byte(l.Position), true)
	for _, h := range s.rec.user {
		add(string(h.name), h.value, true)
	}
	l.size = l.bytes()
	return l
}

// keep takes a copy of the value, unless it is too large to keep.
func (l *Letter) keep(value []byte) {
	if len(value) <= MaxLetterValue {
		l.Value = bytes.Clone(value)
		return
	}
	l.Reason += fmt.Sprintf("; its value of %d bytes is not kept here", len(value))
}

// bytes is roughly what the letter takes.
func (l *Letter) bytes() int {
	n := 256 + len(l.Key) + len(l.Value) + len(l.Unreadable) + len(l.EventKey) + len(l.EventType)
	for _, h := range l.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// letterOf makes a letter of an encoded record of a batch.
func (l *lane) letterOf(b *Batch, i int, raw []byte) *Letter {
	rt := l.sink.routes[b.routes[i]]
	d := decoder(raw)
	d.varint() // length
	d = d[1:]  // attributes
	d.varint() // timestamp delta
	d.varint() // offset delta
	out := &Letter{
		Source: rt.source, Topic: b.Topic, Partition: -1, Key: bytes.Clone(d.bytes()), State: Parked,
		seq: b.seqs[i], size: len(raw), topicOf: l.topic, policy: rt.poison, copyTo: rt.copyTo,
	}
	if rt.partition != nil {
		out.Partition = l.partition
	}
	value := d.bytes()
	out.Null = value == nil
	out.keep(value)
	for n := d.varint(); n > 0; n-- {
		h := Header{string(d.bytes()), bytes.Clone(d.bytes())}
		out.Headers = append(out.Headers, h)
		switch h.Name {
		case "id":
			out.EventID = LetterID(h.Value)
		case "relay_position":
			out.Position = string(h.Value)
		case "event_key":
			out.EventKey = h.Value
		case "event_type":
			out.EventType = h.Value
		case "occurred_at":
			out.OccurredAt = h.Value
		}
	}
	return out
}

func (s *Sink) sourceOf(e *outbox.Committed) string {
	if e.Route < 0 || e.Route >= len(s.routes) {
		return ""
	}
	return s.routes[e.Route].source
}
