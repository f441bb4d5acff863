package outbox

import (
	"cmp"
	"encoding/hex"
	"fmt"
)

// Position says where in the committed history an event stands. Positions of one incarnation of one source
// rise strictly in commit order.
type Position struct {
	// Incarnation counts how often the source's slot was made anew. Positions of different incarnations
	// compare by it alone, for an LSN means nothing across a restored or replaced server.
	Incarnation uint32
	// LSN is the commit LSN of the event's transaction: the start of its commit record, known before the
	// transaction's first row arrives. It is not the row's own LSN and not the end LSN that gets confirmed.
	// Zero for an event that no transaction of the stream brought.
	LSN LSN
	// Ordinal counts from 1 every insert and every transactional message that the server sent in the
	// transaction, published or not.
	Ordinal uint32
}

// Compare returns -1, 0 or +1 as p stands before, at or after q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Incarnation, q.Incarnation), cmp.Compare(p.LSN, q.LSN), cmp.Compare(p.Ordinal, q.Ordinal))
}

// SourceLen is the length of a source's name: the first 8 bytes of a SHA-256, in hexadecimal.
const SourceLen = 16

// PositionLen is the length in bytes of a position's text form.
const PositionLen = SourceLen + 1 + 8 + 1 + 16 + 1 + 8

// AppendPosition appends the text form that the header relay_position carries:
// <source>-<incarnation>-<commit LSN>-<ordinal>, lower-case hexadecimal of width 16-8-16-8.
func AppendPosition(dst []byte, source string, p Position) []byte {
	dst = append(dst, source...)
	dst = append(dst, '-')
	dst = appendHex(dst, uint64(p.Incarnation), 8)
	dst = append(dst, '-')
	dst = appendHex(dst, uint64(p.LSN), 16)
	dst = append(dst, '-')
	return appendHex(dst, uint64(p.Ordinal), 8)
}

func appendHex(dst []byte, v uint64, width int) []byte {
	const digits = "0123456789abcdef"
	for i := width - 1; i >= 0; i-- {
		dst = append(dst, digits[v>>(4*i)&0xf])
	}
	return dst
}

// ParsePosition reads the text form back. Anything that AppendPosition would not have written is an error.
func ParsePosition(s string) (source string, p Position, err error) {
	bad := func() (string, Position, error) {
		return "", Position{}, fmt.Errorf("parse position %q: want 16-8-16-8 lower-case hexadecimal digits", s)
	}
	if len(s) != PositionLen || s[16] != '-' || s[25] != '-' || s[42] != '-' {
		return bad()
	}
	if _, ok := parseHex(s[:16]); !ok {
		return bad()
	}
	inc, ok1 := parseHex(s[17:25])
	lsn, ok2 := parseHex(s[26:42])
	ord, ok3 := parseHex(s[43:])
	if !ok1 || !ok2 || !ok3 {
		return bad()
	}
	return s[:16], Position{Incarnation: uint32(inc), LSN: LSN(lsn), Ordinal: uint32(ord)}, nil
}

func parseHex(s string) (v uint64, ok bool) {
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			v = v<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			v = v<<4 | uint64(c-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// SourceName shortens a digest to the name of a source.
func SourceName(digest [32]byte) string { return hex.EncodeToString(digest[:SourceLen/2]) }
