package cdc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

func (b *bench) planner() *cdc.Stream {
	b.t.Helper()
	s, err := cdc.NewStream(b.cfg, store, nil, cdc.Listener{})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// recover plans a recovery of this cause and carries it out.
func (b *bench) recover(want cdc.Scope, cause state.State) (cdc.Plan, cdc.Recovered) {
	b.t.Helper()
	s := b.planner()
	p, err := s.PlanRecovery(b.t.Context(), want)
	if err != nil {
		b.t.Fatal(err)
	}
	if p.Cause != cause {
		b.t.Errorf("cause is %s, want %s", p.Cause, cause)
	}
	done, err := s.Recover(b.t.Context(), p, "somebody@host")
	if err != nil {
		b.t.Fatal(err)
	}
	return p, done
}

// settled publishes n events from number from on and lets safe_xid pass them.
func (b *bench) settled(from, n int) (published map[string]bool) {
	b.t.Helper()
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.fill(from, n)
	r.awaitEvents(n)
	published = b.ids()
	testenv.Eventually(b.t, 20*time.Second, func() (bool, string) {
		b.exec(publishSQL, "0") // each confirmation may take the horizon that the one before it has noted
		var below bool
		if err := b.app.QueryRow(b.t.Context(), `
			select count(*) = $2 from outbox.events e, outbox.relay_state s
			where s.slot = $1 and e.xact_id < s.safe_xid and event_key <> 'key:0'`, b.cfg.Slot, len(published)).Scan(&below); err != nil {
			b.t.Fatal(err)
		}
		return below, "safe_xid does not pass what is published"
	})
	r.stopCleanly()
	return published
}

// awaitIDs waits until each of these events has come.
func (r *relay) awaitIDs(want map[string]bool) {
	r.b.t.Helper()
	testenv.Eventually(r.b.t, 20*time.Second, func() (bool, string) {
		got := distinctIDs(r.seen())
		for id := range want {
			if !got[id] {
				return false, fmt.Sprintf("event %s is lost", id)
			}
		}
		return true, ""
	})
}

// dropSlot drops the slot, once the walsender of a relay that has just stopped has let go of it.
func (b *bench) dropSlot() {
	b.t.Helper()
	testenv.Eventually(b.t, 10*time.Second, func() (bool, string) {
		_, err := b.app.Exec(b.t.Context(), `select pg_drop_replication_slot($1)`, b.cfg.Slot)
		return err == nil, fmt.Sprint(err)
	})
}

// TestRecover loses the slot in each of the ways there are and recovers: every event that was not published is then,
// what was long published is not again, and the incarnation is a new one.
func TestRecover(t *testing.T) {
	for _, c := range []struct {
		cause  state.State
		harm   func(b *bench)
		reason []string
	}{
		{state.SlotMissing, func(b *bench) {
			b.dropSlot()
			b.fill(101, 20)
		}, []string{"does not exist", "confirmed is everything up to", "WAL now ends at"}},
		{state.SlotRecreated, func(b *bench) {
			b.dropSlot()
			b.fill(101, 10)
			b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
			b.fill(111, 10)
		}, []string{"stands at", "confirmed is everything up to"}},
	} {
		t.Run(string(c.cause), func(t *testing.T) {
			b := setup(t, testenv.NewDatabase(t))
			old := b.settled(1, 100)
			c.harm(b)
			r := b.start(nil)
			st := r.awaitState(c.cause)
			for _, want := range append(c.reason, "events, the oldest", "may not have been published") {
				if !strings.Contains(st.Reason, want) {
					t.Errorf("reason %q does not say %q", st.Reason, want)
				}
			}
			if !strings.Contains(st.Hint, "relay recover") {
				t.Errorf("hint %q", st.Hint)
			}
			r.stopCleanly()

			p, done := b.recover(cdc.Scope{}, c.cause)
			if p.Events < 20 || p.Events >= 100 || p.Oldest.IsZero() || p.Newest.Before(p.Oldest) {
				t.Errorf("plan %+v", p)
			}
			if diff := cmp.Diff([]cdc.TypeCount{{AggregateType: "Order", Events: p.Events}}, p.Types); diff != "" {
				t.Errorf("types (-want +got):\n%s", diff)
			}
			if done.Events != p.Events || done.Incarnation != 2 || done.From <= p.Record.Confirmed {
				t.Errorf("recovered %+v of %+v", done, p)
			}
			b.fill(121, 5)
			r = b.start(nil)
			r.awaitState(state.Streaming)
			missing := b.idsOf(`select id::text from outbox.events where event_key <> 'key:0' and substr(event_key, 5)::int > 100`)
			r.awaitIDs(missing)
			events := r.seen()
			if len(distinctIDs(events)) != len(events) {
				t.Error("an event came twice")
			}
			for _, e := range events {
				if e.key != "key:0" && old[e.id] {
					t.Errorf("%s came again, and safe_xid had passed it", e.payload)
				}
				if e.pos.Incarnation != 2 {
					t.Errorf("position %v after the recovery", e.pos)
				}
			}
			if n := len(b.idsOf(`select id::text from outbox.recoveries where slot = $1 and actor = 'somebody@host' and cause = $2 and database_role = current_user
				and scope like 'xact_id >= %' and events > 0 and to_incarnation = 2 and from_incarnation = 1 and to_lsn > from_lsn`, b.cfg.Slot, string(c.cause))); n != 1 {
				t.Errorf("%d rows in outbox.recoveries", n)
			}
		})
	}
}

// TestRecover_Scope takes rows by time, and all of them.
func TestRecover_Scope(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.settled(1, 50)
	b.exec(`insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, occurred_at)
		select 'old:' || i, 'Old', 'a', 'Made', now() - interval '1 day' from generate_series(1, 10) i`)
	b.dropSlot()
	total := int64(len(b.ids()))
	s := b.planner()
	p, err := s.PlanRecovery(t.Context(), cdc.Scope{Since: time.Now().Add(-time.Hour)})
	if err != nil || p.Events != total-10 {
		t.Errorf("since an hour ago: %+v, %v; want %d", p, err, total-10)
	}
	p, err = s.PlanRecovery(t.Context(), cdc.Scope{All: true})
	if err != nil || p.Events != total || len(p.Types) != 2 || p.Scope != "all" {
		t.Errorf("all: %+v, %v; want %d", p, err, total)
	}
	if _, err := s.Recover(t.Context(), p, "x"); err != nil {
		t.Fatal(err)
	}
	r := b.start(nil)
	r.awaitState(state.Streaming)
	if n := len(r.awaitEvents(int(total))); n != int(total) {
		t.Errorf("%d events of %d", n, total)
	}
}

// TestRecover_Refused: a sound slot, one in use, one that never streamed, and a plan that time has passed.
func TestRecover_Refused(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	ctx := t.Context()
	plan := func() error {
		_, err := b.planner().PlanRecovery(ctx, cdc.Scope{All: true})
		return err
	}
	if err := plan(); !errors.Is(err, cdc.ErrNothingToRecover) {
		t.Errorf("without a slot: %v", err)
	}
	b.settled(1, 5)
	if err := plan(); !errors.Is(err, cdc.ErrNothingToRecover) {
		t.Errorf("of a sound slot: %v", err)
	}
	r := b.start(nil)
	r.awaitState(state.Streaming)
	if err := plan(); !errors.Is(err, cdc.ErrSlotInUse) {
		t.Errorf("while a relay streams: %v", err)
	}
	r.stopCleanly()
	b.dropSlot()
	s := b.planner()
	p, err := s.PlanRecovery(ctx, cdc.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
	if _, err := s.Recover(ctx, p, "x"); !errors.Is(err, cdc.ErrPlanOutdated) {
		t.Errorf("a plan of another state was carried out: %v", err)
	}
	b.exec(`update outbox.relay_state set safe_xid = null`)
	if _, err := s.PlanRecovery(ctx, cdc.Scope{}); !errors.Is(err, cdc.ErrScopeNeeded) {
		t.Errorf("without safe_xid: %v", err)
	}
}

// TestRecover_Unfinished: a recovery that died halfway is named, is not taken for a new relay's first start, and
// the second try takes in what the first one did.
func TestRecover_Unfinished(t *testing.T) {
	for name, broken := range map[string]func(b *bench){
		"before the slot": func(b *bench) {},
		"after the slot":  func(b *bench) { b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot) },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, testenv.NewDatabase(t))
			b.cfg.Backlog = cdc.BacklogSkip
			b.settled(1, 50)
			b.dropSlot()
			b.fill(101, 10)
			b.exec(`update outbox.relay_state set phase = 'creating', owner = null`)
			broken(b)
			b.fill(111, 10)
			r := b.start(nil)
			if st := r.awaitState(state.SlotMissing); !strings.Contains(st.Reason, "not finished") || !strings.Contains(st.Hint, "relay recover") {
				t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
			}
			r.stopCleanly()
			b.recover(cdc.Scope{}, state.SlotMissing)
			r = b.start(nil)
			r.awaitState(state.Streaming)
			got := distinctIDs(r.seen())
			for id := range b.idsOf(`select id::text from outbox.events where event_key <> 'key:0' and substr(event_key, 5)::int > 100`) {
				if !got[id] {
					t.Errorf("event %s is lost", id)
				}
			}
		})
	}
}

