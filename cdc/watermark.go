package cdc

import (
	"math/bits"
	"sync"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// watermark turns acknowledgements in any order into the end LSN that may be confirmed: that of the last
// transaction before which nothing is missing.
//
// Invariants:
//   - a transaction counts once its Commit has come and every event up to its last one is done;
//   - one without events counts as soon as everything before it counts;
//   - the result never falls, and a hole stops it however much lies beyond;
//   - memory is bounded by the events in flight, not by the transactions that pass.
//
// Safe for concurrent use.
type watermark struct {
	// mu guards all fields below.
	mu sync.Mutex

	low  uint64   // every sequence number up to low is done
	high uint64   // highest number handed out
	ring []uint64 // done bits of low+1 .. high; bit of seq n is n mod (64*len)

	pending []pendingTx // committed, with an event that is not done; oldest first
	head    int         // index of the oldest in pending

	lsn   outbox.LSN // the result
	acked uint64     // events within the result, ever
	first func()     // called once, when the first event lies within the result; may be nil
}

// pendingTx is a run of transactions of which only the last has events: confirming end confirms them all.
type pendingTx struct {
	last       uint64     // last sequence number of the transaction, or of the one before when it has none
	end        outbox.LSN // end LSN
	commitTime time.Time
}

func newWatermark(from outbox.LSN) *watermark {
	return &watermark{lsn: from, ring: make([]uint64, 64)}
}

// Issue says that numbers up to seq are in use.
func (w *watermark) Issue(seq uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.high = seq
	need := int(w.high-w.low)/64 + 2
	if need <= len(w.ring) {
		return
	}
	size := len(w.ring)
	for size < need {
		size *= 2
	}
	ring := make([]uint64, size)
	for s := w.low + 1; s <= w.high; s++ {
		if w.ring[s/64%uint64(len(w.ring))]>>(s%64)&1 != 0 {
			ring[s/64%uint64(size)] |= 1 << (s % 64)
		}
	}
	w.ring = ring
}

// Commit says that a transaction, whose last event is number last, ended at end. A transaction without events
// passes the number of the last event before it.
func (w *watermark) Commit(last uint64, end outbox.LSN, commitTime time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last <= w.low && w.head == len(w.pending) {
		w.lsn = max(w.lsn, end)
		w.acked = w.low
		w.tellFirst()
		return
	}
	if n := len(w.pending); n > w.head && w.pending[n-1].last == last {
		w.pending[n-1].end = end // nothing but empty transactions since: one entry serves
		return
	}
	w.pending = append(w.pending, pendingTx{last, end, commitTime})
}

// Done says that events are acknowledged.
func (w *watermark) Done(seqs []uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := uint64(len(w.ring))
	for _, s := range seqs {
		if s > w.low && s <= w.high {
			w.ring[s/64%n] |= 1 << (s % 64)
		}
	}
	for w.low < w.high {
		next := w.low + 1
		word := &w.ring[next/64%n]
		run := uint64(bits.TrailingZeros64(^(*word >> (next % 64)))) // done bits from next on, in this word
		if room := 64 - next%64; run > room {
			run = room
		}
		if run == 0 {
			break
		}
		mask := ^uint64(0)
		if run < 64 {
			mask = (1<<run - 1) << (next % 64)
		}
		*word &^= mask
		w.low += run
	}
	for w.head < len(w.pending) && w.pending[w.head].last <= w.low {
		w.lsn = max(w.lsn, w.pending[w.head].end)
		w.acked = w.pending[w.head].last
		w.head++
	}
	w.tellFirst()
	if w.head == len(w.pending) {
		w.pending, w.head = w.pending[:0], 0
	} else if w.head > 1024 && w.head > len(w.pending)/2 {
		w.pending = append(w.pending[:0], w.pending[w.head:]...)
		w.head = 0
	}
}

func (w *watermark) tellFirst() {
	if w.acked > 0 && w.first != nil {
		w.first()
		w.first = nil
	}
}

// Idle offers the position of a keepalive. The caller vouches that no transaction is open and nothing received
// is unissued; the watermark adds that nothing issued is outstanding. Otherwise the offer is refused.
func (w *watermark) Idle(walEnd outbox.LSN) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.low != w.high || w.head != len(w.pending) {
		return false
	}
	w.lsn = max(w.lsn, walEnd)
	return true
}

// Position returns the LSN that may be confirmed and how many events lie before it.
func (w *watermark) Position() (lsn outbox.LSN, acked uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lsn, w.acked
}

// Pending returns the number of events issued and not done (counting all after the first hole), and the commit
// time of the oldest transaction among them, zero when there is none.
func (w *watermark) Pending() (events uint64, oldest time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.head < len(w.pending) {
		oldest = w.pending[w.head].commitTime
	}
	return w.high - w.low, oldest
}
