package sink

import (
	"context"
	"net"
	"sync"
)

// sockets knows every open connection, so that the end of a session is the end of its requests: kafka-go gives
// up waiting for a request when its context ends, but leaves it on the connection.
type sockets struct {
	dialer net.Dialer
	door   door

	mu     sync.Mutex // guards the fields below
	open   map[*socket]struct{}
	closed bool
	empty  chan struct{} // made by close; closed when open is empty
}

type socket struct {
	net.Conn
	tcp net.Conn // under what encrypts it
	all *sockets
}

func (s *sockets) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	k := &socket{Conn: c, tcp: c, all: s}
	if !s.add(k) {
		c.Close()
		return nil, errNetworkClosed
	}
	passed, err := s.door.pass(ctx, c, address)
	if err != nil {
		k.Close()
		return nil, err
	}
	k.Conn = passed
	return k, nil
}

// add reports false when no connection may be opened any more.
func (s *sockets) add(k *socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if s.open == nil {
		s.open = map[*socket]struct{}{}
	}
	s.open[k] = struct{}{}
	return true
}

// Close closes the connection. kafka-go's goroutine of it does so as its last act.
func (k *socket) Close() error {
	err := k.Conn.Close()
	s := k.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.open[k]; ok {
		delete(s.open, k)
		if s.empty != nil && len(s.open) == 0 {
			close(s.empty)
		}
	}
	return err
}

// close cuts every connection and waits until kafka-go has let go of them.
func (s *sockets) close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.empty == nil {
		s.empty = make(chan struct{})
		if len(s.open) == 0 {
			close(s.empty)
		}
	}
	for k := range s.open {
		k.tcp.Close()
	}
	empty := s.empty
	s.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