// TestRecover_OfABacklog: the slot is lost while its backlog is being published. What is left of the list goes
// first, and then what the lost slot would have brought.
func TestRecover_OfABacklog(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	b.fill(1, 100)
	b.ensured()
	b.exec(`delete from outbox.backlog where ordinal <= 40`)
	b.fill(101, 10)
	b.dropSlot()
	b.fill(111, 10)
	p, done := b.recover(cdc.Scope{}, state.SlotMissing)
	if p.Listed != 60 || done.Events != 80 {
		t.Errorf("listed %d before and %d after, want 60 and 80", p.Listed, done.Events)
	}
	r := b.start(nil)
	r.awaitState(state.Streaming)
	events := r.awaitEvents(80)
	for i, e := range events {
		if want := fmt.Sprintf(`{"n" : %d}`, 41+i); e.payload != want {
			t.Fatalf("event %d is %s, want %s", i, e.payload, want)
		}
	}
	if len(events) != 80 {
		t.Errorf("%d events, want 80", len(events))
	}
}

// TestRecover_LostWhileStreaming: PostgreSQL throws away WAL that a connected relay still needs.
func TestRecover_LostWhileStreaming(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
	b.cfg.BackoffMax = 100 * time.Millisecond
	b.settled(1, 20)
	r := b.start(func(m *memorySink) { m.held = true })
	r.awaitState(state.Streaming)
	b.fill(101, 20)
	r.awaitEvents(20)
	b.exec(`create table busy (x text)`)
	began := time.Now()
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		b.exec(`insert into busy select repeat('x', 1000) from generate_series(1, 10000)`)
		b.exec(`select pg_switch_wal()`)
		b.exec(`checkpoint`)
		st := r.lastState()
		return st.State == state.SlotLost, fmt.Sprint(st)
	})
	st := r.lastState()
	if took := time.Since(began); took > 60*time.Second || !strings.Contains(st.Reason, "events, the oldest") {
		t.Errorf("after %v: %q", took, st.Reason)
	}
	confirmed, _ := b.confirmed()
	r.stopCleanly()
	if after, _ := b.confirmed(); after != confirmed {
		t.Errorf("confirmed %s became %s", confirmed, after)
	}
	b.recover(cdc.Scope{}, state.SlotLost)
	r = b.start(nil)
	r.awaitState(state.Streaming)
	got := distinctIDs(r.seen())
	for id := range b.idsOf(`select id::text from outbox.events where event_key <> 'key:0' and substr(event_key, 5)::int > 100`) {
		if !got[id] {
			t.Errorf("event %s is lost", id)
		}
	}
}

