package cdc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// reader owns the replication connection: it alone reads from it and writes to it. It decodes rows into chunks,
// hands full ones (or, when the socket is dry, whatever it has) to the dispatcher, and talks to the server on its
// own timer. When the dispatcher is stuck it stops reading, never talking.
type reader struct {
	tables    []Mapping
	oids      map[uint32]int // of the tables, when the session began; index in tables
	emitted   *messageDecoder
	types     typeMap
	conn      net.Conn // above TLS
	frontend  *pgproto3.Frontend
	wire      *wire
	watermark *watermark
	interval  time.Duration // between two status updates

	incarnation uint32
	seq         uint64             // last sequence number given
	relations   map[uint32]*layout // nil: a table that is not ours
	tx          begin
	inTx        bool
	split       bool // the sink has some of the open transaction's events
	ordinal     uint32

	cur  *chunk
	free chan *chunk
	full chan *chunk   // closed by the reader when it hands over no more
	wake chan struct{} // for waits that are not on the socket

	sent      int64     // when the server sent the last message, by its own clock
	heldUntil time.Time // while behind: when the chunk goes on at the latest; zero: nothing is held

	nextStatus   time.Time
	sentFlush    outbox.LSN
	received     outbox.LSN
	mustReply    bool
	lastPing     time.Time
	pings        int
	messages     uint64
	heard        bool // since the last service
	ended        bool // draining: what comes now is not taken
	handedLast   bool // draining: full is closed
	copyDoneSent bool

	looks  chan struct{} // holds one token: control is to look at the publication; nil: nobody does
	looked atomic.Uint64 // how many such looks found it in order
	asked  uint64        // how many were asked for

	flush     atomic.Uint64 // what may be said: set by the control loop once it is committed
	busy      atomic.Bool   // the dispatcher is in Accept
	waiting   atomic.Bool   // the reader has a chunk that it could not hand on
	stopping  atomic.Int32  // see the constants
	lastHeard atomic.Int64  // Unix nanoseconds of the last message
	counts    readerCounts
}

const (
	keepReading  int32 = iota
	drainReader        // hand on what is complete, then only talk
	finishReader       // say the last position, end the copy
	abortReader        // leave at once
)

// readerCounts are read by Stats while the reader writes them.
type readerCounts struct {
	transactions, events, bytes, skipped, received atomic.Uint64
}

var (
	errAborted     = errors.New("cdc: reader stopped")
	errServerStops = &state.Error{State: state.DatabaseUnreachable, Reason: "PostgreSQL is shutting down"}
	errStreamEnded = &state.Error{State: state.DatabaseUnreachable, Reason: "PostgreSQL ended the stream"}
)

// stop moves the reader on; it never moves back. Safe for concurrent use.
func (r *reader) stop(how int32) {
	for {
		now := r.stopping.Load()
		if now >= how {
			return
		}
		if r.stopping.CompareAndSwap(now, how) {
			break
		}
	}
	r.poke()
}

// poke makes the reader look at its flags wherever it waits. Safe for concurrent use.
func (r *reader) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
	r.wire.Wake()
}

// run reads until something ends it: nil after a finish, else what went wrong.
func (r *reader) run() error {
	defer func() {
		if !r.handedLast {
			close(r.full)
		}
	}()
	for {
		msg, err := r.frontend.Receive()
		if err != nil {
			if r.copyDoneSent || errors.Is(err, errAborted) {
				return nil
			}
			return fmt.Errorf("read stream: %w", err)
		}
		switch m := msg.(type) {
		case *pgproto3.CopyData:
			err = r.copyData(m.Data)
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.CopyDone, *pgproto3.CommandComplete:
			if r.copyDoneSent {
				return nil
			}
			err = errStreamEnded
		}
		if err != nil {
			if errors.Is(err, errAborted) {
				return nil
			}
			return err
		}
	}
}

