package cdc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// This file decodes pgoutput, protocol version 1. The decoder is pure: bytes in, values out, no panic and no
// allocation beyond what a Relation message describes, whatever the input. pglogrepl's Parse is not used: it
// panics on empty or truncated messages and allocates for each column of each row.

// errTruncated is wrapped by every decoding error that a message shorter than its own lengths causes.
var errTruncated = errors.New("message is shorter than it says")

// Kinds of messages, by their first byte.
const (
	kindBegin    = 'B'
	kindCommit   = 'C'
	kindRelation = 'R'
	kindInsert   = 'I'
	kindMessage  = 'M'
)

// harmless lists the kinds that the relay has no use for and may skip: Origin, Type, Update, Delete, Truncate;
// and what newer protocol versions send around streamed and prepared transactions, for PostgreSQL 18 was seen
// to send Stream Abort to clients that never asked for streaming. A Stream Start is not among them: skipping it
// would publish a transaction that may yet abort.
func harmless(kind byte) bool {
	switch kind {
	case 'O', 'Y', 'U', 'D', 'T', 'A', 'c', 'E':
		return true
	}
	return false
}

// begin opens a transaction.
type begin struct {
	commitLSN  outbox.LSN
	commitTime time.Time
	xid        uint32
}

// commit ends one.
type commit struct {
	commitLSN outbox.LSN
	endLSN    outbox.LSN
}

// relation describes a table, before its first row and again after each change.
type relation struct {
	id      uint32
	schema  string
	name    string
	columns []relationColumn
}

type relationColumn struct {
	name string
	oid  uint32
}

// insert is one row. tuple is the undecoded column data, borrowed from the input.
type insert struct {
	relation uint32
	columns  int
	tuple    []byte
}

// logicalMessage is what pg_logical_emit_message wrote.
type logicalMessage struct {
	transactional bool
	prefix        []byte
	content       []byte
}

// cursor reads big-endian fields from a message. The first read past the end marks it short; from then on every
// read gives zero, so that a decoder checks once, at its end.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.short, c.b = true, nil
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u8() byte {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if p := c.take(2); p != nil {
		return binary.BigEndian.Uint16(p)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) cstring() []byte {
	for i, x := range c.b {
		if x == 0 {
			s := c.b[:i]
			c.b = c.b[i+1:]
			return s
		}
	}
	c.short, c.b = true, nil
	return nil
}

// done gives the error of a decoder that has read all its fields.
func (c *cursor) done(what string) error {
	if c.short {
		return fmt.Errorf("decode %s: %w", what, errTruncated)
	}
	return nil
}

// The decoders take a message's body: what follows the kind byte.

func decodeBegin(body []byte) (begin, error) {
	c := cursor{b: body}
	m := begin{commitLSN: outbox.LSN(c.u64()), commitTime: pgTime(int64(c.u64())), xid: c.u32()}
	return m, c.done("begin")
}

func decodeCommit(body []byte) (commit, error) {
	c := cursor{b: body}
	c.u8() // flags, none defined
	m := commit{commitLSN: outbox.LSN(c.u64()), endLSN: outbox.LSN(c.u64())}
	c.u64() // commit time, known from begin
	return m, c.done("commit")
}

func decodeRelation(body []byte) (relation, error) {
	c := cursor{b: body}
	m := relation{id: c.u32(), schema: string(c.cstring()), name: string(c.cstring())}
	if m.schema == "" && !c.short {
		m.schema = "pg_catalog" // the protocol writes it as the empty string
	}
	c.u8() // replica identity
	n := int(c.u16())
	if n > len(c.b)/10 { // a column takes at least ten bytes: no allocation for a length that cannot be true
		return m, fmt.Errorf("decode relation: %w", errTruncated)
	}
	m.columns = make([]relationColumn, 0, n)
	for range n {
		c.u8() // flags: part of the key
		col := relationColumn{name: string(c.cstring()), oid: c.u32()}
		c.u32() // type modifier
		m.columns = append(m.columns, col)
	}
	return m, c.done("relation")
}

func decodeInsert(body []byte) (insert, error) {
	c := cursor{b: body}
	m := insert{relation: c.u32()}
	if tag := c.u8(); tag != 'N' && !c.short {
		return m, fmt.Errorf("decode insert: tuple tag %q, want 'N'", tag)
	}
	m.columns = int(c.u16())
	m.tuple = c.b
	return m, c.done("insert")
}

func decodeMessage(body []byte) (logicalMessage, error) {
	c := cursor{b: body}
	m := logicalMessage{transactional: c.u8()&1 != 0}
	c.u64() // the message's own LSN
	m.prefix = c.cstring()
	m.content = c.take(int(c.u32()))
	return m, c.done("message")
}

// column reads the next column of a tuple: its kind and, for 't' and 'b', its bytes. 'n' is NULL, 'u' an
// unchanged value that was not sent.
func (c *cursor) column() (kind byte, value []byte) {
	switch kind = c.u8(); kind {
	case 'n', 'u':
		return kind, nil
	case 't', 'b':
		return kind, c.take(int(c.u32()))
	}
	c.short = true // an unknown kind has no known length: nothing after it can be read
	return kind, nil
}

// pgEpoch is where PostgreSQL's timestamps count from, in microseconds of Unix time.
const pgEpoch = 946684800 * 1_000_000

// pgTime converts microseconds since 2000-01-01.
func pgTime(us int64) time.Time { return time.UnixMicro(us + pgEpoch).UTC() }
