package main

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// patientConn reads in large pieces: while patient, it waits for 32 KiB or a millisecond rather than for one byte.
// The walsender makes one send a row, and waking up for each is what costs a receiver most.
type patientConn struct {
	*net.TCPConn
	patient bool // set by whoever reads, before it reads
	lowat   bool
	buf     []byte
	rest    []byte // of buf, not handed on yet
}

const (
	patientBytes = 32 << 10
	patientTime  = time.Millisecond
)

// wrapDial dials as before and leaves the connection in to.
func wrapDial(dial pgconn.DialFunc, to **patientConn) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return nil, errors.Join(errors.New("dial: not a TCP connection"), conn.Close())
		}
		*to = &patientConn{TCPConn: tcp, buf: make([]byte, 256<<10)}
		return *to, nil
	}
}

func (c *patientConn) Read(b []byte) (int, error) {
	if !c.patient {
		return c.TCPConn.Read(b)
	}
	if len(c.rest) == 0 {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *patientConn) fill() error {
	if !c.lowat {
		if err := c.setLowat(); err != nil {
			return err
		}
		c.lowat = true
	}
	for {
		// The first try of a read takes what is there; only its wait heeds the low-water mark. So a wait that
		// ends by its timer is followed by a read of whatever came.
		if err := c.SetReadDeadline(time.Now().Add(patientTime)); err != nil {
			return err
		}
		n, err := c.TCPConn.Read(c.buf)
		switch {
		case n > 0:
			c.rest = c.buf[:n]
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

func (c *patientConn) setLowat() error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) {
		setErr = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, patientBytes))
	}); err != nil {
		return err
	}
	return setErr
}
