package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outboxrelay/relay/internal/child"
)

// Config says how to run a broker.
type Config struct {
	// Dir holds the broker's data, configuration and log. Empty: a new temporary one, removed by Close. One
	// that holds a broker's data already is used as it is.
	Dir string

	// Port is the clients' port on 127.0.0.1; 0 picks a free one. A broker keeps its port through restarts.
	Port int

	// HeapMB is the JVM's heap in MiB. Default 256.
	HeapMB int

	// JVM are further options of the JVM. The default is a choice for short lives:
	// -XX:TieredStopAtLevel=1 -XX:+UseSerialGC. A benchmark wants its own.
	JVM []string

	// Settings are broker properties by name; they win over the defaults.
	Settings map[string]string
}

// Broker is an Apache Kafka broker on 127.0.0.1, one node that is its own controller. Its methods may be called
// from several goroutines; those that change whether it runs wait for each other.
type Broker struct {
	cfg        Config
	jars       string
	dir        string
	temp       *child.TempDir // dir, if we made it
	port       int
	controller int
	proc       atomic.Pointer[child.Process] // nil: never started

	// mu makes starting and stopping one thing at a time; it is held while the broker does so.
	mu     sync.Mutex
	closed bool
}

// patience is how long a broker may take for what it should do at once.
const patience = 10 * time.Second

// ErrClosed is returned by methods of a broker after Close.
var ErrClosed = errors.New("kafkaserver: broker is closed")

// Start fetches the broker's jars if they are not in the cache, and returns once the broker serves: it answers
// and every partition has a leader. When ctx ends before, nothing is left running; ctx does not bound the
// broker's life.
func Start(ctx context.Context, cfg Config) (_ *Broker, err error) {
	if cfg.HeapMB == 0 {
		cfg.HeapMB = 256
	}
	if cfg.JVM == nil {
		cfg.JVM = []string{"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}
	}
	b := &Broker{cfg: cfg, dir: cfg.Dir}
	if b.jars, err = fetch(ctx); err != nil {
		return nil, fmt.Errorf("start Kafka: %w", err)
	}
	if b.dir == "" {
		if b.temp, err = child.NewTempDir("relay-kafka-"); err != nil {
			return nil, fmt.Errorf("start Kafka: %w", err)
		}
		b.dir = b.temp.Path
	} else if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, fmt.Errorf("start Kafka: make directory: %w", err)
	}
	err = child.WithPort(cfg.Port, func(port int) error {
		b.port = port
		return child.WithPort(0, func(port int) error {
			b.controller = port
			return b.start(ctx)
		})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start Kafka: %w", err), b.remove())
	}
	return b, nil
}

// Brokers returns the addresses that clients connect to first.
func (b *Broker) Brokers() []string { return []string{child.Address(b.port)} }

// Port returns the clients' port on 127.0.0.1.
func (b *Broker) Port() int { return b.port }

// LogPath returns the file that the broker's log is appended to.
func (b *Broker) LogPath() string { return filepath.Join(b.dir, "server.log") }

// PID returns the broker's process id, 0 when it does not run.
func (b *Broker) PID() int {
	if p := b.running(); p != nil {
		return p.PID()
	}
	return 0
}

func (b *Broker) running() *child.Process {
	if p := b.proc.Load(); p != nil && p.Running() {
		return p
	}
	return nil
}

// Stop shuts the broker down and waits until it has. When ctx ends first its cause is returned and the broker
// goes on stopping. One that does not run is no error. A paused broker is continued.
func (b *Broker) Stop(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stop(ctx)
}

func (b *Broker) stop(ctx context.Context) error {
	if err := errors.Join(b.signal(syscall.SIGTERM), b.signal(syscall.SIGCONT)); err != nil {
		return fmt.Errorf("stop Kafka: %w", err)
	}
	if p := b.running(); p != nil {
		if err := p.Wait(ctx); err != nil {
			return fmt.Errorf("wait for Kafka to stop: %w", err)
		}
	}
	return nil
}

// Kill ends the broker by SIGKILL and waits until it is gone. Restart brings it back.
func (b *Broker) Kill() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kill()
}

func (b *Broker) kill() error {
	if err := b.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill Kafka: %w", err)
	}
	if p := b.running(); p != nil && !p.WaitFor(patience) {
		return fmt.Errorf("kill Kafka: process %d does not end", p.PID())
	}
	return nil
}

// Pause freezes the broker by SIGSTOP: its sockets stay open and nobody answers. Continue wakes it. One that
// does not run is no error.
func (b *Broker) Pause() error { return b.signal(syscall.SIGSTOP) }

// Continue wakes a paused broker. One that is awake, or does not run, is no error.
func (b *Broker) Continue() error { return b.signal(syscall.SIGCONT) }

func (b *Broker) signal(sig syscall.Signal) error {
	if p := b.running(); p != nil {
		return p.Signal(sig)
	}
	return nil
}

// Restart stops the broker if it runs and starts it again on its port. After Kill it only starts it.
func (b *Broker) Restart(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	if err := b.stop(ctx); err != nil {
		return err
	}
	if err := b.start(ctx); err != nil {
		return fmt.Errorf("restart Kafka: %w", err)
	}
	return nil
}

// Close ends the broker and removes what Start made. A broker in a caller's directory is shut down properly if
// it manages within ten seconds. Calls after the first do nothing.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	if b.temp == nil { // somebody may want the data
		if err := b.signal(syscall.SIGTERM); err != nil {
			return err
		}
		b.signal(syscall.SIGCONT) // if it fails, patience runs out
		if p := b.running(); p != nil {
			p.WaitFor(patience)
		}
	}
	return errors.Join(b.kill(), b.remove())
}

func (b *Broker) remove() error {
	if b.temp == nil {
		return nil
	}
	return b.temp.Remove()
}
