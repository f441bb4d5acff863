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

	mu     sync.Mutex // guards the fields below
	open   map[*socket]struct{}
	closed bool
	empty  chan struct{} // made by close; closed when open is empty
}

type socket struct {
	net.Conn
	all *sockets
}

func (s *sockets) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := s.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return nil, errNetworkClosed
	}
	if s.open == nil {
		s.open = map[*socket]struct{}{}
	}
	k := &socket{Conn: c, all: s}
	s.open[k] = struct{}{}
	return k, nil
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
		k.Conn.Close()
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
