package faultproxy

import (
	"errors"
	"io"
	"net"
	"time"
)

const (
	chunkSize = 32 << 10
	// queueLen bounds what waits in a lane: chunks, 16 MiB at most.
	queueLen = 512
)

// lane passes bytes one way.
type lane struct {
	conn     *conn
	dir      direction
	from, to *net.TCPConn
	queue    chan chunk

	// The writer's own.
	regime *regime   // the one that passed counts in
	passed int64     // bytes under it
	free   time.Time // when the bandwidth limit lets the next byte go
	dead   bool      // something was dropped
}

// chunk is bytes as they were read at one time, or the end of the stream: io.EOF for a close, else a reset.
type chunk struct {
	at    time.Time
	bytes []byte
	end   error
}

func newLane(c *conn, dir direction, from, to *net.TCPConn) *lane {
	return &lane{conn: c, dir: dir, from: from, to: to, queue: make(chan chunk, queueLen)}
}

// run returns when the stream has ended and its end was passed on or dropped, or the connection was reset.
func (l *lane) run() {
	l.conn.proxy.running.Go(l.read)
	for c := range l.queue {
		if !l.pass(c) {
			break
		}
	}
	for range l.queue {
		// The reader must not hang on a full queue; it ends with the connection.
	}
}

// read queues what arrives, and at last the end.
func (l *lane) read() {
	defer close(l.queue)
	for {
		buf := make([]byte, chunkSize)
		n, err := l.from.Read(buf)
		if n > 0 {
			l.queue <- chunk{at: time.Now(), bytes: buf[:n]}
		}
		if err != nil {
			l.queue <- chunk{at: time.Now(), end: err}
			return
		}
	}
}

// pass applies the faults to a chunk; false when the connection is over.
func (l *lane) pass(c chunk) bool {
	for {
		r, ok := l.await(c.at)
		if !ok {
			return false
		}
		path := r.path(l.dir)
		switch {
		case path.Drop || l.dead:
			l.dead = true
			return true
		case c.end != nil:
			return l.finish(c.end)
		}
		part := c.bytes
		if path.BytesPerSecond > 0 {
			part = part[:min(len(part), max(1, path.BytesPerSecond/100))] // a hundredth of a second's worth
		}
		cut := path.CutAfter > 0 && l.passed+int64(len(part)) >= path.CutAfter
		if cut {
			part = part[:path.CutAfter-l.passed]
		}
		if _, err := l.to.Write(part); err != nil {
			l.conn.receiverGone(l.dir)
			return true
		}
		l.passed += int64(len(part))
		if path.BytesPerSecond > 0 {
			l.free = later(l.free, time.Now()).Add(time.Duration(len(part)) * time.Second / time.Duration(path.BytesPerSecond))
		}
		if cut {
			l.conn.reset()
			return false
		}
		if c.bytes = c.bytes[len(part):]; len(c.bytes) == 0 {
			return true
		}
	}
}

// await blocks until the faults let something go on that was read at a time, and returns them; false when the
// connection is over.
func (l *lane) await(at time.Time) (*regime, bool) {
	for {
		r := l.conn.proxy.regime.Load()
		if r != l.regime {
			l.regime, l.passed, l.free = r, 0, time.Time{}
		}
		path := r.path(l.dir)
		wait := time.Until(later(at.Add(path.Delay), l.free))
		if path.Drop || !path.Pause && wait <= 0 {
			return r, !l.conn.isOver()
		}
		var due <-chan time.Time
		if !path.Pause {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-r.changed:
		case <-l.conn.over:
			return nil, false
		}
	}
}

// finish passes the end of the stream on.
func (l *lane) finish(end error) bool {
	if errors.Is(end, io.EOF) {
		l.to.CloseWrite() // fails only if the receiver is gone
		l.conn.closePassed(l.dir)
		return true
	}
	l.conn.reset()
	return false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
