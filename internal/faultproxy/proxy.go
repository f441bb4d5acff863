package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Proxy passes connections on to a target. Safe for concurrent use.
type Proxy struct {
	listener *net.TCPListener
	done     chan struct{}  // closed by Close
	running  sync.WaitGroup // every goroutine of the proxy
	regime   atomic.Pointer[regime]
	accepted atomic.Uint64

	// mu guards the fields below and the replacing of regime.
	mu     sync.Mutex
	target string
	closed bool
	conns  map[*conn]struct{}
}

// New listens on a free port of 127.0.0.1 and passes connections on to target, a host:port that need not
// answer yet. A client whose target cannot be reached is reset.
func New(target string) (*Proxy, error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	p := &Proxy{listener: l, done: make(chan struct{}), target: target, conns: map[*conn]struct{}{}}
	p.regime.Store(&regime{changed: make(chan struct{})})
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set puts faults in force, for open connections too.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.regime.Swap(&regime{Faults: f, changed: make(chan struct{})})
	close(old.changed)
}

// Heal removes all faults. It is Set(Faults{}).
func (p *Proxy) Heal() { p.Set(Faults{}) }

// SetTarget sends later connections elsewhere. Open ones stay.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Reset resets every open connection on both sides (RST) and returns how many there were.
func (p *Proxy) Reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.reset()
	}
	return len(p.conns)
}

// Connections returns the number of open connections: those whose two directions have not both ended.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Accepted returns the number of connections accepted so far, refused ones included.
func (p *Proxy) Accepted() uint64 { return p.accepted.Load() }

// Close stops listening, resets what is open and returns when every goroutine has ended. Calls after the first
// do nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.done)
	for c := range p.conns {
		c.reset()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // the peer was gone before we took it, or there are no more files to be had
			select {
			case <-time.After(10 * time.Millisecond):
				continue
			case <-p.done:
				return
			}
		}
		p.accepted.Add(1)
		if p.regime.Load().Refuse {
			abort(client)
			continue
		}
		p.open(client)
	}
}

// open registers a connection, so that Reset and Close find it, and then connects it.
func (p *Proxy) open(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		abort(client)
		return
	}
	c := newConn(p, client, p.target)
	p.conns[c] = struct{}{}
	p.running.Go(func() {
		c.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	})
}

// abort closes a connection with a reset.
func abort(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}
