package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outboxrelay/relay/internal/child"
)

// start runs postgres on s.port and waits until it says that it is ready. The caller holds mu or has the
// server to itself.
func (s *Server) start(ctx context.Context) error {
	if err := s.cluster.writeSettings(s.cfg.settingsFile(s.port)); err != nil {
		return err
	}
	log, err := s.cluster.openLog()
	if err != nil {
		return err
	}
	defer log.Close()

	// Not through pg_ctl: a child of ours can be signalled, awaited and ended with us. SIGQUIT makes the
	// postmaster take its backends with it.
	p, err := child.Start(s.cluster.command("postgres", log, "-D", s.cluster.data), syscall.SIGQUIT)
	if err != nil {
		return err
	}
	s.proc.Store(p)

	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.cluster.ready(p.PID()) {
		if !p.Running() {
			if !child.PortFree(s.port) {
				return fmt.Errorf("postgres on port %d: %w", s.port, child.ErrPort)
			}
			return fmt.Errorf("postgres ended while starting: %v\n%s", p.Err(), s.cluster.logTail())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), s.kill())
		}
	}
	return nil
}

// ready reports whether the postmaster with this id has written that it accepts connections.
func (c *cluster) ready(pid int) bool {
	lines := c.postmasterFile()
	return len(lines) >= 8 && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

// postmasterFile returns the lines of postmaster.pid: pid, data directory, start time, port, socket directory,
// listen address, shared memory key and id, status. None when there is no such file.
func (c *cluster) postmasterFile() []string {
	text, err := os.ReadFile(filepath.Join(c.data, "postmaster.pid"))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}
