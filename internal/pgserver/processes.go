package pgserver

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Pause freezes the server by SIGSTOP and returns when every process of it has stopped: its sockets stay open
// and nobody answers. Continue wakes it. A server that does not run is no error.
func (s *Server) Pause() error {
	p := s.running()
	if p == nil {
		return nil
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		all, err := processes()
		if err != nil {
			return fmt.Errorf("pause PostgreSQL: %w", err)
		}
		awake := 0
		for _, q := range all {
			if (q.pid == p.PID() || q.parent == p.PID()) && !q.stopped {
				awake++
				if err := signal(syscall.SIGSTOP, q.pid); err != nil {
					return fmt.Errorf("pause PostgreSQL: %w", err)
				}
			}
		}
		if awake == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("pause PostgreSQL: %d processes do not stop", awake)
		}
	}
}

// Continue wakes a paused server. One that is awake is no error.
func (s *Server) Continue() error {
	p := s.running()
	if p == nil {
		return nil
	}
	pids, err := backends(p.PID())
	if err == nil {
		err = errors.Join(signal(syscall.SIGCONT, pids...), p.Signal(syscall.SIGCONT))
	}
	if err != nil {
		return fmt.Errorf("continue PostgreSQL: %w", err)
	}
	return nil
}

// signal sends sig to processes; those that have ended are no error.
func signal(sig syscall.Signal, pids ...int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("send %v to process %d: %w", sig, pid, err)
		}
	}
	return nil
}

// process is one line of the machine's process table.
type process struct {
	pid, parent int
	stopped     bool // by SIGSTOP
}

// backends lists a postmaster's children. They are in sessions of their own, so that no process group holds
// them together.
func backends(postmaster int) ([]int, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, p := range all {
		if p.parent == postmaster {
			pids = append(pids, p.pid)
		}
	}
	return pids, nil
}

// awaitGone waits until none of the processes runs any more.
func awaitGone(pids []int) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		all, err := processes()
		if err != nil {
			return err
		}
		pids = slices.DeleteFunc(pids, func(pid int) bool {
			return !slices.ContainsFunc(all, func(p process) bool { return p.pid == pid })
		})
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", pids)
		}
	}
}
