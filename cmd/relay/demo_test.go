//go:build !nodemo

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// checkDemoLines reads what relay demo --json printed, line by line, and returns the last.
func checkDemoLines(t *testing.T, out string) demoSummaryLine {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	types := map[string]int{}
	for _, line := range lines {
		var l struct{ Type string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
		types[l.Type]++
	}
	if types["step"] < 3 || types["ready"] != 1 || types["summary"] != 1 {
		t.Errorf("types of lines: %v", types)
	}
	var s demoSummaryLine
	dec := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil || s.Type != "summary" {
		t.Fatalf("last line %q: %v", lines[len(lines)-1], err)
	}
	if s.Lost+s.Duplicates+s.Ghosts+s.OutOfOrder > 0 || s.Published != s.Committed || s.RolledBack == 0 {
		t.Errorf("summary %+v", s)
	}
	if s.FirstEventSeconds <= 0 || s.Seconds < s.FirstEventSeconds || s.PostgresVersion == "" {
		t.Errorf("summary %+v", s)
	}
	return s
}

// demoTemp returns a directory for temporary files that other users may use: t.TempDir is closed to them.
func demoTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay-demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o1777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// expectDemoGone fails the test if a demo whose temporary files were in tmp has left a file or a process.
func expectDemoGone(t *testing.T, tmp string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(tmp, "relay-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(tmp)) {
			t.Errorf("still runs: %q", line)
		}
	}
}

func TestDemo_once(t *testing.T) {
	tmp := demoTemp(t)
	t.Setenv("TMPDIR", tmp)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"demo", "--events", "2000", "--once", "--json"}, strings.NewReader(""), &stdout, &stderr, nil)
	if code != exitOK || stderr.Len() > 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if s := checkDemoLines(t, stdout.String()); s.Committed != 2000 {
		t.Errorf("committed %d, want 2000", s.Committed)
	}
	expectDemoGone(t, tmp)

	stdout.Reset()
	code = run(t.Context(), []string{"demo", "--events", "40", "--rate", "20"}, strings.NewReader(""), &stdout, &stderr, nil)
	if code != exitOK || stderr.Len() > 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	out := stdout.String()
	for _, want := range []string{"psql 'postgres://", "/status.json", " s  committed ", " after its commit: partition ", "committed         40 ", "nothing else did"} {
		if !strings.Contains(out, want) {
			t.Errorf("text lacks %q:\n%s", want, out)
		}
	}
	if strings.ContainsAny(out, "\r\x1b") {
		t.Errorf("text for a terminal: %q", out)
	}
	expectDemoGone(t, tmp)
}

// TestDemo_process runs the released binary.
func TestDemo_process(t *testing.T) {
	dir := demoTemp(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "relay")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	command := func(t *testing.T, tmp string, args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(t.Context(), binary, append([]string{"demo"}, args...)...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = 20 * time.Second
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		stderr := &bytes.Buffer{}
		cmd.Stderr = stderr
		return cmd, stderr
	}

	t.Run("version that is fetched", func(t *testing.T) {
		t.Parallel()
		tmp := demoTemp(t)
		cmd, stderr := command(t, tmp, "--once", "--events", "300", "--json", "--postgres-major", "17")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		if s := checkDemoLines(t, string(out)); s.Committed != 300 || !strings.HasPrefix(s.PostgresVersion, "17.") {
			t.Errorf("summary %+v, want 300 committed on 17", s)
		}
		expectDemoGone(t, tmp)
	})

	t.Run("as nobody", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Skip("skipped: only root can be somebody else; the other tests run as an ordinary user")
		}
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
		gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
		tmp := demoTemp(t)
		cmd, stderr := command(t, tmp, "--once", "--json")
		cmd.Env = append(cmd.Env, "HOME="+tmp, "XDG_CACHE_HOME="+filepath.Join(tmp, "cache"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		if s := checkDemoLines(t, string(out)); s.Committed != demoOnceEvents {
			t.Errorf("committed %d, want %d", s.Committed, demoOnceEvents)
		}
		expectDemoGone(t, tmp)
	})

	type running struct {
		cmd    *exec.Cmd
		stdout io.Closer
		lines  *bufio.Reader // of stdout, those that were not read yet
		seen   string        // those that were
		stderr *bytes.Buffer
	}
	// start runs a demo without end and returns when events arrive.
	start := func(t *testing.T, tmp string, args ...string) running {
		cmd, stderr := command(t, tmp, append([]string{"--json"}, args...)...)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		r := running{cmd: cmd, stdout: stdout, lines: bufio.NewReader(stdout), stderr: stderr}
		for {
			line, err := r.lines.ReadString('\n')
			if err != nil {
				t.Fatalf("read: %v\n%s%s", err, r.seen, stderr)
			}
			r.seen += line
			var l demoProgressLine
			if json.Unmarshal([]byte(line), &l) == nil && l.Type == "progress" && l.Published > 10 {
				return r
			}
		}
	}

	for _, tt := range []struct {
		name    string
		signal  syscall.Signal
		args    []string
		code    int
		checked bool
	}{
		{"Ctrl-C", syscall.SIGINT, nil, exitOK, true},
		{"SIGTERM", syscall.SIGTERM, nil, exitOK, true},
		{"Ctrl-C with --once", syscall.SIGINT, []string{"--once", "--rate", "50"}, exitFailed, true},
		{"terminal closed", syscall.SIGHUP, nil, exitFailed, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tmp := demoTemp(t)
			r := start(t, tmp, tt.args...)
			if err := r.cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			rest, err := io.ReadAll(r.lines)
			if err != nil {
				t.Fatal(err)
			}
			var exit *exec.ExitError
			if err := r.cmd.Wait(); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := r.cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d: %s", got, tt.code, r.stderr)
			}
			if tt.checked {
				checkDemoLines(t, r.seen+string(rest))
			}
			expectDemoGone(t, tmp)
		})
	}

	t.Run("reader leaves", func(t *testing.T) {
		t.Parallel()
		tmp := demoTemp(t)
		r := start(t, tmp)
		r.stdout.Close()
		err := r.cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(r.stderr.String(), "broken pipe") {
			t.Errorf("ended with %v: %s", err, r.stderr)
		}
		expectDemoGone(t, tmp)
	})
}
