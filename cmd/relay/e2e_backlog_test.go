package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// outboxIDs returns the IDs of all rows of the outbox table.
func (r *rig) outboxIDs() (ids []string) {
	r.t.Helper()
	rows, err := r.conn.Query(r.t.Context(), `SELECT id::text FROM outbox.events`)
	if err != nil {
		r.t.Fatal(err)
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		r.t.Fatal(err)
	}
	return ids
}

// listed is how many events are left in the list of those that go before the stream.
func (r *rig) listed() (n int) {
	r.t.Helper()
	if err := r.conn.QueryRow(r.t.Context(), `SELECT count(*) FROM outbox.backlog WHERE slot = $1`, r.slot).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// writeOn commits single events on a connection of its own until the test stops it.
func (r *rig) writeOn() (stop func()) {
	r.t.Helper()
	conn := r.connect()
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			_, err := conn.Exec(context.WithoutCancel(ctx), `SELECT outbox.publish('live:' || $1::int, 'Order', 'live', 'Made', '{}')`, i)
			if err != nil || ctx.Err() != nil {
				ended <- err
				return
			}
		}
	}()
	return func() {
		r.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			r.t.Fatal(err)
		}
	}
}

// openTransaction holds up the making of a slot until it is told to end.
func (r *rig) openTransaction() (end func()) {
	r.t.Helper()
	tx, err := r.connect().Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := tx.Exec(r.t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		r.t.Fatal(err)
	}
	return func() {
		r.t.Helper()
		if err := tx.Rollback(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestE2E_BacklogKill kills the relay by SIGKILL while it makes its slot, lists the rows that were there before, and
// publishes them, with a writer at work all the time: every event is in the topic, and no other.
func TestE2E_BacklogKill(t *testing.T) {
	t.Parallel()
	seed := seed(t)
	rng := rand.New(rand.NewPCG(seed, 2))
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	const rows = 60_000
	r.publishBulk(rows)
	stop := r.writeOn()

	end := r.openTransaction()
	p := r.start("RELAY_BACKLOG=publish")
	st := p.awaitState(state.SlotCreating, 30*time.Second)
	if !strings.Contains(st.Reason, "waits for transactions") {
		t.Errorf("reason %q", st.Reason)
	}
	p.kill()
	end()
	halfway, rounds := 0, 0
	for most := 8; rounds < most && halfway < 3; rounds++ {
		p = r.start("RELAY_BACKLOG=publish")
		if rng.IntN(3) > 0 {
			p.awaitStatus(30*time.Second, "publishes nothing", func(s *Report) bool { return s.Published.Events > 0 || s.State == state.Streaming })
		}
		if p.proc.WaitFor(time.Duration(rng.Int64N(int64(300 * time.Millisecond)))) {
			p.mustRun()
		}
		published := p.status().Published.Events
		p.kill()
		if published > 0 && r.listed() > 0 {
			halfway++
		}
	}
	p = r.start("RELAY_BACKLOG=publish")
	p.awaitState(state.Streaming, time.Minute)
	stop()
	r.drained(p, time.Minute)
	p.stop()
	r.mustHave(r.outboxIDs(), true)
	t.Logf("seed %d: %d of %d kills were halfway through the list", seed, halfway, rounds)
}

// TestE2E_BacklogMemory publishes a backlog of large and small rows: no more of it than the window is in memory.
func TestE2E_BacklogMemory(t *testing.T) {
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	r.publishBulk(50_000)
	r.exec(`INSERT INTO outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload_bytes)
		SELECT 'big:' || i, 'Order', 'order-' || i, 'Made', decode(repeat('ab', 500000), 'hex') FROM generate_series(1, 300) i`)
	p := startBinary(t, shippedRelay(t), append(r.environ(), "RELAY_BACKLOG=publish")...)
	p.awaitState(state.Streaming, 2*time.Minute)
	if s := p.status(); s.Published.Events != 50_300 {
		t.Errorf("%d events are published, want 50300", s.Published.Events)
	}
	if rss := p.peakRSS(); rss > 64<<20 {
		t.Errorf("%d MiB resident at most, want 64", rss>>20)
	}
	p.stop()
}

// relayCommand runs a command of this test binary as relay and returns what it said.
func (r *rig) relayCommand(args ...string) (code int, out string) {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), self, args...)
	cmd.Env = append(r.environ(), "PATH="+os.Getenv("PATH"), "RELAY_TEST_CHILD=relay")
	b, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		r.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}

// TestE2E_Recover loses the slot and recovers with the command: it says what it will do, asks, refuses where it must,
// survives a kill, and every event is in the topic afterwards.
func TestE2E_Recover(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	says := func(want int, words []string, args ...string) {
		t.Helper()
		code, out := r.relayCommand(append([]string{"recover"}, args...)...)
		if code != want {
			t.Fatalf("recover %v: exit code %d, want %d:\n%s", args, code, want, out)
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("recover %v does not say %q:\n%s", args, w, out)
			}
		}
	}
	says(exitFailed, []string{"nothing to recover", "hint: "}, "--yes")
	p := r.startStreaming()
	r.publish("order-1", 50)
	r.drained(p, 30*time.Second)
	says(exitFailed, []string{"slot is in use", "hint: "}, "--yes")
	p.stop()
	says(exitFailed, []string{"is sound", "hint: "}, "--yes", "--all")
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		_, err := r.conn.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, r.slot)
		return err == nil, fmt.Sprint(err)
	})
	r.publish("order-2", 20)
	p = r.start()
	st := p.awaitState(state.SlotMissing, time.Minute)
	if !strings.Contains(st.Reason, "confirmed is everything up to") || !strings.Contains(st.Hint, "relay recover") {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
	p.stop()

	plan := []string{"slot_missing", "does not exist", "scope", "events", "oldest", "newest", "Order", "incarnation 2"}
	says(exitOK, plan, "--dry-run", "--all")
	says(exitUsage, append(plan, "nobody to ask"), "--all")
	if n := r.recoveries(); n != 0 {
		t.Errorf("%d recoveries before any", n)
	}
	// Killed while the server makes the slot.
	end := r.openTransaction()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "recover", "--all", "--yes")
	cmd.Env = append(r.environ(), "RELAY_TEST_CHILD=relay")
	dying, err := procs.Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		var making bool
		err := r.conn.QueryRow(t.Context(), `SELECT active FROM pg_replication_slots WHERE slot_name = $1`, r.slot).Scan(&making)
		return making, fmt.Sprint(err)
	})
	if err := dying.Signal(syscall.SIGKILL); err != nil || !dying.WaitFor(10*time.Second) {
		t.Fatalf("relay recover survives SIGKILL: %v", err)
	}
	end()
	p = r.start()
	st = p.awaitState(state.SlotMissing, time.Minute)
	if !strings.Contains(st.Reason, "not finished") {
		t.Errorf("reason %q", st.Reason)
	}
	p.stop()
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		code, out := r.relayCommand("recover", "--all", "--yes") // refused while the server still makes the slot of the dead
		return code == exitOK, out
	})
	if n := r.recoveries(); n != 1 {
		t.Errorf("%d recoveries are written down, want 1", n)
	}
	p = r.startStreaming()
	r.publish("order-3", 5)
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave(r.outboxIDs(), false)
}

func (r *rig) recoveries() (n int) {
	r.t.Helper()
	if err := r.conn.QueryRow(r.t.Context(), `SELECT count(*) FROM outbox.recoveries WHERE slot = $1 AND actor LIKE '%@%'`, r.slot).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}
