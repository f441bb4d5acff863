package cdc

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is the socket below a replication connection, under TLS and pgconn. It does three things that a plain
// net.Conn cannot:
//
//   - It calls waiter.beforeWait in the reading goroutine each time nothing is left to read, so that the owner
//     of the connection can hand on what it has gathered and answer the server, without a second goroutine.
//   - It ends a wait on a timer or on Wake without breaking the stream: what lies above sees no error.
//   - While rows flow it waits for 32 KiB or a millisecond instead of for one byte (SO_RCVLOWAT). The walsender
//     makes one send per row; waking up for each costs more than decoding it. When the flow ends it waits for
//     one byte again, so that a single event is not late.
//
// Before Attach it behaves as the connection it wraps.
type wire struct {
	net.Conn
	raw    syscall.RawConn // nil: not a socket, no low-water mark
	waiter waiter
	err    error // what the waiter ended the reading with

	buf  []byte
	r, w int

	woken atomic.Bool

	flow  flow
	lowat int // SO_RCVLOWAT as set
}

// waiter is the owner of the connection.
type waiter interface {
	// beforeWait is called when no byte is left to read. It returns when to be called again at the latest, or
	// the error that the reading ends with. hot says that rows are flowing and more will come presently; held, that
	// until then a few bytes are not worth waking up for.
	beforeWait(hot bool) (until time.Time, held bool, err error)
}

const (
	wireBuffer = 256 << 10
	flowLowat  = 32 << 10
	flowWait   = time.Millisecond
)

func newWire(nc net.Conn) *wire {
	w := &wire{Conn: nc, lowat: 1}
	if sc, ok := nc.(*net.TCPConn); ok {
		w.raw, _ = sc.SyscallConn()
	}
	return w
}

// Attach hands the waits to the owner. From here on only Wake and Close may be called from other goroutines, and
// nobody sets read deadlines.
func (c *wire) Attach(o waiter) {
	c.buf = make([]byte, wireBuffer)
	c.flow.since = time.Now()
	c.waiter = o
}

// Wake makes the owner's beforeWait run soon. Safe for concurrent use.
func (c *wire) Wake() {
	c.woken.Store(true)
	_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
}

func (c *wire) Read(b []byte) (int, error) {
	if c.waiter == nil {
		return c.Conn.Read(b)
	}
	if c.r == c.w {
		n, err := c.fill()
		if n == 0 {
			return 0, err
		}
		c.r, c.w = 0, n
	}
	n := copy(b, c.buf[c.r:c.w])
	c.r += n
	return n, nil
}

// fill reads what there is, waiting until there is something.
func (c *wire) fill() (n int, err error) {
	for {
		if c.raw == nil {
			if err := c.prepareWait(0); err != nil {
				return 0, err
			}
			n, err = c.Conn.Read(c.buf)
		} else {
			n, err = c.rawFill()
		}
		switch {
		case c.err != nil:
			return 0, c.err
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.flow.timedOut = true
			// A non-blocking read ignores SO_RCVLOWAT: what came less than 32 KiB is read by the next turn.
			if err := c.Conn.SetReadDeadline(time.Time{}); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, err
		default:
			c.flow.bytes += n
			return n, nil
		}
	}
}

// rawFill reads from the socket; when it is dry it lets the owner act, then parks in the runtime's poller.
func (c *wire) rawFill() (n int, err error) {
	var readErr error
	err = c.raw.Read(func(fd uintptr) bool {
		for {
			if n, readErr = syscall.Read(int(fd), c.buf); readErr != syscall.EINTR {
				break
			}
		}
		if readErr != syscall.EAGAIN {
			return true
		}
		readErr = nil
		c.err = c.prepareWait(fd)
		return c.err != nil
	})
	switch {
	case err != nil:
		return 0, err
	case readErr != nil:
		return 0, os.NewSyscallError("read", readErr)
	case n == 0 && c.err == nil:
		return 0, io.EOF
	}
	return max(n, 0), nil
}

// prepareWait lets the owner act and sets how long, and for how much, to wait.
func (c *wire) prepareWait(fd uintptr) error {
	hot := c.raw != nil && c.flow.hot(time.Now())
	until, held, err := c.waiter.beforeWait(hot)
	if err != nil {
		return err
	}
	want := 1
	if hot || held {
		want = flowLowat
	}
	if c.raw != nil && want != c.lowat && setLowat(fd, want) == nil {
		c.lowat = want
	}
	if hot && !held {
		if soon := time.Now().Add(flowWait); until.IsZero() || soon.Before(until) {
			until = soon
		}
	}
	if err := c.Conn.SetReadDeadline(until); err != nil {
		return err
	}
	// Wake stores before it sets its deadline, this sets its deadline before it looks: one of both is seen.
	if c.woken.Swap(false) {
		return c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
	return nil
}

// flow decides whether rows are flowing: from 4 KiB a millisecond on, until a whole wait brought less.
type flow struct {
	on       bool
	timedOut bool // the last wait ended by its timer
	bytes    int  // read since the last decision
	window   int  // read since since
	since    time.Time
}

const flowMin = 4 << 10 // bytes a millisecond

func (f *flow) hot(now time.Time) bool {
	defer func() { f.bytes, f.timedOut = 0, false }()
	if f.on {
		if f.timedOut && f.bytes < flowMin {
			f.on, f.window, f.since = false, 0, now
		}
		return f.on
	}
	f.window += f.bytes
	if d := now.Sub(f.since); d >= time.Millisecond {
		f.on = int64(f.window)*int64(time.Millisecond) >= flowMin*int64(d)
		f.window, f.since = 0, now
	}
	return f.on
}
