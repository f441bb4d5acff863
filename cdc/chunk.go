package cdc

import (
	"encoding/binary"
	"fmt"

	"github.com/outboxrelay/relay/outbox"
)

// chunk is a run of events on its way from the reader to the sink, with the memory that their bytes live in. The
// reader fills one while the sink takes another; a few go round for the life of a session.
type chunk struct {
	firstSeq uint64
	events   []outbox.Committed
	arena    []byte
	// complete is how many events belong to transactions whose Commit has been read. A stopping relay does not
	// hand over the rest.
	complete int
}

const (
	chunkBytes  = 128 << 10
	chunkEvents = 1024
	chunkCount  = 3
)

func newChunk() *chunk {
	return &chunk{events: make([]outbox.Committed, 0, chunkEvents), arena: make([]byte, 0, chunkBytes)}
}

func (c *chunk) reset() {
	clear(c.events) // a huge row's arena must not be kept alive by an old event
	c.events, c.complete = c.events[:0], 0
	if cap(c.arena) > 2*chunkBytes {
		c.arena = make([]byte, 0, chunkBytes)
	}
	c.arena = c.arena[:0]
}

// fits reports whether a row of n bytes goes in without moving the arena. An empty chunk takes any row.
func (c *chunk) fits(n int) bool {
	return len(c.events) < chunkEvents && (len(c.events) == 0 || len(c.arena)+rowRoom(n) <= cap(c.arena))
}

// rowRoom is what a tuple of n bytes may need in the arena: itself, and the text of the columns that are rewritten
// (a uuid and a timestamp at most).
func rowRoom(n int) int { return n + 128 }

// add appends the row as an event. The tuple's bytes are copied.
func (c *chunk) add(layout *layout, ins insert, pos outbox.Position) error {
	if len(c.events) == 0 && cap(c.arena) < rowRoom(len(ins.tuple)) {
		c.arena = make([]byte, 0, rowRoom(len(ins.tuple)))
	}
	start := len(c.arena)
	c.arena = append(c.arena, ins.tuple...)
	cur := cursor{b: c.arena[start:len(c.arena):len(c.arena)]}
	c.events = append(c.events, outbox.Committed{Position: pos})
	ev := &c.events[len(c.events)-1]
	if err := c.decode(ev, layout, ins.columns, &cur); err != nil {
		c.events = c.events[:len(c.events)-1]
		return err
	}
	return nil
}

func (c *chunk) decode(ev *outbox.Committed, layout *layout, columns int, cur *cursor) error {
	if columns != len(layout.columns) {
		return fmt.Errorf("decode row of %s: %d columns, its description has %d", layout.table, columns, len(layout.columns))
	}
	for i := range layout.columns {
		col := &layout.columns[i]
		kind, value := cur.column()
		if cur.short {
			return fmt.Errorf("decode row of %s: column %q: %w", layout.table, col.name, errTruncated)
		}
		if col.field == fieldNone || kind == 'n' {
			continue
		}
		if kind == 'u' {
			return fmt.Errorf("decode row of %s: column %q was not sent with the row", layout.table, col.name)
		}
		if kind == 'b' {
			var err error
			if value, err = c.text(col, value); err != nil {
				return fmt.Errorf("decode row of %s: column %q: %w", layout.table, col.name, err)
			}
		}
		col.field.set(ev, value)
	}
	return nil
}

// text turns the binary form of a value into the form that an event carries: text for what has digits or a
// calendar, the bytes as they are for everything that is bytes already.
func (c *chunk) text(col *column, value []byte) ([]byte, error) {
	switch col.oid {
	case oidUUID:
		if len(value) != 16 {
			return nil, fmt.Errorf("uuid of %d bytes", len(value))
		}
		start := len(c.arena)
		c.arena = appendUUID(c.arena, value)
		return c.arena[start:len(c.arena):len(c.arena)], nil
	case oidTimestamptz:
		if len(value) != 8 {
			return nil, fmt.Errorf("timestamptz of %d bytes", len(value))
		}
		start := len(c.arena)
		c.arena = appendTimestamptz(c.arena, int64(binary.BigEndian.Uint64(value)))
		return c.arena[start:len(c.arena):len(c.arena)], nil
	case oidJSONB:
		if len(value) == 0 || value[0] != 1 {
			return nil, fmt.Errorf("jsonb of an unknown version")
		}
		return value[1:], nil
	}
	return value, nil
}

func appendUUID(dst, u []byte) []byte {
	const digits = "0123456789abcdef"
	for i, b := range u {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, digits[b>>4], digits[b&15])
	}
	return dst
}

// appendTimestamptz writes the server's ISO form in UTC: 2026-11-30 18:57:22.123456+00.
func appendTimestamptz(dst []byte, us int64) []byte {
	switch us {
	case 1<<63 - 1:
		return append(dst, "infinity"...)
	case -1 << 63:
		return append(dst, "-infinity"...)
	}
	return append(pgTime(us).AppendFormat(dst, "2006-01-02 15:04:05.999999"), "+00"...)
}
