package sink

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

// scriptedLog is a partition in memory.
type scriptedLog struct {
	t       testing.TB
	batches []scriptedBatch
	start   int64 // of the log, after what was deleted
	next    int64
	reads   int
	fail    error // of the next read
}

type scriptedBatch struct {
	base, end int64
	raw       []byte
}

func (l *scriptedLog) bounds(context.Context) (start, end int64, err error) {
	return l.start, l.next, nil
}

func (l *scriptedLog) read(_ context.Context, offset int64, most int, buf []byte) (out []byte, err error) {
	out = buf[:0]
	l.reads++
	if err := l.fail; err != nil {
		l.fail = nil
		return nil, err
	}
	if offset < l.start || offset > l.next {
		return nil, errOutOfRange
	}
	for _, b := range l.batches {
		switch {
		case b.end <= offset:
		case len(out) > 0 && len(out)+len(b.raw) > most:
			return append(out, b.raw[:min(len(b.raw), max(0, most-len(out)))]...), nil // cut
		default:
			out = append(out, b.raw...)
		}
	}
	return out, nil
}

// append adds a batch.
func (l *scriptedLog) append(events ...outbox.Committed) {
	b := build(l.t, "t", 0, events...)
	b.seal(1, 1, 0)
	l.appendRaw(bytesOf(l.t, b)[sizeLen:])
}

func (l *scriptedLog) appendRaw(raw []byte) {
	binary.BigEndian.PutUint64(raw, uint64(l.next))
	end := l.next + int64(binary.BigEndian.Uint32(raw[23:])) + 1
	l.batches = append(l.batches, scriptedBatch{l.next, end, raw})
	l.next = end
}

// marker adds a control batch.
func (l *scriptedLog) marker() {
	b := build(l.t, "t", 0, someEvents(1)...)
	b.seal(1, 1, 0)
	raw := bytesOf(l.t, b)[sizeLen:]
	raw[22] |= attrControl
	recrc(raw)
	l.appendRaw(raw)
}

func recrc(raw []byte) { binary.BigEndian.PutUint32(raw[17:], crcOf(raw[21:])) }

// compact removes a batch and keeps the offsets of the others.
func (l *scriptedLog) compact(i int) { l.batches = slices.Delete(l.batches, i, i+1) }

// truncate deletes what is below an offset.
func (l *scriptedLog) truncate(offset int64) {
	l.start = offset
	l.batches = slices.DeleteFunc(l.batches, func(b scriptedBatch) bool { return b.end <= offset })
}

// walk returns the records as a reader would see them.
func (l *scriptedLog) walk() (out []published) {
	for _, b := range l.batches {
		s := recordSet{most: 1 << 20}
		s.load(b.raw)
		for {
			p, _, err := s.next()
			if err != nil {
				l.t.Fatal(err)
			}
			if p == nil {
				break
			}
			if p.offset >= l.start {
				c := *p
				c.id, c.key, c.value = slices.Clone(p.id), slices.Clone(p.key), slices.Clone(p.value)
				out = append(out, c)
			}
		}
	}
	return out
}

// laneEvent is the n-th event of a lane; its key is one of three.
func laneEvent(n int) outbox.Committed {
	return outbox.Committed{
		Position: outbox.Position{Incarnation: 1, LSN: outbox.LSN(n / 3 * 3), Ordinal: uint32(n%3 + 1)},
		ID:       fmt.Appendf(nil, "id-%d", n), AggregateID: fmt.Appendf(nil, "k%d", n%3), Payload: fmt.Appendf(nil, "%d", n),
	}
}

func laneEvents(from, to int) (events []outbox.Committed) {
	for n := from; n < to; n++ {
		events = append(events, laneEvent(n))
	}
	return events
}

// playedSession is what became of a session's events.
type playedSession struct {
	skipped, produced int
	undecided         bool
}

