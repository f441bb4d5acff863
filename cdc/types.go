package cdc

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/outboxrelay/relay/outbox"
)

// OIDs of built-in types: the same on every server.
const (
	oidBool        = 16
	oidBytea       = 17
	oidName        = 19
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidUUID        = 2950
	oidJSONB       = 3802
)

// firstUserOID is where the OIDs of types begin that somebody made.
const firstUserOID = 16384

// typeMap knows the types of columns. A domain is what it is based on and an enum is text, in effect: that is how
// the server sends them.
type typeMap struct {
	users map[uint32]uint32 // user-defined type to the built-in one that it is in effect
	text  bool              // the stream sends text forms: every type can be read
}

func (t typeMap) effective(oid uint32) uint32 {
	if as, ok := t.users[oid]; ok {
		return as
	}
	return oid
}

// knows reports whether the effective type is more than a number to us.
func (t typeMap) knows(oid uint32) bool { return oid < firstUserOID }

// unknownTypeError says that a column has a type whose binary form is not known. The stream begins anew and asks for
// text.
type unknownTypeError struct {
	table  Table
	column string
	oid    uint32
}

func (e *unknownTypeError) Error() string {
	return fmt.Sprintf("column %q of table %s has type %d, which is not read in binary form", e.column, e.table, e.oid)
}

// binaryKnown lists the types whose binary form value understands.
func binaryKnown(oid uint32) bool {
	switch oid {
	case oidBool, oidBytea, oidName, oidInt8, oidInt2, oidInt4, oidText, oidJSON, oidBpchar, oidVarchar, oidTimestamp, oidTimestamptz, oidUUID, oidJSONB:
		return true
	}
	return false
}

// grownBy is how many bytes longer a value's text can be than its binary form.
func grownBy(oid uint32) int {
	switch oid {
	case oidBool:
		return 5
	case oidInt2, oidInt4, oidInt8:
		return 20
	case oidTimestamp, oidTimestamptz, oidUUID:
		return 40
	}
	return 0
}

// kindOf says how a value of the type is to be understood.
func kindOf(oid uint32) outbox.Kind {
	switch oid {
	case oidJSON, oidJSONB:
		return outbox.KindJSON
	case oidBytea:
		return outbox.KindBytes
	case oidBool:
		return outbox.KindBool
	case oidInt2, oidInt4, oidInt8:
		return outbox.KindNumber
	case oidTimestamp, oidTimestamptz:
		return outbox.KindTimestamp
	}
	return outbox.KindText // numeric and float among them: NaN and Infinity are no numbers elsewhere
}

// value turns a value as it was sent, in binary (b) or text (t) form, into the form that an event carries: text for
// what has digits or a calendar, the bytes as they are for everything that is bytes already.
func (c *chunk) value(col *column, sent byte, value []byte) ([]byte, error) {
	if sent == 't' {
		return fromText(col.oid, value)
	}
	start := len(c.arena)
	switch col.oid {
	case oidUUID:
		if len(value) != 16 {
			return nil, fmt.Errorf("uuid of %d bytes", len(value))
		}
		c.arena = appendUUID(c.arena, value)
	case oidTimestamptz, oidTimestamp:
		if len(value) != 8 {
			return nil, fmt.Errorf("timestamp of %d bytes", len(value))
		}
		c.arena = appendTimestamp(c.arena, int64(binary.BigEndian.Uint64(value)), col.oid == oidTimestamptz)
	case oidInt2, oidInt4, oidInt8:
		n, err := integer(value)
		if err != nil {
			return nil, err
		}
		c.arena = strconv.AppendInt(c.arena, n, 10)
	case oidBool:
		if len(value) != 1 {
			return nil, fmt.Errorf("boolean of %d bytes", len(value))
		}
		c.arena = strconv.AppendBool(c.arena, value[0] != 0)
	case oidJSONB:
		if len(value) == 0 || value[0] != 1 {
			return nil, errors.New("jsonb of an unknown version")
		}
		return value[1:], nil
	default:
		return value, nil
	}
	return c.arena[start:len(c.arena):len(c.arena)], nil
}

// inUTC gives a timestamp without zone the zone that it is taken to be in.
func (c *chunk) inUTC(value []byte) []byte {
	if n := len(value); n == 0 || value[n-1] < '0' || value[n-1] > '9' {
		return value // infinity
	}
	start := len(c.arena)
	c.arena = append(append(c.arena, value...), "+00"...)
	return c.arena[start:len(c.arena):len(c.arena)]
}

// fromText reads the server's text form, in place.
func fromText(oid uint32, value []byte) ([]byte, error) {
	switch oid {
	case oidBytea:
		if len(value) < 2 || value[0] != '\\' || value[1] != 'x' {
			return nil, errors.New("bytea is not in hexadecimal form")
		}
		n, err := hex.Decode(value[2:], value[2:])
		if err != nil {
			return nil, errors.New("bytea is not in hexadecimal form")
		}
		return value[2 : 2+n : 2+n], nil
	case oidBool:
		switch string(value) {
		case "t":
			return []byte("true"), nil
		case "f":
			return []byte("false"), nil
		}
		return nil, errors.New("boolean is neither t nor f")
	}
	return value, nil
}

func integer(b []byte) (int64, error) {
	switch len(b) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b))), nil
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(b)), nil
	}
	return 0, fmt.Errorf("integer of %d bytes", len(b))
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

// appendTimestamp writes the server's ISO form, with a zone in UTC: 2026-11-30 18:57:22.123456+00.
func appendTimestamp(dst []byte, us int64, zone bool) []byte {
	switch us {
	case 1<<63 - 1:
		return append(dst, "infinity"...)
	case -1 << 63:
		return append(dst, "-infinity"...)
	}
	dst = pgTime(us).AppendFormat(dst, "2006-01-02 15:04:05.999999")
	if zone {
		dst = append(dst, "+00"...)
	}
	return dst
}
