package examples_test

import (
	"bufio"
	"bytes"
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

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// build compiles a command of this module for the test.
func build(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(dir))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", dir, err, out)
	}
	return path
}

// command returns a command that has no environment but what it needs, and is killed when the test ends.
func command(t *testing.T, argv []string, environ ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "LC_ALL=C.UTF-8"}, environ...)
	return cmd
}

// output runs a command that has to succeed and be silent on stderr, and returns what it printed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// published has the Go service publish post 42 twice, as a client does that got no answer, and returns the records of
// it as the relay prints them.
func published(t *testing.T, relay, example string) []string {
	t.Helper()
	db := testenv.NewDatabase(t)
	environ := []string{"RELAY_POSTGRES_URL=" + db.URL, "RELAY_POSTGRES_SLOT=" + db.Name, "RELAY_SINK_TYPE=stdout", "RELAY_ADMIN_LISTEN="}
	output(t, command(t, []string{relay, "migrate", "up"}, environ...))
	conn := connect(t, db.URL)
	exec1(t, conn, `CREATE TABLE posts (id bigint PRIMARY KEY, title text NOT NULL)`)

	service := command(t, []string{example, "serve"}, "DATABASE_URL="+db.URL, "LISTEN=127.0.0.1:0")
	first := start(t, service)
	address, ok := strings.CutPrefix(first(), "listening on ")
	if !ok {
		t.Fatalf("the service does not say where it listens: %s", address)
	}
	put := func(body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+address+"/posts/42", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for range 2 {
		if status := put(`{"title": "Größer & <b>besser</b>", "subscribers": [1, 2, 3, 4, 5]}`); status != http.StatusNoContent {
			t.Fatalf("publish: status %d", status)
		}
	}
	if status := put(`{"title": 1}`); status != http.StatusBadRequest {
		t.Errorf("a post that is none: status %d", status)
	}
	if status := put(`{"title": "\u0000"}`); status != http.StatusInternalServerError { // no row, hence no event
		t.Errorf("a post that the database refuses: status %d", status)
	}
	next := start(t, command(t, []string{relay, "run"}, environ...))
	lines := []string{next(), next()}
	if posts := query1[string](t, conn, `SELECT string_agg(id || title, ',') FROM posts`); posts != "42Größer & <b>besser</b>" {
		t.Errorf("posts: %s", posts)
	}
	if n := query1[int](t, conn, `SELECT count(*) FROM outbox.events`); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	return lines
}

// start starts a command, has it terminated at the end of the test, and returns a function that reads its next line.
func start(t *testing.T, cmd *exec.Cmd) func() string {
	t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, lines)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v\n%s", cmd.Args, err, stderr.String())
		}
	})
	return func() string {
		t.Helper()
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%v: no line: %v", cmd.Args, err)
		}
		return strings.TrimSuffix(line, "\n")
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query1[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// The outcomes, whatever the language: of a record, of its repetition, and of a third one after the retry was due.
const (
	firstRun = `scheduled-post-published:42 user:1 database delivered
scheduled-post-published:42 user:1 email delivered
scheduled-post-published:42 user:2 database delivered
scheduled-post-published:42 user:2 email dead
scheduled-post-published:42 user:3 database delivered
scheduled-post-published:42 user:3 email uncertain
scheduled-post-published:42 user:4 database delivered
scheduled-post-published:42 user:4 email skipped
scheduled-post-published:42 user:5 database delivered
scheduled-post-published:42 user:5 email failed
`
	secondRun = `scheduled-post-published:42 user:1 database already_delivered
scheduled-post-published:42 user:1 email already_delivered
scheduled-post-published:42 user:2 database already_delivered
scheduled-post-published:42 user:2 email dead
scheduled-post-published:42 user:3 database already_delivered
scheduled-post-published:42 user:3 email uncertain
scheduled-post-published:42 user:4 database already_delivered
scheduled-post-published:42 user:4 email already_skipped
scheduled-post-published:42 user:5 database already_delivered
scheduled-post-published:42 user:5 email not_due
`
)

// TestConsumers: an event that was published twice is delivered once, by consumers in four languages that share nothing
// but the ledger's functions.
func TestConsumers(t *testing.T) {
	t.Parallel()
	relay, example := build(t, "../cmd/relay"), build(t, "./go")
	lines := published(t, relay, example)
	var key struct {
		Headers map[string]string
	}
	if err := json.Unmarshal([]byte(lines[0]), &key); err != nil || key.Headers["event_key"] != "scheduled-post-published:42" {
		t.Fatalf("record %s: %v", lines[0], err)
	}
	for language, argv := range languages() {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			command := command
			if language == "go" {
				argv = func(*testing.T) []string { return []string{example, "consume"} }
			}
			program := argv(t)
			db := testenv.NewDatabase(t)
			mail := newMailAPI(t)
			for _, args := range []string{
				"migrate up --only ledger", "ledger channels set database --mode simple",
				"ledger channels set email --on-uncertain hold --backoff-min 1h --backoff-max 1h",
			} {
				output(t, command(t, append([]string{relay}, strings.Fields(args)...), "RELAY_LEDGER_URL="+db.URL))
			}
			conn := connect(t, db.URL)
			exec1(t, conn, `CREATE TABLE subscribers (id bigint PRIMARY KEY, email text NOT NULL, subscribed boolean NOT NULL)`)
			exec1(t, conn, `INSERT INTO subscribers VALUES (1, 'ann@example.com', true), (2, 'bounce@example.com', true),
(3, 'silence@example.com', true), (4, 'dora@example.com', false), (5, 'busy@example.com', true)`)
			consume := func(records ...string) string {
				t.Helper()
				cmd := command(t, program, "DATABASE_URL="+db.URL, "DATABASE_DSN="+dsn(conn), "MAIL_URL="+mail.url)
				cmd.Stdin = strings.NewReader(strings.Join(records, "\n") + "\n")
				return output(t, cmd)
			}
			if diff := cmp.Diff(firstRun+secondRun, consume(lines...)); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
			exec1(t, conn, `UPDATE ledger.notification_dispatches SET due_at = now() WHERE state = 'failed'`)
			if diff := cmp.Diff(strings.Replace(secondRun, "not_due", "delivered", 1), consume(lines[1])); diff != "" {
				t.Errorf("outcomes of the third run (-want +got):\n%s", diff)
			}
			checkDeliveries(t, conn, mail)
		})
	}
}

