package testenv_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testenv"
)

// envWithoutMain makes the test binary forget testenv.Main.
const envWithoutMain = "TESTENV_TEST_WITHOUT_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envWithoutMain) != "" {
		os.Exit(m.Run())
	}
	os.Exit(testenv.Main(m))
}

// again runs one test of this binary in another process, with more environment.
func again(t *testing.T, test string, env ...string) (output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe, "-test.v", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Main ends the shared servers and leaves nothing behind; without it there are none.
func TestMain_ends_servers(t *testing.T) {
	t.Parallel()
	tmp, err := os.MkdirTemp("", "testenv-test-") // the server's user must reach it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o1777); err != nil {
		t.Fatal(err)
	}
	for _, test := range []string{"TestNewDatabase", "TestConsume"} {
		if out, err := again(t, test, "TMPDIR="+tmp); err != nil {
			t.Errorf("%s: %v\n%s", test, err, out)
		}
	}
	left, err := filepath.Glob(filepath.Join(tmp, "relay-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("got %q, error %v; want nothing left", left, err)
	}
	if runtime.GOOS == "linux" {
		workers, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range workers {
			if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, tmp) {
				t.Errorf("%s -> %s: a process is left", link, cwd)
			}
		}
	}

	out, err := again(t, "TestNewDatabase", envWithoutMain+"=1")
	if err == nil || !strings.Contains(out, "testenv.Main(m)") {
		t.Errorf("without Main: error %v, want a failure that names it\n%s", err, out)
	}
}

// Without Java tests run on a fake broker and say so, or fail where everything is required.
func TestKafka_without_java(t *testing.T) {
	t.Parallel()
	out, err := again(t, "TestNewTopic", "PATH="+t.TempDir(), "RELAY_TEST_REQUIRE=")
	if err != nil || strings.Count(out, "fake broker") < 2 {
		t.Errorf("error %v; want success on a fake broker, said in the log and on standard error\n%s", err, out)
	}
	out, err = again(t, "TestNewTopic", "PATH="+t.TempDir(), "RELAY_TEST_REQUIRE=1")
	if err == nil || !strings.Contains(out, "RELAY_TEST_REQUIRE=1") {
		t.Errorf("error %v; want a failure that names RELAY_TEST_REQUIRE\n%s", err, out)
	}
}

// recorder is a test that notes how it would have ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func record(t *testing.T, f func(tb testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // as its own goroutine, for Skip and Fatal end it
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) Skip(args ...any) { r.skipped = join(args); runtime.Goexit() }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = join(append([]any{format}, args...))
	runtime.Goexit()
}

func join(args []any) string {
	var parts []string
	for _, a := range args {
		if s, ok := a.(string); ok {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, " ")
}

func TestRequire(t *testing.T) {
	for value, wantFailed := range map[string]bool{"1": true, "": false} {
		t.Setenv("RELAY_TEST_REQUIRE", value)
		r := record(t, func(tb testing.TB) { testenv.Require(tb, "no moon") })
		told := r.skipped
		if wantFailed {
			told = r.failed
		}
		if !strings.Contains(told, "no moon") || (r.failed != "") != wantFailed {
			t.Errorf("RELAY_TEST_REQUIRE=%q: skipped %q, failed %q; want failed: %v, with the reason", value, r.skipped, r.failed, wantFailed)
		}
	}
}

func TestEventually(t *testing.T) {
	t.Parallel()
	calls := 0
	testenv.Eventually(t, 10*time.Second, func() (bool, string) { calls++; return calls == 3, "" })
	if calls != 3 {
		t.Errorf("%d calls, want 3", calls)
	}
	r := record(t, func(tb testing.TB) {
		testenv.Eventually(tb, 30*time.Millisecond, func() (bool, string) { return false, "still dark" })
	})
	if !strings.Contains(r.failed, "still dark") {
		t.Errorf("failed with %q, want the last words of the check", r.failed)
	}
}
