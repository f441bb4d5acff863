package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/outboxrelay/relay/internal/child"
)

// process is a running system.
type process struct {
	*child.Process
	name  string
	log   *os.File // its standard error
	ready *os.File // its standard output
}

// patience is how long a system may take to stop before it is killed.
const patience = 10 * time.Second

// launch starts a system as a process of its own. Its standard output can be read from ready; what else it says is
// kept for the error message.
func launch(name string, cmd *exec.Cmd) (*process, error) {
	log, err := os.CreateTemp("", "relay-bench-log-")
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	if err := os.Remove(log.Name()); err != nil { // it stays readable through the descriptor
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	ready, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close())
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, log
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), log.Close(), ready.Close())
	}
	return &process{Process: p, name: name, log: log, ready: ready}, nil
}

// stop ends the process, in good order if it manages.
func (p *process) stop() error {
	defer p.log.Close()
	defer p.ready.Close()
	err := p.Signal(syscall.SIGTERM)
	if !p.WaitFor(patience) {
		err = errors.Join(err, p.Signal(syscall.SIGKILL))
		p.WaitFor(patience)
	}
	return err
}

// guard returns a context that ends when ctx does, when the time is over, or when the process ends, and says which.
func (p *process) guard(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s took longer than %v", p.name, limit))
	ctx, end := context.WithCancelCause(ctx)
	go func() { // ends with ctx
		if p.Wait(ctx) == nil {
			end(fmt.Errorf("%s ended: %v\n%s", p.name, p.Err(), p.tail()))
		}
	}()
	return ctx, func() { end(nil); cancel() }
}

// tail returns the last of what the process said.
func (p *process) tail() string {
	const most = 3000
	size, err := p.log.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	text := make([]byte, min(size, most))
	n, _ := p.log.ReadAt(text, size-int64(len(text))) // what could be read is all there is to show
	return string(text[:n])
}

// usage is the CPU time of everything a run needs, at one moment.
type usage struct {
	at                                         time.Time
	system, walsender, broker, bench, machines time.Duration
}

// meter reads the CPU times of one run's processes.
type meter struct {
	system, walsender, broker int // process ids, 0: there is none
}

func (m meter) read() (usage, error) {
	u := usage{at: time.Now()}
	var errs []error
	for _, p := range []struct {
		pid int
		to  *time.Duration
	}{{m.system, &u.system}, {m.walsender, &u.walsender}, {m.broker, &u.broker}, {os.Getpid(), &u.bench}} {
		if p.pid != 0 {
			var err error
			*p.to, err = cpuOf(p.pid)
			errs = append(errs, err)
		}
	}
	var err error
	u.machines, err = machineCPU()
	return u, errors.Join(append(errs, err)...)
}

// cpuSeconds is what one run took from the machine.
type cpuSeconds struct {
	System    float64 `json:"system"`
	Walsender float64 `json:"walsender"`
	Broker    float64 `json:"broker"`
	Consumer  float64 `json:"consumer"`
	Others    float64 `json:"others_cores"` // of processes that are not the bench's: cores, not seconds
}

// since returns the difference of two readings.
func (u usage) since(v usage) cpuSeconds {
	c := cpuSeconds{
		System: (u.system - v.system).Seconds(), Walsender: (u.walsender - v.walsender).Seconds(),
		Broker: (u.broker - v.broker).Seconds(), Consumer: (u.bench - v.bench).Seconds(),
	}
	others := (u.machines - v.machines).Seconds() - c.System - c.Walsender - c.Broker - c.Consumer
	c.Others = max(0, divide(others, u.at.Sub(v.at).Seconds()))
	return c
}