// play does with the log what a lane does: it resumes at floor, and appends what it does not find, size events a
// batch.
func play(t testing.TB, l *scriptedLog, floor outbox.LSN, events []outbox.Committed, size int) (s playedSession) {
	t.Helper()
	own := owner{source: testSource, most: 1 << 20}
	tl, err := (&cursor{log: l, owner: own}).findTail(t.Context(), outbox.Position{Incarnation: 1, LSN: floor})
	over := tl == nil
	if errors.Is(err, errUndecided) {
		s.undecided, err = true, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	for !over && len(events) > 0 {
		for raw := range build(t, "t", 0, events[0]).raw() {
			e := &published{}
			if !e.parseOwn(raw) {
				t.Fatal("our own record cannot be read")
			}
			got, err := tl.match(t.Context(), e)
			if err != nil {
				t.Fatal(err)
			}
			if got == ended {
				over, s.undecided = true, !tl.done()
				break
			}
			s.skipped++
			events = events[1:]
			over = tl.done()
		}
		if s.skipped%7 == 0 && !over {
			tl.rewind()
		}
	}
	s.produced = len(events)
	for len(events) > 0 {
		n := min(size, len(events))
		l.append(events[:n]...)
		events = events[n:]
	}
	return s
}

// others are records and batches that are not ours, or not live.
func (l *scriptedLog) others(rng *rand.Rand) {
	switch rng.IntN(4) {
	case 0:
		l.marker()
	case 1: // no relay's
		b := build(l.t, "t", 0, someEvents(1+rng.IntN(20))...)
		for i, c := range b.chunks { // another source: the same length
			b.chunks[i] = []byte(replaceAll(string(c), testSource, "ffffffffffffffff"))
		}
		b.seal(7, 1, 0)
		l.appendRaw(bytesOf(l.t, b)[sizeLen:])
	case 2: // a replay of ours
		e := laneEvent(rng.IntN(300))
		e.Headers = []byte(`{"relay_replax":"1"}`)
		b := build(l.t, "t", 0, e)
		for i, c := range b.chunks {
			b.chunks[i] = []byte(replaceAll(string(c), "relay_replax", "relay_replay"))
		}
		b.seal(1, 1, 0)
		l.appendRaw(bytesOf(l.t, b)[sizeLen:])
	}
}

// TestResume_Model plays random histories of sessions that are cut off anywhere, with others writing between: as
// long as nothing is taken out of the log every event is there once; and whatever is taken out, none is lost, and
// the last record of each key is its newest.
func TestResume_Model(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			l := &scriptedLog{t: t}
			harm := seed%2 == 1
			confirmed, published, undecided := 0, 0, 0
			for range 2 + rng.IntN(8) {
				for range rng.IntN(4) {
					l.others(rng)
				}
				l.marker()
				if harm && len(l.batches) > 2 {
					switch rng.IntN(4) {
					case 0:
						l.compact(rng.IntN(len(l.batches) - 1))
					case 1:
						l.truncate(l.start + rng.Int64N(l.next-l.start))
					}
				}
				from := confirmed / 3 * 3 // transactions are confirmed whole
				until := max(from, published+rng.IntN(120)-40)
				s := play(t, l, outbox.LSN(from), laneEvents(from, until), 1+rng.IntN(30))
				if s.undecided {
					undecided++
				}
				published = max(published, until)
				confirmed = from + rng.IntN(until-from+1)
			}
			from := confirmed / 3 * 3
			l.marker()
			play(t, l, outbox.LSN(from), laneEvents(from, published), 10)

			count, last := map[string]int{}, map[string]string{}
			for _, p := range l.walk() {
				if p.source != testSource {
					continue
				}
				count[string(p.id)]++
				last[string(p.key)] = string(p.value)
			}
			if !harm {
				if undecided > 0 {
					t.Errorf("%d checks were undecided", undecided)
				}
				for n := range published {
					if got := count[fmt.Sprintf("id-%d", n)]; got != 1 {
						t.Errorf("event %d is there %d times", n, got)
					}
				}
				return
			}
			for n := from; n < published; n++ {
				if count[fmt.Sprintf("id-%d", n)] == 0 {
					t.Errorf("event %d is lost", n)
				}
			}
			for n := max(from, published-3); n < published; n++ {
				if e := laneEvent(n); last[string(e.AggregateID)] != string(e.Payload) {
					t.Errorf("the last record of key %s is %s, want %s", e.AggregateID, last[string(e.AggregateID)], e.Payload)
				}
			}
		})
	}
}