// TestRecover_DroppedWhileStreaming: somebody ends the walsender and drops the slot under a relay.
func TestRecover_DroppedWhileStreaming(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.BackoffMin, b.cfg.BackoffMax = time.Second, time.Second
	r := b.start(nil)
	r.awaitState(state.Streaming)
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := b.app.Exec(t.Context(), `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active`, b.cfg.Slot)
		if err == nil {
			_, err = b.app.Exec(t.Context(), `select pg_drop_replication_slot($1)`, b.cfg.Slot)
		}
		return err == nil, fmt.Sprint(err)
	})
	if st := r.awaitState(state.SlotMissing); !strings.Contains(st.Reason, b.cfg.Slot) {
		t.Errorf("reason %q", st.Reason)
	}
}

// TestRecover_IdleSlot: PostgreSQL 18 gives up a slot that nobody has used for long.
func TestRecover_IdleSlot(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{Major: 18, Settings: map[string]string{"idle_replication_slot_timeout": "1s"}})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
	b.settled(1, 5)
	b.fill(101, 5)
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		b.exec(`checkpoint`)
		var lost bool
		if err := b.app.QueryRow(t.Context(), `select wal_status = 'lost' from pg_replication_slots where slot_name = $1`, b.cfg.Slot).Scan(&lost); err != nil {
			t.Fatal(err)
		}
		return lost, "the slot is still there"
	})
	r := b.start(nil)
	if st := r.awaitState(state.SlotLost); !strings.Contains(st.Reason, "idle_timeout") {
		t.Errorf("reason %q", st.Reason)
	}
	r.stopCleanly()
	b.recover(cdc.Scope{}, state.SlotLost)
	r = b.start(nil)
	r.awaitState(state.Streaming)
	if n := len(r.seen()); n < 5 {
		t.Errorf("%d events", n)
	}
}
