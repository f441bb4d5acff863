package cdc

import (
	"fmt"

	"github.com/outboxrelay/relay/outbox"
)

// chunk is a run of events on its way from the reader to the sink, with the memory that their bytes live in. The
// reader fills one while the sink takes another; a few go round for the life of a session.
type chunk struct {
	firstSeq uint64
	events   []outbox.Committed
	extras   []outbox.Extra // what Committed.Extra of the events are slices of
	arena    []byte
	// complete is how many events belong to transactions whose Commit has been read. A stopping relay does not
	// hand over the rest.
	complete int
}

const (
	chunkBytes  = 256 << 10
	chunkEvents = 2048
	chunkCount  = 3
)

func newChunk() *chunk {
	return &chunk{events: make([]outbox.Committed, 0, chunkEvents), arena: make([]byte, 0, chunkBytes)}
}

func (c *chunk) reset() {
	clear(c.events) // a huge row's arena must not be kept alive by an old event
	clear(c.extras)
	c.events, c.extras, c.complete = c.events[:0], c.extras[:0], 0
	if cap(c.arena) > 2*chunkBytes {
		c.arena = make([]byte, 0, chunkBytes)
	}
	c.arena = c.arena[:0]
}

// fits reports whether a row of n bytes goes in without moving the arena. An empty chunk takes any row.
func (c *chunk) fits(n int) bool {
	return len(c.events) < chunkEvents && (len(c.events) == 0 || len(c.arena)+rowRoom(n) <= cap(c.arena))
}

// rowRoom is what a tuple of n bytes may need in the arena: itself, and the text of the few columns that every table
// has (a uuid and a timestamp at most). What a layout needs beyond is counted in n.
func rowRoom(n int) int { return n + 128 }

// grow makes room for a row of n bytes in an empty chunk.
func (c *chunk) grow(n int) {
	if len(c.events) == 0 && cap(c.arena) < rowRoom(n) {
		c.arena = make([]byte, 0, rowRoom(n))
	}
}

// extra returns n values of the chunk's own. Growing leaves those of earlier events where they are.
func (c *chunk) extra(n int) []outbox.Extra {
	start := len(c.extras)
	if start+n > cap(c.extras) {
		c.extras, start = make([]outbox.Extra, 0, max(2*cap(c.extras), 64*n)), 0
	}
	c.extras = c.extras[:start+n]
	return c.extras[start : start+n : start+n]
}

// add appends the row as an event. The tuple's bytes are copied.
func (c *chunk) add(layout *layout, ins insert, pos outbox.Position) error {
	c.grow(len(ins.tuple) + layout.room())
	start := len(c.arena)
	c.arena = append(c.arena, ins.tuple...)
	cur := cursor{b: c.arena[start:len(c.arena):len(c.arena)]}
	c.events = append(c.events, outbox.Committed{Position: pos, Route: layout.route})
	ev := &c.events[len(c.events)-1]
	if layout.extras > 0 {
		ev.Extra = c.extra(layout.extras)
	}
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
		if col.field == fieldNone && col.extra == 0 {
			continue
		}
		if kind == 'u' {
			return fmt.Errorf("decode row of %s: column %q was not sent with the row", layout.table, col.name)
		}
		if kind != 'n' {
			var err error
			if value, err = c.value(col, kind, value); err != nil {
				return fmt.Errorf("decode row of %s: column %q: %w", layout.table, col.name, err)
			}
			if col.field == FieldOccurredAt && col.oid == oidTimestamp {
				value = c.inUTC(value)
			}
			switch col.field {
			case fieldNone:
			case FieldPayload, FieldPayloadBytes:
				ev.PayloadKind = col.kind
				fallthrough
			default:
				col.field.set(ev, value)
			}
		}
		if col.extra > 0 {
			ev.Extra[col.extra-1] = outbox.Extra{Value: value, Kind: col.kind}
		}
	}
	if layout.prefix != "" && ev.ID != nil {
		start := len(c.arena)
		c.arena = append(append(c.arena, layout.prefix...), ev.ID...)
		ev.ID = c.arena[start:len(c.arena):len(c.arena)]
	}
	return nil
}