// TestResume_Budget wants the search to give up, counted, when the log's end does not tell within its bytes.
func TestResume_Budget(t *testing.T) {
	l := &scriptedLog{t: t}
	l.append(laneEvents(0, 30)...)
	big := outbox.Committed{ID: []byte("x"), AggregateID: []byte("k"), Payload: make([]byte, 1<<20)}
	b := build(t, "t", 0, big)
	for i, c := range b.chunks {
		b.chunks[i] = []byte(replaceAll(string(c), testSource, "ffffffffffffffff"))
	}
	b.seal(7, 1, 0)
	raw := bytesOf(t, b)[sizeLen:]
	for range 70 {
		l.appendRaw(slices.Clone(raw))
	}
	s := play(t, l, 0, laneEvents(0, 40), 10)
	if !s.undecided || s.skipped != 0 || s.produced != 40 {
		t.Errorf("got %+v", s)
	}
	if l.reads > 70 {
		t.Errorf("%d reads of a megabyte each, the search may read 64", l.reads)
	}
	l.truncate(l.batches[40].base)
	if s := play(t, l, 0, laneEvents(0, 40), 10); s.undecided || s.skipped != 40 || s.produced != 0 {
		t.Errorf("after the new run: got %+v", s)
	}
}

// TestResume_Hole wants a check that misses a record to end there, and to repeat from there on, all of it.
func TestResume_Hole(t *testing.T) {
	l := &scriptedLog{t: t}
	for n := range 30 {
		l.append(laneEvent(n))
	}
	l.compact(20)
	l.marker()
	s := play(t, l, 10, laneEvents(9, 40), 5)
	if !s.undecided || s.skipped != 11 || s.produced != 20 {
		t.Errorf("got %+v, want events 9 to 19 found and 20 to 39 produced", s)
	}
}

// TestResume_HoleInBatch wants a batch that reaches beyond its last record, which compaction took out, to be passed.
func TestResume_HoleInBatch(t *testing.T) {
	l := &scriptedLog{t: t}
	b := build(t, "t", 0, laneEvents(0, 12)...)
	b.seal(1, 1, 0)
	raw := bytesOf(t, b)[sizeLen:]
	binary.BigEndian.PutUint32(raw[23:], 20)
	recrc(raw)
	l.appendRaw(raw)
	events := laneEvents(0, 40)
	events[12].Payload = make([]byte, resumeFetch) // so that the next batch comes with the next answer
	l.append(events[12:30]...)
	if s := play(t, l, 3, events[3:], 5); s.undecided || s.skipped != 27 || s.produced != 10 {
		t.Errorf("got %+v", s)
	}
}

