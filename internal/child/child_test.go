package child_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/child"
)

func TestStart(t *testing.T) {
	t.Parallel()
	p, err := child.Start(exec.Command("sleep", "60"), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Running() || p.Err() != nil {
		t.Errorf("running %v, error %v; want true, none", p.Running(), p.Err())
	}
	if got, err := syscall.Getpgid(p.PID()); err != nil || got != p.PID() {
		t.Errorf("process group %d, error %v; want its own, %d", got, err, p.PID())
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := p.Wait(ctx); !errors.Is(err, cause) {
		t.Errorf("wait: got error %v, want %v", err, cause)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if !p.WaitFor(10 * time.Second) {
		t.Fatal("does not end")
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Errorf("wait after the end: %v", err)
	}
	if exit := (*exec.ExitError)(nil); p.Running() || !errors.As(p.Err(), &exit) {
		t.Errorf("running %v, error %v; want false and how it ended", p.Running(), p.Err())
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal after the end: %v", err)
	}

	if _, err := child.Start(exec.Command("/no/such/program"), syscall.SIGKILL); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	if err := child.Run(t.Context(), exec.Command("true")); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := child.Run(t.Context(), exec.Command("false")); !errors.As(err, &exit) {
		t.Errorf("got error %v, want an exit status", err)
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, cause)
	defer cancel()
	start := time.Now()
	cmd := exec.Command("sleep", "60")
	if err := child.Run(ctx, cmd); !errors.Is(err, cause) {
		t.Errorf("got error %v, want %v", err, cause)
	}
	if took := time.Since(start); took > 10*time.Second || cmd.ProcessState == nil {
		t.Errorf("returned after %v with state %v, want at once and ended", took, cmd.ProcessState)
	}
}

func TestWithPort(t *testing.T) {
	t.Parallel()
	var tried []int
	err := child.WithPort(0, func(port int) error {
		tried = append(tried, port)
		if len(tried) < 3 {
			return child.ErrPort
		}
		return nil
	})
	if err != nil || len(tried) != 3 {
		t.Errorf("tried %v, error %v; want 3 ports", tried, err)
	}
	for _, port := range tried {
		if port < 1024 || port >= 32768 {
			t.Errorf("port %d is privileged or may be taken by a client", port)
		}
	}
	// Not one of those: whoever looks for a port at the same time may be listening there for a moment.
	l, err := net.Listen("tcp4", child.Address(0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if port := l.Addr().(*net.TCPAddr).Port; child.PortFree(port) {
		t.Errorf("port %d is free though somebody listens", port)
	}

	for port, want := range map[int]int{0: 3, 12345: 1} {
		calls := 0
		err := child.WithPort(port, func(int) error { calls++; return child.ErrPort })
		if !errors.Is(err, child.ErrPort) || calls != want {
			t.Errorf("port %d: %d calls, error %v; want %d, %v", port, calls, err, want, child.ErrPort)
		}
	}
	other := errors.New("other")
	calls := 0
	if err := child.WithPort(0, func(int) error { calls++; return other }); !errors.Is(err, other) || calls != 1 {
		t.Errorf("%d calls, error %v; want 1, %v", calls, err, other)
	}
}

func TestTempDir(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	mine, err := child.NewTempDir("x-")
	if err != nil {
		t.Fatal(err)
	}
	// What a dead owner leaves: a lock file that nobody has locked. A directory without one is not ours.
	abandoned, foreign := filepath.Join(tmp, "x-1"), filepath.Join(tmp, "x-2")
	for _, dir := range []string{abandoned, foreign} {
		if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	locks, err := filepath.Glob(filepath.Join(mine.Path, "*.lock"))
	if err != nil || len(locks) != 1 {
		t.Fatalf("lock files %q, error %v; want one", locks, err)
	}
	if err := os.WriteFile(filepath.Join(abandoned, filepath.Base(locks[0])), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	other, err := child.NewTempDir("x-")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{mine.Path: true, other.Path: true, foreign: true, abandoned: false} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: error %v; want it there: %v", strings.TrimPrefix(path, tmp), err, want)
		}
	}
	for _, d := range []*child.TempDir{mine, other} {
		if err := d.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after Remove: got error %v, want %v", err, os.ErrNotExist)
		}
	}
}
