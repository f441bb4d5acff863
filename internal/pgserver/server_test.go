package pgserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/outboxrelay/relay/internal/pgserver"
)

func start(t *testing.T, cfg pgserver.Config) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, s *pgserver.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres", ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func run(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestStart_settings(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{Settings: map[string]string{"work_mem": "7MB", "application_name": `it's a \ "test"`}})
	conn := connect(t, s)
	for name, want := range map[string]string{
		"wal_level":        "logical",
		"fsync":            "off",
		"listen_addresses": "127.0.0.1",
		"work_mem":         "7MB",
	} {
		if got := query[string](t, conn, "SHOW "+name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got, want := query[string](t, conn, "SELECT boot_val || reset_val FROM pg_settings WHERE name = 'application_name'"), `it's a \ "test"`; got != want {
		t.Errorf("application_name: got %q, want %q", got, want)
	}

	run(t, conn, "ALTER SYSTEM SET work_mem = '9MB'")
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query[string](t, connect(t, s), "SHOW work_mem"); got != "9MB" {
		t.Errorf("work_mem after ALTER SYSTEM: got %q, want 9MB", got)
	}
}

func TestStart_refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  pgserver.Config
		want string
	}{
		"major":        {pgserver.Config{Major: 9}, "major version 9"},
		"port":         {pgserver.Config{Port: 70000}, "port 70000"},
		"setting port": {pgserver.Config{Settings: map[string]string{"port": "1"}}, "Config.Port"},
		"line break":   {pgserver.Config{Settings: map[string]string{"work_mem": "1\nport=2"}}, "work_mem"},
		"bad setting":  {pgserver.Config{Settings: map[string]string{"no_such_setting": "1"}}, "no_such_setting"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := pgserver.Start(t.Context(), c.cfg)
			if err == nil {
				s.Close()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %q, want one about %q", err, c.want)
			}
		})
	}
}

func TestStart_port(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	second, err := pgserver.Start(t.Context(), pgserver.Config{Port: s.Port()})
	if err == nil {
		second.Close()
		t.Fatal("two servers on one port")
	}
	if query[int](t, connect(t, s), "SELECT 1") != 1 {
		t.Error("first server is gone")
	}
}

// Whenever ctx ends, nothing is left running.
func TestStart_cancelled(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 300 * time.Millisecond, time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			dir := serverDir(t)
			cause := errors.New("enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), after, cause)
			defer cancel()
			s, err := pgserver.Start(ctx, pgserver.Config{DataDir: dir})
			if err == nil { // it was quicker
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, cause) {
				t.Errorf("got error %v, want %v", err, cause)
			}
			expectNoProcess(t, dir)
		})
	}
}

