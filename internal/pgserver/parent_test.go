package pgserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/pgserver"
)

// envParent makes the test binary a parent: a process that runs a server until its standard input ends.
const envParent = "PGSERVER_TEST_PARENT"

func TestMain(m *testing.M) {
	if what := os.Getenv(envParent); what != "" {
		if err := beParent(context.Background(), what); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beParent starts a server, uses it and says where it is.
func beParent(ctx context.Context, what string) error {
	s, err := pgserver.Start(ctx, pgserver.Config{})
	if err != nil {
		return err
	}
	defer s.Close()
	conn, err := pgx.Connect(ctx, s.DSN("postgres", ""))
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE t AS SELECT 1"); err != nil {
		return err
	}
	if what == "kill" {
		if err := s.Kill(); err != nil {
			return err
		}
		if err := s.Restart(ctx); err != nil {
			return err
		}
	}
	if what == "paused" {
		if err := s.Pause(); err != nil {
			return err
		}
	}
	fmt.Println(s.DataDir())
	io.Copy(io.Discard, os.Stdin)
	return s.Close()
}

// parent starts a parent as another process and returns it with its server's data directory. Temporary files
// are below tmp.
func parent(t *testing.T, what, tmp string, as *syscall.Credential) (cmd *exec.Cmd, stdin io.Closer, dataDir string) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe", "-test.run=^$") // the binary's own directory may be closed to others
	cmd.Env = append(os.Environ(), envParent+"="+what, "TMPDIR="+tmp, "HOME="+tmp)
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if dataDir = strings.TrimSpace(line); err != nil || !filepath.IsAbs(dataDir) {
		rest, _ := io.ReadAll(out)
		t.Fatalf("parent said %q, error %v\n%s", line, err, rest)
	}
	return cmd, in, dataDir
}

// However a parent dies, its server dies with it, and the next parent removes what it left.
func TestStart_parent_dies(t *testing.T) {
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		t.Skip("skipped: only Linux tells a child of its parent's death")
	}
	for what, sig := range map[string]syscall.Signal{
		"awake":      syscall.SIGKILL,
		"paused":     syscall.SIGKILL,
		"terminated": syscall.SIGTERM,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			tmp := filepath.Dir(serverDir(t))
			if err := os.Chmod(tmp, 0o1777); err != nil {
				t.Fatal(err)
			}
			cmd, _, dir := parent(t, what, tmp, nil)
			if len(processesIn(t, dir)) < 3 {
				t.Fatal("found no server to end")
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			cmd.Wait()
			expectNoProcess(t, dir)

			if _, err := os.Stat(dir); err != nil {
				t.Fatalf("data directory of a dead parent: %v", err)
			}
			_, stdin, next := parent(t, "awake", tmp, nil)
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("data directory of a dead parent after the next start: got error %v, want none there", err)
			}
			if len(processesIn(t, next)) == 0 {
				t.Error("the next server does not run")
			}
			stdin.Close()
			expectNoProcess(t, next)
		})
	}
}

// An ordinary user runs a server as well as root does.
func TestStart_as_nobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root can be somebody else; the other tests run as an ordinary user")
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	tmp := filepath.Dir(serverDir(t))
	if err := os.Chown(tmp, uid, gid); err != nil {
		t.Fatal(err)
	}
	cmd, stdin, dir := parent(t, "kill", tmp, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := int(info.Sys().(*syscall.Stat_t).Uid); got != uid {
		t.Errorf("data directory belongs to %d, want %d", got, uid)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("parent ended with %v", err)
	}
	expectNoProcess(t, dir)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("data directory after Close: got error %v, want none there", err)
	}
}
