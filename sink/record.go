package sink

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// record is one event on its way into a batch, in the parts of Kafka's record format 2: its own headers as
// slices of the event, the user's as pairs. It is reused from event to event.
type record struct {
	event      *outbox.Committed
	key        []byte
	value      []byte // nil: null, a tombstone
	timed      bool   // it has a time of its own
	time       int64  // that time, in milliseconds
	since      int64  // from the batch's base time on; set by the batch
	wide       int    // bytes that since takes beyond one
	source     string
	position   positionText
	occurredAt []byte

	compression string // of its batch; "": the publisher's own

	user  []header
	fixed int // bytes of everything that does not depend on the place in the batch
}

type header struct{ name, value []byte }

// Our own headers, each name led by its length as a zigzag varint.
const (
	nameID            = "\x04id"
	nameEventKey      = "\x12event_key"
	nameEventType     = "\x14event_type"
	nameAggregateType = "\x1caggregate_type"
	nameOccurredAt    = "\x16occurred_at"
	nameTenant        = "\x0ctenant"
	namePosition      = "\x1crelay_position"
)

// measure computes what size and appendTo need. Call it when every field is set.
func (r *record) measure() {
	e := r.event
	n := 1 + 1 // attributes, timestamp delta
	n += sizeBytes(r.key) + sizeNullable(r.value)
	n += sizeVarint(int64(r.headers()))
	n += len(nameID) + sizeBytes(e.ID)
	n += sizeHeader(nameEventKey, e.EventKey, e.EventKey != nil)
	n += sizeHeader(nameEventType, e.EventType, e.EventType != nil)
	n += sizeHeader(nameAggregateType, e.AggregateType, e.AggregateType != nil)
	n += sizeHeader(nameOccurredAt, r.occurredAt, r.occurredAt != nil)
	n += sizeHeader(nameTenant, e.Tenant, len(e.Tenant) > 0)
	n += len(namePosition) + sizeVarint(outbox.PositionLen) + outbox.PositionLen
	for _, h := range r.user {
		n += sizeBytes(h.name) + sizeBytes(h.value)
	}
	r.fixed = n
}

// headers counts the headers.
func (r *record) headers() int {
	n := 2 + len(r.user) // id, relay_position
	e := r.event
	for _, there := range [...]bool{e.EventKey != nil, e.EventType != nil, e.AggregateType != nil, r.occurredAt != nil, len(e.Tenant) > 0} {
		if there {
			n++
		}
	}
	return n
}

// size returns the bytes of the record as the delta-th of its batch, its length field included.
func (r *record) size(delta int32) int {
	n := r.sizeBody(delta)
	return sizeVarint(int64(n)) + n
}

func (r *record) sizeBody(delta int32) int {
	return r.fixed + r.wide + sizeVarint(int64(delta))
}

// appendTo appends the record as the delta-th of its batch.
func (r *record) appendTo(dst []byte, delta int32) []byte {
	e := r.event
	dst = binary.AppendVarint(dst, int64(r.sizeBody(delta)))
	dst = append(dst, 0, 0)
	if r.since != 0 {
		dst = binary.AppendVarint(dst[:len(dst)-1], r.since)
	}
	dst = binary.AppendVarint(dst, int64(delta))
	dst = appendBytes(dst, r.key)
	if r.value == nil {
		dst = append(dst, 1) // length -1: null, a tombstone
	} else {
		dst = appendBytes(dst, r.value)
	}
	dst = binary.AppendVarint(dst, int64(r.headers()))
	dst = append(dst, nameID...)
	dst = appendBytes(dst, e.ID)
	dst = appendHeader(dst, nameEventKey, e.EventKey, e.EventKey != nil)
	dst = appendHeader(dst, nameEventType, e.EventType, e.EventType != nil)
	dst = appendHeader(dst, nameAggregateType, e.AggregateType, e.AggregateType != nil)
	dst = appendHeader(dst, nameOccurredAt, r.occurredAt, r.occurredAt != nil)
	dst = appendHeader(dst, nameTenant, e.Tenant, len(e.Tenant) > 0)
	dst = append(dst, namePosition...)
	dst = binary.AppendVarint(dst, outbox.PositionLen)
	dst = append(dst, r.position.set(r.source, e.Position)...)
	for _, h := range r.user {
		dst = appendBytes(dst, h.name)
		dst = appendBytes(dst, h.value)
	}
	return dst
}

func appendHeader(dst []byte, name string, value []byte, there bool) []byte {
	if !there {
		return dst
	}
	return appendBytes(append(dst, name...), value)
}

func sizeHeader(name string, value []byte, there bool) int {
	if !there {
		return 0
	}
	return len(name) + sizeBytes(value)
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

func sizeBytes(b []byte) int { return sizeVarint(int64(len(b))) + len(b) }

func sizeNullable(b []byte) int {
	if b == nil {
		return 1
	}
	return sizeBytes(b)
}

// sizeVarint returns the length of v as a zigzag varint.
func sizeVarint(v int64) int {
	return (bits.Len64(uint64(v<<1^v>>63)|1) + 6) / 7
}

// Record is one record of a batch as a publisher other than Kafka reads it. Its bytes are the batch's own.
type Record struct {
	Key     []byte
	Value   []byte // nil: null, a tombstone
	Time    time.Time
	headers []byte
	n       int
}

// Headers iterates over names and values in order.
func (r Record) Headers() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		d := decoder(r.headers)
		for range r.n {
			if name, value := d.bytes(), d.bytes(); !yield(name, value) {
				return
			}
		}
	}
}

// Records iterates over the batch's records in order.
func (b *Batch) Records() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for raw := range b.raw() {
			d := decoder(raw)
			d.varint() // length
			d = d[1:]  // attributes
			at := b.timeOf(d.varint())
			d.varint() // offset delta
			r := Record{Time: at, Key: d.bytes(), Value: d.bytes(), n: int(d.varint())}
			r.headers = d
			if !yield(r) {
				return
			}
		}
	}
}

// raw iterates over the encoded records, each with its length field.
func (b *Batch) raw() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, c := range b.chunks {
			for len(c) > 0 {
				n, k := binary.Varint(c)
				if !yield(c[:k+int(n)]) {
					return
				}
				c = c[k+int(n):]
			}
		}
	}
}

// appendRaw appends an encoded record as the delta-th of another batch.
func appendRaw(dst, raw []byte, delta int32) []byte {
	n, since, rest := bodyRaw(raw)
	dst = binary.AppendVarint(dst, int64(n+sizeVarint(int64(delta))))
	dst = append(dst, 0)
	dst = binary.AppendVarint(dst, since)
	dst = binary.AppendVarint(dst, int64(delta))
	return append(dst, rest...)
}

func sizeRaw(raw []byte, delta int32) int {
	n, _, _ := bodyRaw(raw)
	n += sizeVarint(int64(delta))
	return sizeVarint(int64(n)) + n
}

// bodyRaw returns the timestamp delta and what follows the offset delta, and the record's length without that one.
func bodyRaw(raw []byte) (n int, since int64, rest []byte) {
	d := decoder(raw)
	d.varint()
	d = d[1:]
	since = d.varint()
	d.varint()
	return 1 + sizeVarint(since) + len(d), since, d
}

// decoder reads what this package has encoded itself, so it expects no mistakes.
type decoder []byte

func (d *decoder) varint() int64 {
	v, n := binary.Varint(*d)
	*d = (*d)[n:]
	return v
}

func (d *decoder) bytes() []byte {
	n := d.varint()
	if n < 0 {
		return nil
	}
	b := (*d)[:n:n]
	*d = (*d)[n:]
	return b
}
