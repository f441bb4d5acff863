package main

import (
	"context"
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
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

// deliverProcess is this test binary, started again as relay deliver.
type deliverProcess struct {
	*relayProcess
}

// deliverRig is a rig with the example's tables, rules and a ledger.
type deliverRig struct {
	*rig
	rules string
}

func newDeliverRig(t *testing.T) *deliverRig {
	t.Helper()
	r := &deliverRig{rig: newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)}
	if _, err := migrations.Up(t.Context(), r.conn.Config(), migrations.Ledger()); err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile("../../examples/rules/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	r.exec(string(schema))
	rules, err := os.ReadFile("../../examples/rules/scheduled-post-published.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// A killed process is to be followed soon.
	rules = []byte(strings.NewReplacer("database: {} #", "database: {lease: 3s} #", "    after: database\n", "    after: database\n    lease: 3s\n").Replace(string(rules)))
	r.rules = filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(r.rules, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// deliver starts a relay deliver.
func (r *deliverRig) deliver(more ...string) *deliverProcess {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	port, err := procs.FreePort()
	if err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	p := &deliverProcess{&relayProcess{t: r.t, admin: procs.Address(port), stdout: filepath.Join(dir, "stdout"), stderr: filepath.Join(dir, "stderr")}}
	cmd := exec.Command(self, append([]string{"deliver", "--deliver-listen", p.admin}, more...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "RELAY_TEST_CHILD=relay"}, r.deliverEnviron()...)
	for path, to := range map[string]*io.Writer{p.stdout: &cmd.Stdout, p.stderr: &cmd.Stderr} {
		f, err := os.Create(path)
		if err != nil {
			r.t.Fatal(err)
		}
		defer f.Close()
		*to = f
	}
	if p.proc, err = procs.Start(cmd, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		p.kill()
		if r.t.Failed() {
			r.t.Logf("relay deliver, process %d, said at the end:\n%s", p.proc.PID(), tail(p.log(), 3000))
		}
	})
	return p
}

func (r *deliverRig) deliverEnviron() []string {
	return []string{
		"RELAY_DELIVER_URL=" + r.db.URL, "RELAY_DELIVER_RULES=" + r.rules, "RELAY_DELIVER_TOPICS=" + r.topic, "RELAY_DELIVER_GROUP=g-" + r.topic,
		"RELAY_KAFKA_BROKERS=" + strings.Join(r.brokers, ","), "RELAY_LOG_LEVEL=debug",
	}
}

// command runs a command of relay in this process.
func (r *deliverRig) command(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(r.t.Context(), args, strings.NewReader(""), &out, &errs, r.deliverEnviron())
	return code, out.String(), errs.String()
}

func (r *deliverRig) count(sql string) (n int) {
	r.t.Helper()
	if err := r.conn.QueryRow(context.WithoutCancel(r.t.Context()), sql).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// publishPost commits a post and its event; again is a scheduler that finds the same post.
func (r *deliverRig) publishPost(id int, again bool) {
	r.t.Helper()
	if !again {
		r.exec("INSERT INTO posts (id, author_id, title, publish_at) VALUES ($1, 1, 'secret title', now())", id)
	}
	r.exec(`SELECT outbox.publish(event_key => 'scheduled-post-published:' || p.id, aggregate_type => 'Post', aggregate_id => p.id::text, event_type => 'ScheduledPostPublished',
payload => json_build_object('post_id', p.id, 'publish_at', p.publish_at)) FROM posts p WHERE p.id = $1`, id)
}

// TestE2E_deliver follows events from the transaction that made them to the people who are told, while processes are
// killed and a scheduler repeats itself.
func TestE2E_deliver(t *testing.T) {
	t.Parallel()
	r := newDeliverRig(t)
	const users, posts = 40, 10
	r.exec("INSERT INTO users (id) SELECT generate_series(7001, 7000 + $1::int)", users)
	r.exec("INSERT INTO followers SELECT 1, id FROM users")
	relay := r.startStreaming()
	first := r.deliver()
	for id := 1; id <= posts; id++ {
		r.publishPost(id, false)
		if id == posts/2 {
			relay.kill()
			relay = r.startStreaming()
		}
	}
	const notified = "SELECT count(*)::int FROM ledger.notifications"
	testenv.Eventually(t, 60*time.Second, func() (bool, string) { n := r.count(notified); return n > 0, "nobody is notified" })
	first.kill()
	second := r.deliver()
	for id := 1; id <= posts; id++ {
		r.publishPost(id, true)
	}
	const open = "SELECT count(*)::int FROM ledger.notification_dispatches WHERE state NOT IN ('delivered', 'skipped')"
	testenv.Eventually(t, 90*time.Second, func() (bool, string) {
		n, left := r.count(notified), r.count(open)
		return n == users*posts && left == 0, fmt.Sprintf("%d of %d notified, %d deliveries are open", n, users*posts, left)
	})
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		code, body, err := second.get("/readyz")
		return err == nil && code == http.StatusOK, fmt.Sprint(code, string(body), err)
	})
	if _, body, err := second.get("/metrics"); err != nil || !strings.Contains(string(body), `relay_deliver_records_total{outcome="registered"}`) {
		t.Errorf("metrics: %v\n%s", err, body)
	}
	second.signal(syscall.SIGTERM)
	if code := second.awaitExit(30 * time.Second); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	// The channel log writes who gets what, on purpose; the log of the process never does.
	out, err := os.ReadFile(second.stdout)
	if err != nil || !strings.Contains(string(out), `"recipient":"user:70`) {
		t.Errorf("channel log wrote %v\n%s", err, tail(string(out), 500))
	}
	for _, p := range []*deliverProcess{first, second} {
		for _, personal := range []string{"user:70", "secret title", "scheduled-post-published:"} {
			if strings.Contains(p.log(), personal) {
				t.Errorf("the log holds %q:\n%s", personal, tail(p.log(), 2000))
			}
		}
	}
}

func TestDeliver_commands(t *testing.T) {
	t.Parallel()
	r := newDeliverRig(t)
	r.exec("INSERT INTO users VALUES (1, true), (2, false)")
	r.exec("INSERT INTO followers VALUES (1, 1), (1, 2)")
	r.exec("INSERT INTO posts VALUES (42, 1, 'Hello', '2026-11-30T09:00:00Z', NULL)")

	code, out, errs := r.command("deliver", "check", "--event", "../../examples/rules/event.json")
	want := `rules are in order (rules: 1, channels: 2), and the database takes every query
user:1: database {"data":"{\"post_id\":\"42\",\"title\":\"Hello\"}","type":"scheduled-post-published"}
user:1: log {"line":"Hello is out"}
user:2: nothing, permission revoked
1 of 2 recipients would be told; nothing was sent
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("check: exit code %d\n%s%s\nwant\n%s", code, out, errs, want)
	}
	if n := r.count("SELECT count(*)::int FROM ledger.events"); n != 0 {
		t.Error("check wrote into the ledger")
	}

	r.exec("UPDATE posts SET publish_at = now() - interval '1 hour'")
	for i, want := range []string{"1       4    0      0        0", "1       0    4      0        0", "1       0    4      0        0"} {
		code, out, errs := r.command("deliver", "reconcile")
		if code != exitOK || !strings.Contains(out, want) || errs != "" {
			t.Errorf("reconcile %d: exit code %d\n%s%s\nwant %q", i+1, code, out, errs, want)
		}
	}

	r.exec("ALTER TABLE posts RENAME COLUMN title TO headline")
	code, _, errs = r.command("deliver", "check")
	if code != exitUsage || !strings.Contains(errs, "config rules.scheduled-post-published.eligible (rules file, line ") || !strings.Contains(errs, "p.title does not exist") {
		t.Errorf("check of a query that does not fit: exit code %d\n%s", code, errs)
	}
	if err := os.WriteFile(r.rules, []byte("channels: {database: {}}\nrules: {a: {evnt_type: x}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs = r.command("deliver", "check")
	if code != exitUsage || !strings.Contains(errs, "line 2 column ") || !strings.Contains(errs, "hint: did you mean event_type?") {
		t.Errorf("a slip in the rules: exit code %d\n%s", code, errs)
	}
}

// A ledger that is not there, or a role that may not use it, is told with what to do.
func TestDeliver_withoutLedger(t *testing.T) {
	t.Parallel()
	r := newDeliverRig(t)
	r.exec("DROP SCHEMA ledger CASCADE")
	code, _, errs := r.command("deliver", "--deliver-listen", "")
	if code != exitFailed || !strings.Contains(errs, "hint: relay migrate up --only ledger") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}
