package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

// Who may what: what is refused names the role that may.
func TestLedger_roles(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		testenv.Require(t, "psql is not installed")
	}
	r := newLedgerRig(t)
	r.seed(t)
	id := "r" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12] // roles are the whole server's
	script := exec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", r.url,
		"-v", "worker_role="+id+"_worker", "-v", "operator_role="+id+"_operator", "-v", "reader_role="+id+"_reader")
	script.Stdin = strings.NewReader(r.must(t, "migrate", "print", "--only", "ledger", "--roles"))
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	urls := map[string]string{}
	for _, role := range []string{"worker", "operator", "reader"} {
		login := id + "_" + role + "_ann"
		r.exec(t, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE %s_%s", login, canary, id, role))
		t.Cleanup(func() {
			r.exec(t, fmt.Sprintf("DROP OWNED BY %[1]s, %[2]s_%[3]s; DROP ROLE %[1]s, %[2]s_%[3]s", login, id, role))
		})
		cfg := r.conn.Config()
		urls[role] = fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", login, canary, hostPorts(cfg)[0], cfg.Database)
	}
	may := func(roles ...string) map[string]bool {
		m := map[string]bool{}
		for _, role := range roles {
			m[role] = true
		}
		return m
	}
	for _, tt := range []struct {
		args string
		who  map[string]bool
		need string // in the hint of whoever may not
	}{
		{"show " + post42, may("reader"), "role " + id + "_reader"},
		{"list", may("reader"), "role " + id + "_reader"},
		{"channels", may("reader", "worker"), "role " + id + "_reader"},
		{"stats", may("reader", "operator"), "role " + id + "_reader"},
		{"purge --dry-run", may("reader"), "role " + id + "_reader"},
		{"resolve " + post42 + " --recipient user:silent --verdict failed --reason x", may("operator"), "role " + id + "_operator"},
		{"redrive " + post42 + " --recipient user:bounced --reason x", may("operator"), "role " + id + "_operator"},
		{"sweep", may("operator"), "role " + id + "_operator"},
		{"purge --yes", may("operator"), "role " + id + "_operator"},
		{"channels set email --on-uncertain resend", may(), "owner of schema ledger, " + r.conn.Config().User},
	} {
		for _, role := range []string{"worker", "reader", "operator"} {
			code, stdout, stderr := r.run(t, urls[role], append([]string{"ledger"}, strings.Fields(tt.args)...)...)
			switch {
			case strings.Contains(stdout+stderr, canary):
				t.Errorf("%s as %s prints the password", tt.args, role)
			case tt.who[role] && (code != exitOK || stderr != ""):
				t.Errorf("%s as %s: exit code %d: %s", tt.args, role, code, stderr)
			case !tt.who[role] && (code != exitFailed || !strings.Contains(stderr, id+"_"+role+"_ann") || !strings.Contains(stderr, "\nhint: this needs ") || !strings.Contains(stderr, tt.need)):
				t.Errorf("%s as %s: exit code %d, want a hint with %q: %s", tt.args, role, code, tt.need, stderr)
			}
		}
	}
	// An operator who is no reader is told of a slip, as far as he may know.
	if code, _, stderr := r.run(t, urls["operator"], "ledger", "redrive", "no-such:1", "--reason", "x"); code != exitFailed || !strings.Contains(stderr, `no such delivery of event "no-such:1"`) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	// Tenants are held apart here too.
	r.exec(t, "INSERT INTO ledger.role_tenants VALUES ($1, 'acme')", id+"_reader_ann")
	if code, stdout, _ := r.run(t, urls["reader"], "ledger", "list"); code != exitOK || strings.Contains(stdout, post42) || !strings.Contains(stdout, "invoice-due:7") {
		t.Errorf("a reader of tenant acme: exit code %d: %s", code, stdout)
	}
}

// The ledger is found where ledger.url says, else beside the outbox; and that it is not there is said.
func TestLedger_database(t *testing.T) {
	t.Parallel()
	r := newLedgerRig(t)
	empty := testenv.NewDatabase(t).URL
	run := func(environ []string, args ...string) (int, string) {
		t.Helper()
		var out bytes.Buffer
		code := testProcess(environ, &out, &out).execute(t.Context(), args)
		return code, out.String()
	}
	both := []string{"RELAY_POSTGRES_URL=" + empty, "RELAY_LEDGER_URL=" + r.url}
	if code, out := run(both, "ledger", "stats"); code != exitOK || out != "the ledger is empty\n" {
		t.Errorf("ledger.url beside postgres.url: exit code %d: %s", code, out)
	}
	if code, out := run([]string{"RELAY_POSTGRES_URL=" + r.url}, "ledger", "stats"); code != exitOK || out != "the ledger is empty\n" {
		t.Errorf("postgres.url alone: exit code %d: %s", code, out)
	}
	for _, args := range [][]string{
		{"show", "k:1"}, {"list"}, {"stats"}, {"channels"}, {"sweep"}, {"purge", "--yes"}, {"purge", "--dry-run"}, {"redrive", "k:1", "--reason", "x"}, {"channels", "set", "email"},
	} {
		code, out := run([]string{"RELAY_LEDGER_URL=" + empty}, append([]string{"ledger"}, args...)...)
		if code != exitFailed || !strings.Contains(out, "the ledger is not in database") || !strings.Contains(out, "\nhint: apply it with relay migrate up --only ledger") {
			t.Errorf("%v in an empty database: exit code %d: %s", args, code, out)
		}
	}
	// migrate --only ledger touches the ledger alone.
	if code, out := run(both, "migrate", "status", "--only", "ledger"); code != exitOK || strings.Contains(out, "not applied") || strings.Contains(out, "outbox") {
		t.Errorf("status: exit code %d: %s", code, out)
	}
	if code, out := run(both, "migrate", "up", "--only", "ledger"); code != exitOK || out != "schema ledger is up to date\n" {
		t.Errorf("up: exit code %d: %s", code, out)
	}
	var schemas int
	if err := r.conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname = 'outbox'`).Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("the ledger's database has a schema outbox: %v", err)
	}
	for _, set := range []migrations.Set{migrations.Outbox(), migrations.Ledger()} {
		var want strings.Builder
		if err := set.Print(&want); err != nil {
			t.Fatal(err)
		}
		if code, out := run(nil, "migrate", "print", "--only", set.String()); code != exitOK || out != want.String() {
			t.Errorf("print of %s: exit code %d, %d bytes, want %d", set, code, len(out), want.Len())
		}
	}
}
