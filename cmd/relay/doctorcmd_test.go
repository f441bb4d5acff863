package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// doctorOf runs relay doctor --json and returns its report.
func doctorOf(t *testing.T, environ []string, args ...string) (doctor.Report, int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := testProcess(environ, &stdout, &stderr).execute(t.Context(), append([]string{"doctor", "--json"}, args...))
	var r doctor.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s%s", err, stdout.String(), stderr.String())
	}
	return r, code
}

// TestE2E_Doctor looks at a relay that runs, with the rights that are printed and no more: all is well, and the relay does
// not notice.
func TestE2E_Doctor(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 2)
	if _, err := exec.LookPath("psql"); err != nil {
		testenv.Require(t, "needs psql")
	}
	role := r.slot + "_r"
	var script bytes.Buffer
	if code := testProcess(nil, &script, &script).execute(t.Context(), []string{"migrate", "print", "--roles"}); code != exitOK {
		t.Fatal(script.String())
	}
	psql := exec.CommandContext(t.Context(), "psql", r.db.URL, "-qv", "ON_ERROR_STOP=1", "-v", "relay_role="+role, "-v", "app_role="+role+"_app")
	psql.Stdin = &script
	if out, err := psql.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		for _, name := range []string{role, role + "_app"} {
			r.execAfter("DROP OWNED BY " + name + " CASCADE; DROP ROLE " + name)
		}
	})
	var out bytes.Buffer
	if code := testProcess(r.environ(), &out, &out).execute(t.Context(), []string{"migrate", "up"}); code != exitOK {
		t.Fatal(out.String())
	}
	url := strings.Replace(r.db.URL, "postgres://"+r.conn.Config().User, "postgres://"+role, 1)
	environ := slices.DeleteFunc(r.environ(), func(v string) bool {
		return strings.HasPrefix(v, "RELAY_POSTGRES_URL=") || strings.HasPrefix(v, "RELAY_POSTGRES_ENSURE=")
	})
	environ = append(environ, "RELAY_POSTGRES_URL="+url)
	port, err := procs.FreePort()
	if err != nil {
		t.Fatal(err)
	}

	check := func(rep doctor.Report, code int, admin string) {
		t.Helper()
		if code != exitOK || rep.Fail > 0 {
			t.Errorf("exit code %d: %+v", code, rep)
		}
		for _, c := range rep.Checks {
			if c.Section == "Rights" && c.Status != doctor.OK {
				t.Errorf("with the printed rights: %+v", c)
			}
		}
		if c := rep.Find("Process", "admin listener"); len(c) != 1 || !strings.Contains(c[0].Seen, admin) {
			t.Errorf("got %+v, want %q", c, admin)
		}
	}
	rep, code := doctorOf(t, environ, "--admin-listen", procs.Address(port))
	check(rep, code, "no relay runs here")
	if rep.Warn == 0 { // a topic with one replica
		t.Errorf("nothing to warn of? %+v", rep)
	}
	if _, code := doctorOf(t, environ, "--admin-listen", procs.Address(port), "--strict"); code != exitFailed {
		t.Errorf("--strict with warnings: exit code %d", code)
	}

	p := startRelay(t, environ...)
	p.awaitState(state.Streaming, 30*time.Second)
	ids := r.publish("42", 20)
	before := r.drained(p, 30*time.Second)
	owner := func() (owner string) {
		t.Helper()
		if err := r.conn.QueryRow(t.Context(), `SELECT owner || system_identifier || incarnation FROM outbox.relay_state`).Scan(&owner); err != nil {
			t.Fatal(err)
		}
		return owner
	}
	held := owner()
	for range 5 {
		rep, code := doctorOf(t, environ, "--admin-listen", p.admin)
		check(rep, code, "streaming")
		if c := rep.Find("Slot", "held by"); len(c) != 1 || !strings.Contains(c[0].Seen, "relay "+r.slot) || !strings.Contains(c[0].Seen, "active") {
			t.Errorf("got %+v", c)
		}
		ids = append(ids, r.publish("43", 20)...)
	}
	r.drained(p, 30*time.Second)
	after := p.status()
	if after.Slot.Sessions != before.Slot.Sessions || owner() != held || after.Published.Retries != before.Published.Retries {
		t.Errorf("sessions %d, then %d; owner %q, then %q; %d retries, then %d", before.Slot.Sessions, after.Slot.Sessions, held, owner(), before.Published.Retries, after.Published.Retries)
	}
	for _, rec := range r.consume() {
		if rec.ProducerEpoch > 1 {
			t.Errorf("the producer's epoch is %d: somebody took its identity", rec.ProducerEpoch)
			break
		}
	}
	r.mustHave(ids, true)
}

