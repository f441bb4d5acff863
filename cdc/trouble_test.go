package cdc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestStream_RoleLosesLogin: somebody takes the relay's role its login and ends its sessions. That does not heal, so it
// is named and not tried again and again.
func TestStream_RoleLosesLogin(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	role := b.cfg.Slot
	b.ensured()
	b.cfg.Ensure = false
	b.exec(`create role ` + role + ` login replication`)
	t.Cleanup(b.dropRole)
	b.exec(`grant usage on schema outbox to ` + role)
	b.exec(`grant select, insert, update, delete on all tables in schema outbox to ` + role)
	b.login(role, "")
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.exec(`alter role ` + role + ` nologin`)
	b.exec(`select pg_terminate_backend(pid) from pg_stat_activity where usename = $1`, role)
	st := r.awaitState(state.PermissionDenied)
	if st.Hint == "" || !strings.Contains(st.Reason, "28000") {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
	attempts := func() (n uint64) {
		for _, count := range r.stream.Stats().Reconnects {
			n += count
		}
		return n
	}
	before := attempts()
	<-time.After(2 * time.Second)
	if n := attempts() - before; n > 1 { // every RetryHuman, 30 s
		t.Errorf("it tried %d times in 2 s", n)
	}
}

// TestStream_SpilledTransactions: transactions that the server keeps on its own disk, side by side and with parts of
// them undone, come whole and in commit order.
func TestStream_SpilledTransactions(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.exec(`alter role postgres in database ` + b.db.Name + ` set logical_decoding_work_mem = '64kB'`)
	r := b.start(nil)
	r.awaitState(state.Streaming)
	const rows = 5000
	fill := func(from int) string {
		return fmt.Sprintf(`select outbox.publish('key:' || n, 'Order', 'agg', 'Made', json_build_object('n', n)) from generate_series(%d, %d) n`, from, from+rows-1)
	}
	a, c := b.connect(), b.connect()
	for _, step := range []struct {
		a   bool
		sql string
	}{
		{true, `begin`}, {true, fill(1)}, {false, `begin`}, {false, fill(100_001)}, {true, `savepoint s`}, {true, fill(900_001)}, {true, `rollback to s`},
		{true, fill(1 + rows)}, {false, `savepoint s`}, {false, fill(100_001 + rows)}, {false, `release s`}, {false, `commit`}, {true, `commit`},
	} {
		conn := c
		if step.a {
			conn = a
		}
		if _, err := conn.Exec(t.Context(), step.sql); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, from := range []int{100_001, 1} {
		for n := from; n < from+2*rows; n++ {
			want = append(want, fmt.Sprintf(`{"n" : %d}`, n))
		}
	}
	got := payloads(r.awaitEvents(len(want)))
	if !slices.Equal(got, want) {
		t.Errorf("%d events, not the %d that committed in their order", len(got), len(want))
	}
	var spilled int64
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		err := b.app.QueryRow(t.Context(), `select spill_txns from pg_stat_replication_slots where slot_name = $1`, b.cfg.Slot).Scan(&spilled)
		return err == nil && spilled > 0, fmt.Sprintf("%d transactions spilled, %v: this is no test", spilled, err)
	})
}

// TestStream_TwoInOneProcess: streams share nothing but the program.
func TestStream_TwoInOneProcess(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	one := b.start(nil)
	one.awaitState(state.Streaming)
	second := *b
	second.cfg.Slot += "_2"
	two := second.start(nil)
	two.awaitState(state.Streaming)
	for n := range 200 {
		b.publish(n)
	}
	if a, b := payloads(one.awaitEvents(200)), payloads(two.awaitEvents(200)); !slices.Equal(a, b) {
		t.Errorf("one stream brings %v, the other %v", a, b)
	}
	one.crash()
	b.publish(200)
	two.awaitEvents(201)
	two.stopCleanly()
}

// TestStream_FrozenServer: a server that holds its connections and says nothing is noticed, and one that has nothing to
// say is left alone.
func TestStream_FrozenServer(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "")))
	b.cfg.SilenceLimit, b.cfg.QueryTimeout = 500*time.Millisecond, 3*time.Second
	r := b.start(nil)
	r.awaitState(state.Streaming)
	<-time.After(8 * time.Second) // many times SilenceLimit, and longer than the slot is left unlooked at
	if n := r.stream.Stats().Sessions; n != 1 {
		t.Errorf("an idle stream took %d sessions", n)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	r.awaitState(state.DatabaseUnreachable)
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
}
