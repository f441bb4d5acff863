package cdc

import (
	"errors"
	"net"
	"testing"
	"time"
)

// testReader is a reader without a connection: messages go in by hand.
func testReader(t *testing.T) *reader {
	t.Helper()
	known, err := newLayout(must(decodeRelation(relationBody())), native(), typeMap{})
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{
		tables: []Mapping{*native()}, watermark: newWatermark(1), relations: map[uint32]*layout{4711: known},
		cur: newChunk(), free: make(chan *chunk, chunkCount), full: make(chan *chunk, 1), wake: make(chan struct{}, 1),
	}
	for range chunkCount - 1 {
		r.free <- newChunk()
	}
	return r
}

func (r *reader) feed(t *testing.T, kind byte, body wireMessage) {
	t.Helper()
	if err := r.message(kind, body); err != nil {
		t.Fatal(err)
	}
}

// TestReader_KeepaliveWithinTransaction: the server sends keepalives between the rows of a large transaction,
// whose positions lie beyond its commit. Rows that are still to come must not be confirmed by one.
func TestReader_KeepaliveWithinTransaction(t *testing.T) {
	const beyond = 0x16B374E000
	position := func(r *reader) uint64 {
		lsn, _ := r.watermark.Position()
		return uint64(lsn)
	}
	keepalive := func(r *reader) uint64 {
		t.Helper()
		if err := r.keepalive(beyond, false); err != nil {
			t.Fatal(err)
		}
		return position(r)
	}
	r := testReader(t)
	r.feed(t, kindBegin, beginBody())
	if got := keepalive(r); got != 1 {
		t.Errorf("after begin: %X confirmed", got)
	}
	r.feed(t, kindInsert, insertBody())
	if got := keepalive(r); got != 1 {
		t.Errorf("with a row gathered: %X confirmed", got)
	}
	if !r.tryHandOver() {
		t.Fatal("not handed over")
	}
	r.watermark.Done([]uint64{1})
	if got := keepalive(r); got != 1 {
		t.Errorf("with the first row acknowledged and the transaction open: %X confirmed", got)
	}
	r.feed(t, kindCommit, commitBody())
	if got := position(r); got != 0x16B374D880 {
		t.Errorf("after commit: %X, want its end LSN", got)
	}
	if got := keepalive(r); got != beyond {
		t.Errorf("idle: %X, want the keepalive's position", got)
	}
}

