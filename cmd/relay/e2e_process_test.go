package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// relayProcess is this test binary, started again as relay. It can be killed, and knows nothing of the test.
type relayProcess struct {
	t      *testing.T
	proc   *procs.Process
	admin  string // address of its admin listener
	stdout string // files
	stderr string
}

// startRelay runs "relay run" with these variables and nothing else in its environment. It is killed at the end of
// the test if it still runs; when the test has failed, the end of its log is shown.
func startRelay(t *testing.T, environ ...string) *relayProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return startBinary(t, self, environ...)
}

// shippedRelay builds the relay as users get it. A test binary is larger by all that it tests with.
func shippedRelay(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build relay: %v\n%s", err, out)
	}
	return path
}

// startBinary is startRelay of another binary than this one.
func startBinary(t *testing.T, binary string, environ ...string) *relayProcess {
	t.Helper()
	port, err := procs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &relayProcess{t: t, admin: procs.Address(port), stdout: filepath.Join(dir, "stdout"), stderr: filepath.Join(dir, "stderr")}
	cmd := exec.Command(binary, "run", "--admin-listen", p.admin)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "RELAY_TEST_CHILD=relay"}, environ...)
	cmd.Dir = dir
	for path, to := range map[string]*io.Writer{p.stdout: &cmd.Stdout, p.stderr: &cmd.Stderr} {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		*to = f
	}
	if p.proc, err = procs.Start(cmd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		for _, disaster := range []string{"DATA RACE", "panic:", "fatal error:"} {
			if strings.Contains(p.log(), disaster) {
				t.Errorf("relay, process %d: %s", p.proc.PID(), disaster)
			}
		}
		if t.Failed() {
			t.Logf("relay, process %d, said at the end:\n%s", p.proc.PID(), tail(p.log(), 3000))
		}
	})
	return p
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// kill ends the process by SIGKILL and waits until it is gone.
func (p *relayProcess) kill() {
	p.t.Helper()
	if err := p.proc.Signal(syscall.SIGKILL); err != nil {
		p.t.Error(err)
	}
	if !p.proc.WaitFor(10 * time.Second) {
		p.t.Errorf("relay, process %d, survives SIGKILL", p.proc.PID())
	}
}

func (p *relayProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.proc.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// awaitExit waits for the process to end by itself and returns its exit code.
func (p *relayProcess) awaitExit(within time.Duration) int {
	p.t.Helper()
	if !p.proc.WaitFor(within) {
		p.t.Fatalf("relay does not end within %v: %+v", within, p.status())
	}
	var exit *exec.ExitError
	switch err := p.proc.Err(); {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.ExitCode()
	default:
		p.t.Fatal(err)
		return -1
	}
}

// stop asks for a clean stop and fails the test if it is none.
func (p *relayProcess) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.awaitExit(30 * time.Second); code != exitOK {
		p.t.Fatalf("relay ends with exit code %d after SIGTERM:\n%s", code, tail(p.log(), 3000))
	}
}

// log returns what the process has written to its standard error.
func (p *relayProcess) log() string {
	p.t.Helper()
	b, err := os.ReadFile(p.stderr)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// get fetches a page of the admin listener.
func (p *relayProcess) get(path string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin+path, nil)
	if err != nil {
		return 0, nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

// ready asks /readyz; zeros when nobody answers.
func (p *relayProcess) ready() (code int, status state.Status) {
	code, body, err := p.get("/readyz")
	if err != nil || json.Unmarshal(body, &status) != nil {
		return 0, state.Status{}
	}
	return code, status
}

// status asks /status.json; zeros when nobody answers.
func (p *relayProcess) status() (r Report) {
	if _, body, err := p.get("/status.json"); err == nil {
		if json.Unmarshal(body, &r) != nil {
			return Report{}
		}
	}
	return r
}

// awaitState waits for a state in /readyz, whose code must fit it.
func (p *relayProcess) awaitState(want state.State, within time.Duration) state.Status {
	p.t.Helper()
	var status state.Status
	testenv.Eventually(p.t, within, func() (bool, string) {
		p.mustRun()
		var code int
		code, status = p.ready()
		if status.State == want && (code == http.StatusOK) != want.Ready() {
			p.t.Fatalf("/readyz answers %d in state %q", code, want)
		}
		return status.State == want, fmt.Sprintf("state is %q (%s), want %q", status.State, status.Reason, want)
	})
	return status
}

// awaitStatus waits until a report is as wanted.
func (p *relayProcess) awaitStatus(within time.Duration, what string, check func(*Report) bool) Report {
	p.t.Helper()
	var r Report
	testenv.Eventually(p.t, within, func() (bool, string) {
		p.mustRun()
		r = p.status()
		return check(&r), fmt.Sprintf("%s; status is %+v", what, r)
	})
	return r
}

func (p *relayProcess) mustRun() {
	p.t.Helper()
	if !p.proc.Running() {
		p.t.Fatalf("relay has ended (%v):\n%s", p.proc.Err(), tail(p.log(), 3000))
	}
}

// peakRSS returns the most memory the process has had resident, in bytes.
func (p *relayProcess) peakRSS() int {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.proc.PID()))
	if err != nil {
		testenv.Require(p.t, "needs Linux's /proc: "+err.Error())
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	var kB int
	if _, err := fmt.Sscan(rest, &kB); err != nil {
		p.t.Fatalf("read VmHWM: %v", err)
	}
	return kB << 10
}
