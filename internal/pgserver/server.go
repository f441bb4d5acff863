package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/outboxrelay/relay/internal/child"
)

// Server is a PostgreSQL server on 127.0.0.1. Its methods may be called from several goroutines; those that
// change whether it runs wait for each other.
type Server struct {
	cfg     Config
	cluster *cluster
	port    int

	proc atomic.Pointer[child.Process] // nil: never started

	// mu makes starting and stopping one thing at a time; it is held while the server does so.
	mu     sync.Mutex
	closed bool
}

// patience is how long a server may take for what it should do at once.
const patience = 10 * time.Second

// Mode is a way to ask a server to stop.
type Mode syscall.Signal

const (
	Smart     = Mode(syscall.SIGTERM) // waits until every client has left
	Fast      = Mode(syscall.SIGINT)  // ends sessions, flushes, waits for walsenders
	Immediate = Mode(syscall.SIGQUIT) // ends at once, recovers at the next start
)

// ErrClosed is returned by methods of a server after Close.
var ErrClosed = errors.New("pgserver: server is closed")

// Start makes the cluster if it has to and returns once the server accepts connections. When ctx ends before,
// nothing is left running; ctx does not bound the server's life.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	c, err := makeCluster(ctx, &cfg)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s := &Server{cfg: cfg, cluster: c}
	err = child.WithPort(cfg.Port, func(port int) error {
		s.port = port
		return s.start(ctx)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w", err), c.remove())
	}
	return s, nil
}

// Port returns the TCP port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Major returns the server's major version.
func (s *Server) Major() int { return s.cluster.inst.major }

// DataDir returns the server's own data directory, the one with PG_VERSION.
func (s *Server) DataDir() string { return s.cluster.data }

// LogPath returns the file that the server's log is appended to.
func (s *Server) LogPath() string { return s.cluster.logPath() }

// DSN returns a connection URL. An empty user is the superuser, with the password if the server has one; for
// others the caller adds what it needs.
func (s *Server) DSN(database, user string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(user),
		Host:     child.Address(s.port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	if user == "" || user == Superuser {
		u.User = url.User(Superuser)
		if s.cfg.Password != "" {
			u.User = url.UserPassword(Superuser, s.cfg.Password)
		}
	}
	return u.String()
}

// PID returns the postmaster's process id, 0 when the server does not run.
func (s *Server) PID() int {
	if p := s.running(); p != nil {
		return p.PID()
	}
	return 0
}

// running returns the process if it runs.
func (s *Server) running() *child.Process {
	if p := s.proc.Load(); p != nil && p.Running() {
		return p
	}
	return nil
}

// Stop asks the server to stop and waits until it has. When ctx ends first its cause is returned and the
// server goes on stopping. One that does not run is no error. A paused server is continued.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(ctx, mode)
}

func (s *Server) stop(ctx context.Context, mode Mode) error {
	p, err := s.askToStop(mode)
	if p == nil || err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("wait for PostgreSQL to stop: %w", err)
	}
	return nil
}

// askToStop returns the process that has been asked, nil if none runs.
func (s *Server) askToStop(mode Mode) (*child.Process, error) {
	p := s.running()
	if p == nil {
		return nil, nil
	}
	if err := s.Continue(); err != nil {
		return nil, err
	}
	if err := p.Signal(syscall.Signal(mode)); err != nil {
		return nil, fmt.Errorf("stop PostgreSQL: %w", err)
	}
	return p, nil
}

// Kill ends the postmaster by SIGKILL and waits until its backends have noticed and gone, and nothing but the
// data directory is left. Restart brings the server back.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.kill(); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	return nil
}

func (s *Server) kill() error {
	p := s.running()
	if p == nil {
		return nil
	}
	orphans, err := backends(p.PID())
	if err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !p.WaitFor(patience) {
		return fmt.Errorf("process %d does not end", p.PID())
	}
	// Paused ones would not notice.
	if err := errors.Join(signal(syscall.SIGCONT, orphans...), awaitGone(orphans)); err != nil {
		return err
	}
	return s.cluster.removeSegment()
}

// Restart stops the server in mode Fast if it runs and starts it again on its port.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if err := s.stop(ctx, Fast); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return nil
}

// Close ends the server and removes what Start made. A cluster in a caller's directory is shut down properly
// if it manages within ten seconds. Calls after the first do nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	modes := []Mode{Fast, Immediate}
	if s.cluster.temp != nil {
		modes = modes[1:] // nobody will read the data again
	}
	for _, mode := range modes {
		if p, err := s.askToStop(mode); err == nil && (p == nil || p.WaitFor(patience)) {
			break
		}
	}
	// Kill what is left; and if somebody else has killed the postmaster, its segment is still there.
	return errors.Join(s.kill(), s.cluster.removeSegment(), s.cluster.remove())
}