func (r *reader) copyData(data []byte) error {
	r.heard = true
	if r.messages++; r.messages%4096 == 0 { // a stream of rows that are not ours never fills a chunk and may never run dry
		if err := r.service(); err != nil {
			return err
		}
	}
	c := cursor{b: data}
	switch kind := c.u8(); kind {
	case 'w':
		c.u64() // start of the data
		end := outbox.LSN(c.u64())
		r.sent = int64(c.u64())
		if c.short || len(c.b) == 0 {
			return fmt.Errorf("decode WAL data: %w", errTruncated)
		}
		r.received = max(r.received, end)
		if r.ended {
			return nil // it will come again
		}
		r.counts.bytes.Add(uint64(len(data)))
		return r.message(c.b[0], c.b[1:])
	case 'k':
		end := outbox.LSN(c.u64())
		c.u64()
		reply := c.u8() != 0
		if c.short {
			return fmt.Errorf("decode keepalive: %w", errTruncated)
		}
		r.received = max(r.received, end)
		return r.keepalive(end, reply)
	default:
		return fmt.Errorf("decode stream: unknown message %q", kind)
	}
}

func (r *reader) keepalive(end outbox.LSN, reply bool) error {
	if !r.inTx && len(r.cur.events) == 0 && r.stopping.Load() == keepReading {
		r.watermark.Idle(end)
	}
	if !reply {
		return nil
	}
	// A server that stops asks for an answer again as soon as it has one, until everything is confirmed. It must
	// not wait for a broker: the stream lets go.
	if now := time.Now(); now.Sub(r.lastPing) < 200*time.Millisecond {
		r.pings++
	} else {
		r.pings = 1
	}
	r.lastPing = time.Now()
	if r.pings >= 4 && r.stopping.Load() == keepReading {
		return errServerStops
	}
	r.mustReply = true
	return r.service()
}

// handOver gives the chunk to the dispatcher and waits for as long as that takes, talking to the server meanwhile.
func (r *reader) handOver() error {
	for {
		if err := r.service(); err != nil {
			return err
		}
		if r.ended || r.tryHandOver() {
			return nil
		}
		r.waiting.Store(true)
		if r.tryHandOver() {
			return nil
		}
		r.pause()
	}
}

// pause waits, where the wait is not on the socket, until the reader is poked or a status update is due.
func (r *reader) pause() {
	t := time.NewTimer(time.Until(r.nextStatus))
	defer t.Stop()
	select {
	case <-r.wake:
	case <-t.C:
	}
}

// awaitLook waits until control has looked at the publication, talking to the server meanwhile.
func (r *reader) awaitLook() error {
	if r.looks == nil {
		return nil
	}
	r.asked++
	r.looks <- struct{}{} // the last token was taken before the last look was waited for
	for r.looked.Load() < r.asked {
		if err := r.service(); err != nil || r.ended {
			return err
		}
		r.pause()
	}
	return nil
}

// tryHandOver gives the chunk to the dispatcher if it can take one.
func (r *reader) tryHandOver() bool {
	r.watermark.Issue(r.seq)
	split := r.inTx && r.cur.complete < len(r.cur.events) // once it is handed over the chunk is the dispatcher's
	select {
	case r.full <- r.cur:
		// There is one more chunk than the dispatcher and the queue can hold, so one is free.
		r.split = r.split || split
		r.cur, r.heldUntil = <-r.free, time.Time{}
		r.waiting.Store(false)
		return true
	default:
		return false
	}
}

// beforeWait implements waiter.
func (r *reader) beforeWait(hot bool) (until time.Time, held bool, err error) {
	if err := r.service(); err != nil {
		return time.Time{}, false, err
	}
	if len(r.cur.events) == 0 || r.ended {
		return r.nextStatus, false, nil
	}
	if until := r.holdUntil(); !until.IsZero() {
		if r.nextStatus.Before(until) {
			until = r.nextStatus
		}
		return until, true, nil
	}
	// While rows flow a chunk may grow as long as the sink has work; when they stop nothing is held back.
	if (!hot || !r.busy.Load()) && !r.tryHandOver() {
		r.waiting.Store(true)
		r.tryHandOver() // the dispatcher may have looked before waiting was set
	}
	return r.nextStatus, false, nil
}

const (
	behindAfter = 100 * time.Millisecond
	behindHold  = 10 * time.Millisecond
)

