package faultproxy

import (
	"net"
	"sync"
	"time"
)

// dialTimeout bounds the connecting to a target, which is on this machine.
const dialTimeout = 3 * time.Second

// conn is one client's connection and its twin to the target.
type conn struct {
	proxy  *Proxy
	client *net.TCPConn
	addr   string        // of the target
	over   chan struct{} // closed when the connection is reset

	// mu guards the fields below.
	mu     sync.Mutex
	target *net.TCPConn // nil until connected
	closed [2]bool      // by direction: the sender's close was passed on
	gone   [2]bool      // by direction: the receiver takes no more
}

func newConn(p *Proxy, client *net.TCPConn, target string) *conn {
	return &conn{proxy: p, client: client, addr: target, over: make(chan struct{})}
}

// run connects to the target and passes both ways until both have ended.
func (c *conn) run() {
	twin, err := net.DialTimeout("tcp", c.addr, dialTimeout)
	if err != nil {
		c.reset()
		return
	}
	target := twin.(*net.TCPConn)
	if !c.setTarget(target) {
		return
	}
	var lanes sync.WaitGroup
	lanes.Go(func() { newLane(c, toTarget, c.client, target).run() })
	lanes.Go(func() { newLane(c, toClient, target, c.client).run() })
	lanes.Wait()
	c.client.Close()
	target.Close()
}

// setTarget reports false when the connection was reset while it was being made.
func (c *conn) setTarget(target *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver() {
		abort(target)
		return false
	}
	c.target = target
	return true
}

// receiverGone notes that bytes cannot be passed on. The sender learns it by a reset, but not before it has got
// all that the receiver had sent; and not at all if that way drops everything.
func (c *conn) receiverGone(d direction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone[d] = true
	if c.closed[d.opposite()] {
		c.resetLocked()
	}
}

// closePassed notes that a close was passed on.
func (c *conn) closePassed(d direction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed[d] = true
	if c.gone[d.opposite()] {
		c.resetLocked()
	}
}

// reset ends the connection by RST on both sides.
func (c *conn) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resetLocked()
}

func (c *conn) resetLocked() {
	if c.isOver() {
		return
	}
	close(c.over)
	abort(c.client)
	if c.target != nil {
		abort(c.target)
	}
}

// isOver reports whether the connection was reset.
func (c *conn) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}
