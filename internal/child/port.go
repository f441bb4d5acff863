package child

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort returns a port on 127.0.0.1 that nobody listens on at this moment. It stays below the range from
// which kernels take the local ports of outgoing connections, so a server can be stopped and find its port
// free when it comes back.
func FreePort() (int, error) {
	const low, high = 10240, 32768
	for range 100 {
		port := low + rand.IntN(high-low)
		if PortFree(port) {
			return port, nil
		}
	}
	return 0, errors.New("find a free port: none of 100 tried is free")
}

// PortFree reports whether port on 127.0.0.1 can be listened on.
func PortFree(port int) bool {
	l, err := net.Listen("tcp4", Address(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// Address returns host and port of a loopback server.
func Address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// ErrPort is wrapped by errors of servers whose port was taken by somebody else.
var ErrPort = errors.New("port is taken")

// WithPort calls start with port or, when port is 0, with a free one; then it tries again, up to three times,
// if somebody else took the port in between, which start says with ErrPort.
func WithPort(port int, start func(port int) error) error {
	if port != 0 {
		return start(port)
	}
	var err error
	for range 3 {
		var free int
		if free, err = FreePort(); err != nil {
			return err
		}
		if err = start(free); !errors.Is(err, ErrPort) {
			return err
		}
	}
	return fmt.Errorf("start on a free port: %w", err)
}
