package sink

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/outboxrelay/relay/outbox"
)

// positionText is the text of a position, for one event after another. Positions of a transaction differ in their
// ordinal alone, and those of a session nearly always in no more than LSN and ordinal.
type positionText struct {
	of   outbox.Position
	text []byte // empty: there has been none
}

// Where a position's text has its parts, counted from its end.
const (
	lsnFrom     = outbox.PositionLen - 25
	ordinalFrom = outbox.PositionLen - 8
)

// set makes the text that of p and returns it. It holds until the next call.
func (t *positionText) set(source string, p outbox.Position) []byte {
	switch {
	case len(t.text) == 0 || p.Incarnation != t.of.Incarnation:
		t.text = outbox.AppendPosition(t.text[:0], source, p)
	case p.LSN != t.of.LSN:
		var raw [8]byte
		binary.BigEndian.PutUint64(raw[:], uint64(p.LSN))
		hex.Encode(t.text[lsnFrom:], raw[:])
		fallthrough
	default:
		var raw [4]byte
		binary.BigEndian.PutUint32(raw[:], p.Ordinal)
		hex.Encode(t.text[ordinalFrom:], raw[:])
	}
	t.of = p
	return t.text
}