// holdUntil returns until when the chunk waits to become full; zero: it does not wait. It does while what comes is late
// already, by the server's own clock. Where CPU is short rows come slowly, and handing on each few of them, with a
// request to the broker of their own, would take what CPU is left.
func (r *reader) holdUntil() time.Time {
	if pgTime(r.sent).Sub(r.tx.commitTime) < behindAfter {
		return time.Time{}
	}
	now := time.Now()
	if r.heldUntil.IsZero() {
		r.heldUntil = now.Add(behindHold)
	}
	if !now.Before(r.heldUntil) {
		return time.Time{}
	}
	return r.heldUntil
}

// service does what is due: leave, drain, talk.
func (r *reader) service() error {
	now := time.Now()
	if r.heard {
		r.heard = false
		r.lastHeard.Store(now.UnixNano())
	}
	switch r.stopping.Load() {
	case abortReader:
		return errAborted
	case drainReader, finishReader:
		// A transaction of which the sink has a part is read to its end, or that part would come again: it can be
		// confirmed only as a whole.
		if !r.split || r.ended {
			r.handLast()
		}
	}
	r.counts.received.Store(uint64(r.received))
	flush := outbox.LSN(r.flush.Load())
	if !r.copyDoneSent && (r.mustReply || flush > r.sentFlush || !now.Before(r.nextStatus)) {
		if err := r.sendStatus(now, flush); err != nil {
			return err
		}
	}
	if r.copyDoneSent && !now.Before(r.nextStatus) {
		return errAborted // the server had its chance to answer
	}
	if r.stopping.Load() == finishReader && !r.copyDoneSent {
		r.copyDoneSent, r.nextStatus = true, now.Add(2*time.Second)
		if err := r.write([]byte{'c', 0, 0, 0, 4}); err != nil {
			return err
		}
	}
	return nil
}

// handLast hands over the events of complete transactions, as soon as the dispatcher can take them, and no more
// after.
func (r *reader) handLast() {
	if r.handedLast {
		return
	}
	if !r.ended {
		r.ended = true
		r.cur.events = r.cur.events[:r.cur.complete]
	}
	if len(r.cur.events) > 0 && !r.tryHandOver() {
		r.waiting.Store(true)
		if !r.tryHandOver() { // the dispatcher may have looked before waiting was set
			return
		}
	}
	r.handedLast = true
	close(r.full)
}

// sendStatus tells the server what was received and what is confirmed.
func (r *reader) sendStatus(now time.Time, flush outbox.LSN) error {
	if flush == 0 {
		return errors.New("send status: no position is confirmed yet") // 0 would be read as "everything written"
	}
	msg := make([]byte, 0, 39)
	msg = append(msg, 'd', 0, 0, 0, 38, 'r') // CopyData of a standby status update
	msg = binary.BigEndian.AppendUint64(msg, uint64(max(r.received, flush)))
	msg = binary.BigEndian.AppendUint64(msg, uint64(flush))
	msg = binary.BigEndian.AppendUint64(msg, uint64(flush))
	msg = binary.BigEndian.AppendUint64(msg, uint64(now.UnixMicro()-pgEpoch))
	msg = append(msg, 0)
	if err := r.write(msg); err != nil {
		return err
	}
	r.sentFlush, r.mustReply = flush, false
	r.nextStatus = now.Add(r.interval)
	return nil
}

func (r *reader) write(msg []byte) error {
	if err := r.conn.SetWriteDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return fmt.Errorf("write to stream: %w", err)
	}
	if _, err := r.conn.Write(msg); err != nil {
		return fmt.Errorf("write to stream: %w", err)
	}
	return nil
}

// close says goodbye, so that the server's log stays clean, and closes the connection. For after run.
func (r *reader) close() {
	_ = r.write([]byte{'X', 0, 0, 0, 4})
	_ = r.conn.Close()
}

// dispatch feeds the sink until the reader hands over no more. It runs in its own goroutine, for Accept may block
// for as long as the broker likes.
func (r *reader) dispatch(ctx context.Context, sink Sink) error {
	for c := range r.full {
		r.busy.Store(true)
		err := sink.Accept(ctx, c.firstSeq, c.events)
		r.busy.Store(false)
		if err != nil {
			return err
		}
		c.reset()
		r.free <- c
		if r.waiting.Load() {
			r.poke()
		}
	}
	return nil
}