// TestResume_SameOnlyIfSame wants nothing to be skipped that differs in position, id, key or value.
func TestResume_SameOnlyIfSame(t *testing.T) {
	for name, change := range map[string]func(*outbox.Committed){
		"id":         func(e *outbox.Committed) { e.ID = []byte("id-x") },
		"key":        func(e *outbox.Committed) { e.AggregateID = []byte("kx") },
		"value":      func(e *outbox.Committed) { e.Payload = []byte("x") },
		"null value": func(e *outbox.Committed) { e.Payload = nil },
		"ordinal":    func(e *outbox.Committed) { e.Position.Ordinal += 7 },
	} {
		t.Run(name, func(t *testing.T) {
			l := &scriptedLog{t: t}
			l.append(laneEvents(0, 30)...)
			events := laneEvents(9, 30)
			change(&events[5])
			s := play(t, l, 9, events, 5)
			if !s.undecided || s.skipped != 5 || s.produced != 16 {
				t.Errorf("got %+v, want the check to end at the changed event", s)
			}
		})
	}
	t.Run("empty and null", func(t *testing.T) {
		l := &scriptedLog{t: t}
		e := laneEvent(0)
		e.Payload = []byte{}
		l.append(e)
		e.Payload = nil
		if s := play(t, l, 0, []outbox.Committed{e}, 5); s.skipped != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// TestResume_Above wants an event beyond the last record to end the check, which is undecided when that record was
// not among what came again.
func TestResume_Above(t *testing.T) {
	l := &scriptedLog{t: t}
	l.append(laneEvents(0, 30)...)
	if s := play(t, l, 9, laneEvents(33, 40), 5); !s.undecided || s.skipped != 0 || s.produced != 7 {
		t.Errorf("got %+v", s)
	}
	l = &scriptedLog{t: t}
	l.append(laneEvents(0, 30)...)
	if s := play(t, l, 300, laneEvents(300, 310), 5); s.undecided || s.produced != 10 {
		t.Errorf("the last record below the floor: got %+v", s)
	}
}

// TestResume_Backlog compares positions without an LSN by their ordinal.
func TestResume_Backlog(t *testing.T) {
	l := &scriptedLog{t: t}
	event := func(n int) outbox.Committed {
		e := laneEvent(n)
		e.Position = outbox.Position{Incarnation: 2, Ordinal: uint32(n)}
		return e
	}
	var events []outbox.Committed
	for n := 1; n <= 50; n++ {
		events = append(events, event(n))
	}
	old := laneEvent(2000) // of the incarnation before
	l.append(old)
	l.append(events[:40]...)
	own := owner{source: testSource, most: 1 << 20}
	lane := &lane{sink: New(Config{ResumeLSN: 99, WindowBytes: 1 << 20}, nil, testSource, nil, silence{})}
	tl, err := (&cursor{log: l, owner: own}).findTail(t.Context(), lane.floor(events[30].Position))
	if err != nil || tl == nil {
		t.Fatalf("got %v, %v", tl, err)
	}
	found := 0
	for _, e := range events[30:] {
		for raw := range build(t, "t", 0, e).raw() {
			r := &published{}
			r.parseOwn(raw)
			if got, err := tl.match(t.Context(), r); err != nil || got == ended {
				break
			}
			found++
		}
	}
	if found != 10 || !tl.done() {
		t.Errorf("found %d of 10, done %v", found, tl.done())
	}
	if got := lane.floor(laneEvent(200).Position); got != (outbox.Position{Incarnation: 1, LSN: 99}) {
		t.Errorf("the floor of a stream is %v", got)
	}
}

// FuzzRecordSet wants bytes that are no batches to be an error, never a panic, a hang or a record.
func FuzzRecordSet(f *testing.F) {
	l := &scriptedLog{t: f}
	l.append(laneEvents(0, 3)...)
	l.marker()
	var all []byte
	for _, b := range l.batches {
		all = append(all, b.raw...)
	}
	f.Add(all, false)
	f.Add(all[:len(all)-5], true)
	f.Fuzz(func(t *testing.T, raw []byte, fix bool) {
		if fix && len(raw) > 21 {
			recrc(raw)
		}
		s := recordSet{most: 1 << 16}
		s.load(raw)
		for range 1 << 16 {
			if p, _, err := s.next(); err != nil || p == nil {
				break
			}
		}
		s.drop()
		for version := range int16(3) {
			_, _ = parseFetch(raw, 9+version)
		}
	})
}

func replaceAll(s, old, new string) string {
	return string(bytes.ReplaceAll([]byte(s), []byte(old), []byte(new)))
}

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }
