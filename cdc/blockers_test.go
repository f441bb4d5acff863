package cdc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestSlotCreating names what the making of a slot waits for, a session and a prepared transaction, and goes on
// when both are over.
func TestSlotCreating(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresWith(t, 0, map[string]string{"max_prepared_transactions": "50"})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "")))
	other := b.connect()
	exec := func(sql string) {
		t.Helper()
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	gid := b.db.Name + "-gid"
	exec(`create table public.thing (n int)`)
	exec(`begin`)
	exec(`insert into public.thing values (1)`)
	exec(`prepare transaction '` + gid + `'`)
	exec(`set application_name = 'nightly report'`)
	exec(`begin`)
	exec(`insert into public.thing values (2)`)

	r := b.start(nil)
	pid := fmt.Sprintf("pid %d (nightly report, user postgres, idle in transaction, open for ", other.PgConn().PID())
	await := func(check func(state.Status) bool) state.Status {
		t.Helper()
		var st state.Status
		testenv.Eventually(t, 30*time.Second, func() (bool, string) {
			st = r.lastState()
			return check(st), fmt.Sprintf("state is %+v", st)
		})
		return st
	}
	st := await(func(st state.Status) bool {
		return st.State == state.SlotCreating && strings.Contains(st.Reason, pid) && strings.Contains(st.Reason, gid)
	})
	if strings.Index(st.Reason, gid) > strings.Index(st.Reason, pid) {
		t.Errorf("the oldest does not come first: %s", st.Reason)
	}
	for _, want := range []string{"pg_terminate_backend(pid)", "ROLLBACK PREPARED 'gid'"} {
		if !strings.Contains(st.Hint, want) {
			t.Errorf("hint lacks %q: %s", want, st.Hint)
		}
	}

	// What the hint says helps.
	b.exec(`select pg_terminate_backend($1)`, int32(other.PgConn().PID()))
	st = await(func(st state.Status) bool {
		return st.State == state.SlotCreating && !strings.Contains(st.Reason, pid) && strings.Contains(st.Reason, gid)
	})
	if !strings.Contains(st.Reason, "pid ") && strings.Contains(st.Hint, "pg_terminate_backend") {
		t.Errorf("no session is waited for, and the hint ends one: %s", st.Hint)
	}
	b.exec(`rollback prepared '` + gid + `'`)
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	r.stopCleanly()
}