// checkDeliveries looks at what is there in the end: in the ledger, in the inbox, and at the mail API.
func checkDeliveries(t *testing.T, conn *pgx.Conn, mail *mailAPI) {
	t.Helper()
	const states = `SELECT string_agg(recipient || ' ' || channel || ' ' || state || ' ' || attempts || coalesce(' ' || provider_ref, ''), E'\n' ORDER BY recipient, channel)
FROM ledger.notification_dispatches`
	want := `user:1 database delivered 1
user:1 email delivered 1 msg-ann
user:2 database delivered 1
user:2 email dead 1
user:3 database delivered 1
user:3 email uncertain 1
user:4 database delivered 1
user:4 email skipped 1
user:5 database delivered 1
user:5 email delivered 2 msg-busy`
	if diff := cmp.Diff(want, query1[string](t, conn, states)); diff != "" {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	const inbox = `SELECT string_agg(event_key || ' ' || recipient || ' ' || data, E'\n' ORDER BY recipient) FROM ledger.notifications`
	var notices []string
	for user := range 5 {
		notices = append(notices, fmt.Sprintf(`scheduled-post-published:42 user:%d {"post": 42}`, user+1))
	}
	if diff := cmp.Diff(strings.Join(notices, "\n"), query1[string](t, conn, inbox)); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	providerKey := func(user int) string {
		return query1[string](t, conn, `SELECT ledger.provider_key('', 'scheduled-post-published:42', 'user:' || $1::int, 'email', 1)`, user)
	}
	requests := map[string][]string{
		"ann": {providerKey(1)}, "bounce": {providerKey(2)}, "silence": {providerKey(3)}, "busy": {providerKey(5), providerKey(5)},
	}
	if diff := cmp.Diff(requests, mail.requests()); diff != "" {
		t.Errorf("requests and their keys (-want +got):\n%s", diff)
	}
}

// dsn is the form of a connection string that PDO wants.
func dsn(conn *pgx.Conn) string {
	c := conn.Config()
	return fmt.Sprintf("pgsql:host=%s;port=%d;dbname=%s;user=%s;password=%s", c.Host, c.Port, c.Database, c.User, c.Password)
}

// languages returns how to run the consumer of each language; what is missing skips the test.
func languages() map[string]func(*testing.T) []string {
	return map[string]func(*testing.T) []string{
		"go":     nil,
		"php":    func(t *testing.T) []string { return []string{php(t), "php/listener.php"} },
		"node":   func(t *testing.T) []string { return []string{node(t), "node/listener.js"} },
		"python": func(t *testing.T) []string { return []string{python(t), "-B", "python/listener.py"} },
	}
}

func php(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("php")
	if err != nil {
		testenv.Require(t, "php is not installed")
	}
	for _, extension := range []string{"pdo_pgsql", "intl"} {
		if exec.CommandContext(t.Context(), path, "-r", "exit(extension_loaded('"+extension+"') ? 0 : 1);").Run() != nil {
			testenv.Require(t, "php lacks extension "+extension)
		}
	}
	return path
}

func node(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		testenv.Require(t, "node is not installed")
	}
	if _, err := os.Stat("node/node_modules/pg"); errors.Is(err, os.ErrNotExist) {
		testenv.Require(t, "npm ci was not run in examples/node")
	}
	return path
}

func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python/.venv/bin/python", "python3"} {
		path, err := exec.LookPath(name)
		if err == nil && exec.CommandContext(t.Context(), path, "-c", "import psycopg").Run() == nil {
			return path
		}
	}
	testenv.Require(t, "no Python with psycopg: examples/python/README.md says how to make one")
	return ""
}