// execAfter is exec for what cleans up.
func (r *rig) execAfter(sql string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.db.URL)
	if err != nil {
		r.t.Error(err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		r.t.Errorf("%s: %v", sql, err)
	}
}

// TestDoctor_Secrets makes everything fail that carries a password.
func TestDoctor_Secrets(t *testing.T) {
	t.Parallel()
	environ := []string{
		"RELAY_POSTGRES_URL=postgres://relay:" + canary + "@127.0.0.1:1/shop?sslmode=disable", "RELAY_KAFKA_BROKERS=127.0.0.1:1",
		"RELAY_KAFKA_SASL_MECHANISM=SCRAM-SHA-256", "RELAY_KAFKA_SASL_USERNAME=relay", "RELAY_KAFKA_SASL_PASSWORD=" + canary, "RELAY_ADMIN_LISTEN=",
	}
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}} {
		var out bytes.Buffer
		if code := testProcess(environ, &out, &out).execute(t.Context(), args); code != exitFailed {
			t.Errorf("%v: exit code %d: %s", args, code, out.String())
		}
		if strings.Contains(out.String(), canary) {
			t.Errorf("%v: a password is shown: %s", args, out.String())
		}
		if !strings.Contains(out.String(), "cannot be reached") || !strings.Contains(out.String(), "checks failed") {
			t.Errorf("%v: %s", args, out.String())
		}
	}
	var out bytes.Buffer
	if code := testProcess(nil, &out, &out).execute(t.Context(), []string{"doctor"}); code != exitUsage {
		t.Errorf("without configuration: exit code %d: %s", code, out.String())
	}
	// Another sink has no Kafka to look at.
	out.Reset()
	testProcess(append(environ[:1:1], "RELAY_SINK_TYPE=stdout", "RELAY_ADMIN_LISTEN="), &out, &out).execute(t.Context(), []string{"doctor"})
	if strings.Contains(out.String(), "Kafka") {
		t.Errorf("with the sink stdout: %s", out.String())
	}
}

func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 0, "off": 0, "64MiB": 64 << 20, "1GiB": 1 << 30, "1024": 1024, "5B": 5, "3KiB": 3 << 10, "-1": 0, "9000000TiB": 0, "9223372036854775807": 0} {
		if got := goMemoryLimit(text); got != want {
			t.Errorf("goMemoryLimit(%q) = %d, want %d", text, got, want)
		}
	}
	const v2, v1 = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
	for _, tt := range []struct {
		files map[string]string
		want  int64
	}{
		{nil, 0},
		{map[string]string{v2: "max\n"}, 0},
		{map[string]string{v2: "67108864\n"}, 64 << 20},
		{map[string]string{v1: "67108864\n"}, 64 << 20},
		{map[string]string{v1: "9223372036854771712\n"}, 0},
	} {
		got := memoryLimit(func(path string) ([]byte, error) {
			if text, ok := tt.files[path]; ok {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		})
		if got != tt.want {
			t.Errorf("%v: got %d, want %d", tt.files, got, tt.want)
		}
	}
}