// TestReader_Order: messages out of the protocol's order end the stream.
func TestReader_Order(t *testing.T) {
	for name, feed := range map[string]func(r *reader) error{
		"insert outside a transaction": func(r *reader) error { return r.message(kindInsert, insertBody()) },
		"commit outside a transaction": func(r *reader) error { return r.message(kindCommit, commitBody()) },
		"begin within a transaction": func(r *reader) error {
			_ = r.message(kindBegin, beginBody())
			return r.message(kindBegin, beginBody())
		},
		"insert into a table that was not described": func(r *reader) error {
			clear(r.relations)
			_ = r.message(kindBegin, beginBody())
			return r.message(kindInsert, insertBody())
		},
		"stream start":       func(r *reader) error { return r.message('S', nil) },
		"unknown":            func(r *reader) error { return r.message('?', nil) },
		"unknown copy data":  func(r *reader) error { return r.copyData([]byte("?")) },
		"empty copy data":    func(r *reader) error { return r.copyData(nil) },
		"empty WAL data":     func(r *reader) error { return r.copyData(append([]byte("w"), make([]byte, 24)...)) },
		"truncated WAL data": func(r *reader) error { return r.copyData([]byte("w123")) },
		"short keepalive":    func(r *reader) error { return r.copyData([]byte("k123")) },
	} {
		if err := feed(testReader(t)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestReader_DrainEndsWithATransaction: a stop that comes while the sink has part of a transaction waits for the
// rest, so that what was published can be confirmed; one that comes before takes nothing of it.
func TestReader_DrainEndsWithATransaction(t *testing.T) {
	wal := func(kind byte, body wireMessage) []byte {
		return append(append(wireMessage{'w'}.u64(0).u64(0).u64(0), kind), body...)
	}
	for _, split := range []bool{true, false} {
		r := testReader(t)
		r.nextStatus = time.Now().Add(time.Hour) // there is no server to talk to
		var got []uint64
		take := func() { // as dispatch does
			t.Helper()
			c := <-r.full
			for i := range c.events {
				got = append(got, c.firstSeq+uint64(i))
			}
			c.reset()
			r.free <- c
		}
		send := func(kind byte, body wireMessage) {
			t.Helper()
			if err := r.copyData(wal(kind, body)); err != nil {
				t.Fatal(err)
			}
			if err := r.service(); err != nil {
				t.Fatal(err)
			}
		}
		send(kindBegin, beginBody())
		send(kindInsert, insertBody())
		if split && !r.tryHandOver() {
			t.Fatal("not handed over")
		}
		r.stopping.Store(drainReader)
		send(kindInsert, insertBody())
		send(kindCommit, commitBody())
		send(kindBegin, beginBody())
		send(kindInsert, insertBody())
		want := 0
		if split {
			want = 2
			take() // only now is there room for the second part
			if err := r.service(); err != nil {
				t.Fatal(err)
			}
			take()
		}
		if _, more := <-r.full; more || len(got) != want {
			t.Errorf("split %v: %v handed over, want %d events; more: %v", split, got, want, more)
		}
		r.watermark.Done(got)
		if lsn, _ := r.watermark.Position(); split && lsn != 0x16B374D880 {
			t.Errorf("%v acknowledged, %X confirmed, want the transaction's end", got, lsn)
		}
	}
}

// TestReader_Hold: rows that come late already are gathered, so that a machine short of CPU does not pay for each few of
// them; rows that come at once are handed on at once; nothing is held for long, nor beyond the next status update.
func TestReader_Hold(t *testing.T) {
	committed := must(decodeBegin(beginBody())).commitTime.UnixMicro() - pgEpoch
	gathered := func(late time.Duration) *reader {
		r := testReader(t)
		r.nextStatus = time.Now().Add(time.Hour)
		r.feed(t, kindBegin, beginBody())
		r.feed(t, kindInsert, insertBody())
		r.sent = committed + late.Microseconds()
		return r
	}
	wait := func(r *reader) (until time.Time, held bool) {
		t.Helper()
		until, held, err := r.beforeWait(false)
		if err != nil {
			t.Fatal(err)
		}
		return until, held
	}

	r := gathered(behindAfter - time.Millisecond)
	if _, held := wait(r); held || len(r.full) != 1 {
		t.Error("a row that is not late was held")
	}
	r = gathered(behindAfter)
	until, held := wait(r)
	if !held || len(r.full) != 0 {
		t.Fatal("a late row was not held")
	}
	if again, _ := wait(r); !again.Equal(until) {
		t.Errorf("waiting again moved the end from %v to %v", until, again)
	}
	r.nextStatus = until.Add(-time.Millisecond)
	if early, _ := wait(r); !early.Equal(r.nextStatus) {
		t.Errorf("held until %v, beyond the next status update at %v", early, r.nextStatus)
	}
	r.nextStatus, r.heldUntil = until.Add(time.Hour), time.Now()
	if _, held := wait(r); held || len(r.full) != 1 {
		t.Error("the row was held for longer")
	}
	if !r.heldUntil.IsZero() {
		t.Error("the next chunk has the last one's time")
	}
}

// TestReader_ChunksAreBounded: a transaction passes in pieces of bounded size, however large it is, and goes on only as
// fast as they are taken.
func TestReader_ChunksAreBounded(t *testing.T) {
	r := testReader(t)
	r.nextStatus = time.Now().Add(time.Hour) // there is no server to talk to
	const rows = 10 * chunkEvents
	sizes := make(chan int, rows)
	go func() { // as dispatch does
		for c := range r.full {
			sizes <- len(c.events)
			if cap(c.arena) > 2*chunkBytes {
				t.Errorf("a chunk of small rows keeps %d bytes", cap(c.arena))
			}
			c.reset()
			r.free <- c
			select {
			case r.wake <- struct{}{}:
			default:
			}
		}
		close(sizes)
	}()
	r.feed(t, kindBegin, beginBody())
	for range rows {
		r.feed(t, kindInsert, insertBody())
	}
	r.feed(t, kindCommit, commitBody())
	r.stopping.Store(drainReader)
	for !r.handedLast {
		if err := r.service(); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for n := range sizes {
		if total += n; n > chunkEvents {
			t.Errorf("%d rows at once", n)
		}
	}
	if total != rows {
		t.Errorf("%d rows of %d", total, rows)
	}
}

// written counts what is written to it.
type written struct {
	net.Conn
	bytes int
}

func (w *written) Write(b []byte) (int, error)      { w.bytes += len(b); return len(b), nil }
func (w *written) SetWriteDeadline(time.Time) error { return nil }

// TestReader_NeverConfirmsZero: servers and clients read a flush position of 0 as everything. A reader that knows none
// says nothing.
func TestReader_NeverConfirmsZero(t *testing.T) {
	r, conn := testReader(t), &written{}
	r.conn = conn
	if err := r.service(); err == nil || conn.bytes > 0 {
		t.Errorf("%v, with %d bytes written", err, conn.bytes)
	}
	r.flush.Store(42)
	if err := r.service(); err != nil || conn.bytes == 0 {
		t.Errorf("%v, with %d bytes written", err, conn.bytes)
	}
}

// TestReader_ServerThatStops asks for an answer again as soon as it has one, and would do so until everything is
// confirmed: the reader lets go. One that asks now and then is answered.
func TestReader_ServerThatStops(t *testing.T) {
	r, conn := testReader(t), &written{}
	r.conn = conn
	r.flush.Store(42)
	for range 10 {
		r.lastPing = time.Now().Add(-time.Second)
		if err := r.keepalive(42, true); err != nil {
			t.Fatalf("asked once a second: %v", err)
		}
	}
	if conn.bytes < 10*39 {
		t.Errorf("10 answers have %d bytes", conn.bytes)
	}
	var err error
	for n := 0; err == nil && n < 10; n++ {
		err = r.keepalive(42, true)
	}
	if !errors.Is(err, errServerStops) {
		t.Errorf("asked without a pause: %v", err)
	}
}
