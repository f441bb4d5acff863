package sink

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/outboxrelay/relay/outbox"
)

// maxHolds bounds the keys that can be held at a time. More than that is not a few bad events.
const maxHolds = 100_000

// holdKey names a topic and key, and the partition where a column of the event names it. It is a digest, so that a
// key costs the same however long it is.
type holdKey [16]byte

func newHoldKey(topic string, partition int32, key []byte) (k holdKey) {
	h := sha256.New()
	var lead [8]byte
	binary.BigEndian.PutUint32(lead[:], uint32(partition))
	binary.BigEndian.PutUint32(lead[4:], uint32(len(topic)))
	h.Write(lead[:])
	h.Write([]byte(topic))
	h.Write(key)
	copy(k[:], h.Sum(nil))
	return k
}

// holds are the keys whose events wait behind a dead letter. A key is added and removed by the goroutine that its
// events pass through: its lane's, or that of Accept where no topic can be had. So between a look and what follows
// from it nothing changes.
type holds struct {
	n atomic.Int64 // how many there are; with none nobody pays

	mu   sync.Mutex // guards the field below
	from map[holdKey]outbox.Position
}

// any reports whether a key is held at all.
func (h *holds) any() bool { return h.n.Load() > 0 }

// full reports whether no more keys can be held.
func (h *holds) full() bool { return h.n.Load() >= maxHolds }

// add holds a key from a position on.
func (h *holds) add(k holdKey, from outbox.Position) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.from == nil {
		h.from = map[holdKey]outbox.Position{}
	}
	if _, ok := h.from[k]; !ok {
		h.from[k] = from
	}
	h.n.Store(int64(len(h.from)))
}

func (h *holds) remove(k holdKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.from, k)
	h.n.Store(int64(len(h.from)))
}

// holds reports whether an event of the key, at that position, waits. One from before the letter does not: it was
// published, and comes again.
func (h *holds) holds(k holdKey, at outbox.Position) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	from, ok := h.from[k]
	return ok && at.Compare(from) > 0
}
