package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestStopsFrom(t *testing.T) {
	t.Parallel()
	over := func(ctx context.Context) bool { return ctx.Err() != nil }
	t.Run("second signal", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			signals := make(chan os.Signal)
			silenced := false
			soft, hard, release := stopsFrom(t.Context(), time.Hour, signals, func() { silenced = true })
			defer release()
			signals <- syscall.SIGTERM
			synctest.Wait()
			if !over(soft) || over(hard) || silenced {
				t.Fatalf("after the first: soft %v, hard %v, silenced %v", over(soft), over(hard), silenced)
			}
			var request *stopRequest
			if !errors.As(context.Cause(soft), &request) || request.Signal != syscall.SIGTERM {
				t.Errorf("cause of soft = %v", context.Cause(soft))
			}
			signals <- os.Interrupt
			synctest.Wait()
			if !over(hard) || !silenced {
				t.Fatalf("after the second: hard %v, silenced %v", over(hard), silenced)
			}
			if !errors.As(context.Cause(hard), &request) || request.Signal != os.Interrupt {
				t.Errorf("cause of hard = %v", context.Cause(hard))
			}
		})
	})
	t.Run("echo", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			signals := make(chan os.Signal)
			_, hard, release := stopsFrom(t.Context(), time.Hour, signals, func() {})
			defer release()
			signals <- syscall.SIGTERM
			time.Sleep(echo / 2)
			signals <- syscall.SIGTERM
			synctest.Wait()
			if over(hard) {
				t.Fatal("an echo of the first signal counts as a second")
			}
			time.Sleep(echo)
			signals <- syscall.SIGTERM
			synctest.Wait()
			if !over(hard) {
				t.Fatal("a second signal of the same kind does not count")
			}
		})
	})
	t.Run("drain timeout", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			signals := make(chan os.Signal)
			_, hard, release := stopsFrom(t.Context(), 20*time.Second, signals, func() {})
			defer release()
			time.Sleep(time.Hour) // the drain timeout does not run before a signal
			signals <- syscall.SIGTERM
			time.Sleep(19 * time.Second)
			synctest.Wait()
			if over(hard) {
				t.Fatal("hard is over before the drain timeout")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if !errors.Is(context.Cause(hard), errDrainTimeout) {
				t.Errorf("cause of hard = %v, want the drain timeout", context.Cause(hard))
			}
		})
	})
	t.Run("release", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
			silenced := false
			soft, hard, release := stopsFrom(t.Context(), time.Hour, nil, func() { silenced = true })
			release()
			if !over(soft) || !over(hard) || !silenced {
				t.Errorf("soft %v, hard %v, silenced %v", over(soft), over(hard), silenced)
			}
			release()
		})
	})
}

// child is this test binary, started again to be sent signals.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t *testing.T, environ ...string) *child {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), append(environ, "RELAY_TEST_CHILD=stops")...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // a child that still lingers goes
		_ = cmd.Wait()
	})
	c := &child{cmd: cmd, lines: bufio.NewScanner(stdout)}
	c.want(t, "ready")
	return c
}

// want reads the child's next line.
func (c *child) want(t *testing.T, line string) {
	t.Helper()
	if !c.lines.Scan() || c.lines.Text() != line {
		t.Fatalf("child says %q (%v), want %q", c.lines.Text(), c.lines.Err(), line)
	}
}

func (c *child) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// TestNotifyStops sends real signals to a real process.
func TestNotifyStops(t *testing.T) {
	t.Parallel()
	t.Run("clean", func(t *testing.T) {
		t.Parallel()
		c := startChild(t, "RELAY_TEST_DRAIN=1h", "RELAY_TEST_FINISH=1")
		c.signal(t, syscall.SIGTERM)
		c.want(t, "soft: stop requested by terminated")
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("child ended with %v", err)
		}
	})
	t.Run("second and third", func(t *testing.T) {
		t.Parallel()
		c := startChild(t, "RELAY_TEST_DRAIN=1h", "RELAY_TEST_LINGER=1")
		c.signal(t, syscall.SIGINT)
		c.want(t, "soft: stop requested by interrupt")
		c.signal(t, syscall.SIGTERM)
		c.want(t, "hard: stop requested by terminated")
		c.want(t, "lingering")
		c.signal(t, syscall.SIGTERM)
		err := c.cmd.Wait()
		if err == nil || !strings.Contains(err.Error(), "signal: terminated") {
			t.Errorf("child ended with %v, want by the signal", err)
		}
	})
	t.Run("drain timeout", func(t *testing.T) {
		t.Parallel()
		c := startChild(t, "RELAY_TEST_DRAIN=1ms")
		c.signal(t, syscall.SIGTERM)
		c.want(t, "soft: stop requested by terminated")
		c.want(t, "hard: "+errDrainTimeout.Error())
		var exit *exec.ExitError
		if err := c.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("child ended with %v", err)
		}
	})
}
