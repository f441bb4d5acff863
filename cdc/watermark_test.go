package cdc

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

func TestWatermark(t *testing.T) {
	type step struct {
		issue  uint64     // Issue(n) when not 0
		done   []uint64   // Done
		commit [2]uint64  // Commit(last, end) when end is not 0
		idle   outbox.LSN // Idle(n) when not 0
		want   outbox.LSN // Position afterwards
	}
	for name, steps := range map[string][]step{
		"contiguous prefix only": {
			{issue: 3, want: 100},
			{commit: [2]uint64{1, 110}, want: 100},
			{commit: [2]uint64{3, 130}, want: 100},
			{done: []uint64{3, 2}, want: 100},
			{done: []uint64{1}, want: 130},
		},
		"done before commit": {
			{issue: 2, done: []uint64{1, 2}, want: 100},
			{commit: [2]uint64{2, 120}, want: 120},
		},
		"a transaction counts as a whole": {
			{issue: 4},
			{commit: [2]uint64{4, 140}, done: []uint64{1, 2, 3}, want: 100},
			{done: []uint64{4}, want: 140},
		},
		"empty transaction counts at once": {
			{commit: [2]uint64{0, 110}, want: 110},
		},
		"empty transaction waits for what is before it": {
			{issue: 1, commit: [2]uint64{1, 110}, want: 100},
			{commit: [2]uint64{1, 120}, want: 100},
			{commit: [2]uint64{1, 130}, want: 100},
			{done: []uint64{1}, want: 130},
		},
		"idle is refused while an event is out": {
			{issue: 1, commit: [2]uint64{1, 110}, idle: 900, want: 100},
			{done: []uint64{1}, want: 110},
			{idle: 900, want: 900},
		},
		"idle is refused while an event of an open transaction is out": {
			{issue: 1, idle: 900, want: 100},
			{done: []uint64{1}, want: 100},
		},
		"never falls": {
			{idle: 900, want: 900},
			{commit: [2]uint64{0, 110}, want: 900},
			{idle: 200, want: 900},
		},
		"unknown and repeated numbers change nothing": {
			{issue: 2, commit: [2]uint64{2, 120}, done: []uint64{7, 1, 1, 0}, want: 100},
			{done: []uint64{2, 2}, want: 120},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatermark(100)
			for i, s := range steps {
				if s.issue != 0 {
					w.Issue(s.issue)
				}
				if s.commit[1] != 0 {
					w.Commit(s.commit[0], outbox.LSN(s.commit[1]), time.Time{})
				}
				if s.done != nil {
					w.Done(s.done)
				}
				if s.idle != 0 {
					w.Idle(s.idle)
				}
				if got, _ := w.Position(); s.want != 0 && got != s.want {
					t.Fatalf("step %d: position %d, want %d", i, got, s.want)
				}
			}
		})
	}
}

// TestWatermark_Model runs random schedules against a model that is too simple to be wrong.
func TestWatermark_Model(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		w := newWatermark(1)
		var ends []uint64 // last sequence number of each transaction; its end LSN is 10 times its index + 10
		done := map[uint64]bool{}
		var out []uint64
		var seq uint64
		for range 300 {
			switch rnd.IntN(3) {
			case 0: // a transaction of 0 to 200 events
				n := uint64(rnd.IntN(4))
				if rnd.IntN(10) == 0 {
					n = uint64(rnd.IntN(200))
				}
				for range n {
					seq++
					out = append(out, seq)
				}
				w.Issue(seq)
				ends = append(ends, seq)
				w.Commit(seq, outbox.LSN(10*len(ends)), time.Time{})
			default: // some are acknowledged, in any order
				rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
				k := 0
				if len(out) > 0 {
					k = rnd.IntN(len(out) + 1)
				}
				for _, s := range out[:k] {
					done[s] = true
				}
				w.Done(out[:k])
				out = append([]uint64(nil), out[k:]...)
			}
			want := outbox.LSN(1)
			next := uint64(1)
		model:
			for i, last := range ends {
				for ; next <= last; next++ {
					if !done[next] {
						break model
					}
				}
				want = outbox.LSN(10 * (i + 1))
			}
			if got, _ := w.Position(); got != want {
				t.Fatalf("seed %d: position %d, want %d after %d events", seed, got, want, seq)
			}
		}
	}
}

func TestWatermark_BoundedByEventsInFlight(t *testing.T) {
	w := newWatermark(0)
	w.Issue(1)
	for i := range 100_000 {
		w.Commit(1, outbox.LSN(i+1), time.Time{})
	}
	if n := len(w.pending); n != 1 {
		t.Errorf("%d entries for one open event and empty transactions, want 1", n)
	}
	w.Done([]uint64{1})
	for i := range 100_000 {
		seq := uint64(i + 2)
		w.Issue(seq)
		w.Commit(seq, outbox.LSN(200_000+i), time.Time{})
		w.Done([]uint64{seq})
	}
	if len(w.ring) != 64 || cap(w.pending) > 64 {
		t.Errorf("ring of %d words, %d entries kept, for one event in flight at a time", len(w.ring), cap(w.pending))
	}
}