// A standby that may not serve queries never gets ready.
func TestStart_cancelled_recovering(t *testing.T) {
	t.Parallel()
	dir := serverDir(t)
	s := start(t, pgserver.Config{DataDir: dir})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(s.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(s.DataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := os.Chown(signal, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s, err = pgserver.Start(ctx, pgserver.Config{DataDir: dir, Settings: map[string]string{"hot_standby": "off"}})
	if err == nil {
		s.Close()
		t.Fatal("a server that takes no connections is called ready")
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if got := processesIn(t, dir); len(got) > 0 {
		t.Errorf("processes %v left behind", got)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "postgres.log")); err != nil || !strings.Contains(string(log), "entering standby mode") {
		t.Errorf("error %v; the server was not even started:\n%s", err, log)
	}
}

func TestServer_Restart(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	port, pid := s.Port(), s.PID()
	run(t, connect(t, s), "CREATE TABLE kept AS SELECT 42 AS answer")
	for _, mode := range []pgserver.Mode{pgserver.Fast, pgserver.Immediate} {
		if err := s.Stop(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		if s.PID() != 0 {
			t.Errorf("pid %d after Stop, want 0", s.PID())
		}
		if _, err := pgx.Connect(t.Context(), s.DSN("postgres", "")); err == nil {
			t.Error("connected to a stopped server")
		}
		if err := s.Stop(t.Context(), mode); err != nil {
			t.Errorf("stop again: %v", err)
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Port() != port || s.PID() == pid || s.PID() == 0 {
			t.Errorf("port %d, pid %d after restart; want port %d and another pid than %d", s.Port(), s.PID(), port, pid)
		}
		if got := query[int](t, connect(t, s), "SELECT answer FROM kept"); got != 42 {
			t.Errorf("got %d, want 42", got)
		}
	}
}

// Smart waits for clients, so ctx ends first; the server is then on its way and takes no new ones.
func TestServer_Stop_waits(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	conn := connect(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Stop(ctx, pgserver.Smart); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if query[int](t, conn, "SELECT 1") != 1 {
		t.Error("the open session was ended")
	}
	conn.Close(t.Context())
	if err := s.Stop(t.Context(), pgserver.Smart); err != nil {
		t.Error(err)
	}
}

func TestServer_Kill(t *testing.T) {
	t.Parallel()
	dir := serverDir(t)
	s := start(t, pgserver.Config{DataDir: dir})
	conn := connect(t, s)
	run(t, conn, "CREATE TABLE kept AS SELECT 42 AS answer")
	for range 2 { // awake and paused
		segment := segmentOf(t, s)
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if got := processesIn(t, dir); len(got) > 0 {
			t.Errorf("processes %v left behind", got)
		}
		if segmentExists(segment) {
			t.Errorf("shared memory segment %d left behind", segment)
		}
		if err := conn.Ping(t.Context()); err == nil {
			t.Error("a backend of the killed server answers")
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		conn = connect(t, s)
		if got := query[int](t, conn, "SELECT answer FROM kept"); got != 42 {
			t.Errorf("got %d, want 42", got)
		}
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServer_Pause(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	conn, other := connect(t, s), connect(t, s)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { answered <- conn.Ping(t.Context()) }()
	select {
	case err := <-answered:
		t.Errorf("a paused server answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := s.Continue(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("after Continue: %v", err)
	}
	if query[int](t, other, "SELECT 1") != 1 {
		t.Error("the other session is gone")
	}

	// A paused server can be stopped.
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context(), pgserver.Fast); err != nil {
		t.Error(err)
	}
	for _, f := range []func() error{s.Pause, s.Continue, s.Kill} {
		if err := f(); err != nil {
			t.Errorf("on a stopped server: %v", err)
		}
	}
}

func TestServer_Close(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{})
	connect(t, s)
	dir := s.DataDir()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data directory after Close: got error %v, want %v", err, os.ErrNotExist)
	}
	expectNoProcess(t, dir)
	if err := s.Restart(t.Context()); !errors.Is(err, pgserver.ErrClosed) {
		t.Errorf("restart: got error %v, want %v", err, pgserver.ErrClosed)
	}

	// A caller's own directory is kept, shut down properly and used again.
	own := serverDir(t)
	for _, sql := range []string{"CREATE TABLE kept AS SELECT 42 AS answer", "SELECT 1 / (answer - 41) FROM kept"} {
		s := start(t, pgserver.Config{DataDir: own})
		run(t, connect(t, s), sql)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		expectNoProcess(t, own)
	}
	log, err := os.ReadFile(own + "/postgres.log")
	if err != nil || strings.Contains(string(log), "was not properly shut down") {
		t.Errorf("error %v, log:\n%s", err, log)
	}
}

func TestConfig_Password(t *testing.T) {
	t.Parallel()
	s := start(t, pgserver.Config{Password: "s3cret/&"})
	run(t, connect(t, s), "CREATE ROLE app LOGIN PASSWORD 'other'")
	for dsn, want := range map[string]string{
		s.DSN("postgres", "app"): "28P01",
		strings.Replace(s.DSN("postgres", "app"), "app@", "app:wrong@", 1): "28P01",
		strings.Replace(s.DSN("postgres", "app"), "app@", "app:other@", 1): "",
	} {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err == nil {
			conn.Close(t.Context())
		}
		var refused *pgconn.PgError
		if got := errors.As(err, &refused); got && refused.Code != want || !got && (err != nil) != (want != "") {
			t.Errorf("connect as app: got error %v, want SQLSTATE %q", err, want)
		}
	}
}

// Every supported major version starts, and streams.
func TestConfig_Major(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short; fetches binaries")
	}
	for major := 14; major <= 18; major++ {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			s := start(t, pgserver.Config{Major: major})
			conn := connect(t, s)
			if got := query[int](t, conn, "SELECT current_setting('server_version_num')::int / 10000"); got != major || s.Major() != major {
				t.Errorf("got version %d, Major %d; want %d", got, s.Major(), major)
			}
			run(t, conn, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
		})
	}
}

// serverDir returns a directory that the server's user can reach, which t.TempDir's is not.
func serverDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir + "/pg"
}

// processesIn lists the processes that work in a directory, as every process of a server does in its data
// directory. Only Linux tells.
func processesIn(t *testing.T, dir string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir) {
			pids = append(pids, link)
		}
	}
	return pids
}

// expectNoProcess waits a little until no process works in dir.
func expectNoProcess(t *testing.T, dir string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		left := processesIn(t, dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes in %s are left: %v", dir, left)
		}
	}
}

// segmentOf returns the id of a running server's System V shared memory segment.
func segmentOf(t *testing.T, s *pgserver.Server) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var key, id int
	if _, err := fmt.Sscan(strings.Split(string(text), "\n")[6], &key, &id); err != nil {
		t.Fatal(err)
	}
	if !segmentExists(id) {
		t.Fatalf("segment %d of a running server does not exist", id)
	}
	return id
}

func segmentExists(id int) bool {
	var desc unix.SysvShmDesc
	_, err := unix.SysvShmCtl(id, unix.IPC_STAT, &desc)
	return err == nil
}
