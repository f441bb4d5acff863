// Package child runs a server as a child process that does not outlive its parent.
//
// On Linux the kernel signals the child when its parent dies, however it dies. That signal is tied to the
// thread that started the child, so one goroutine, locked to its thread, starts the child and stays until it
// has ended. Elsewhere a child is ended by its owner only, and a SIGKILL of the parent leaves it behind.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a running or ended child. Safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // how it ended; read after ended is closed
}

// Start starts cmd in a process group of its own, so that Ctrl-C reaches the parent alone, and arranges for
// death to be sent to it when this process dies. Give the command files for its output, not other writers:
// those would keep its end waiting for whoever inherited the pipe.
func Start(cmd *exec.Cmd, death syscall.Signal) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	setDeathSignal(cmd.SysProcAttr, death)

	p := &Process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %q: %w", cmd.Path, err)
	}
	return p, nil
}

// Run starts cmd and waits for its end. When ctx ends first the child is killed and ctx's cause returned.
func Run(ctx context.Context, cmd *exec.Cmd) error {
	p, err := Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		p.Signal(syscall.SIGKILL)
		<-p.ended
		return err
	}
	if p.err != nil {
		return fmt.Errorf("run %q: %w", cmd.Path, p.err)
	}
	return nil
}

// PID returns the child's process id, also after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the child has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Signal sends sig to the child. A child that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Wait blocks until the child has ended, however it ended, and then returns nil; or ctx's cause when ctx ends
// first.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// WaitFor blocks until the child has ended, for at most d, and reports whether it has.
func (p *Process) WaitFor(d time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(d):
		return false
	}
}

// Err says how the child ended: nil for exit status 0 and while it runs.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	return p.err
}
