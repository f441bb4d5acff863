package cdc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

func TestStream_CommitOrder(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	r := b.start(nil)
	r.awaitState(state.Streaming)

	// B begins later and commits first.
	other := b.connect()
	ctx := t.Context()
	txA, err := b.app.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := txA.Exec(ctx, publishSQL, "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(ctx, publishSQL, "2"); err != nil {
		t.Fatal(err)
	}
	if _, err := txA.Exec(ctx, publishSQL, "3"); err != nil {
		t.Fatal(err)
	}
	if err := txA.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	events := r.awaitEvents(3)
	if diff := cmp.Diff([]string{`{"n" : 2}`, `{"n" : 1}`, `{"n" : 3}`}, payloads(events)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for i, e := range events {
		if e.seq != uint64(i+1) {
			t.Errorf("event %d has sequence number %d", i, e.seq)
		}
		if i > 0 && e.pos.Compare(events[i-1].pos) <= 0 {
			t.Errorf("position %v does not rise after %v", e.pos, events[i-1].pos)
		}
	}
	if a, c := events[1].pos, events[2].pos; a.LSN != c.LSN || a.Ordinal != 1 || c.Ordinal != 2 {
		t.Errorf("positions %v and %v of one transaction", a, c)
	}
}

func TestStream_OnlyWhatCommitted(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.exec(`begin`)
	b.publish(1)
	b.exec(`rollback`)
	b.exec(`begin`)
	b.publish(2)
	b.exec(`savepoint a`)
	b.publish(3)
	b.exec(`rollback to a`)
	b.publish(4)
	b.exec(`select pg_logical_emit_message(true, 'other', 'x')`)
	b.publish(5)
	b.exec(`commit`)
	b.exec(`select pg_logical_emit_message(false, 'other', 'x')`)
	b.exec(`update outbox.events set tenant = 'x'`)
	b.exec(`delete from outbox.events`)
	b.publish(6)
	b.exec(`truncate outbox.events`)
	b.publish(7)
	events := r.awaitEvents(5)
	want := []string{`{"n" : 2}`, `{"n" : 4}`, `{"n" : 5}`, `{"n" : 6}`, `{"n" : 7}`}
	if diff := cmp.Diff(want, payloads(events)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if o := events[2].pos.Ordinal; o != 4 {
		t.Errorf("ordinal %d after two inserts and a transactional message, want 4", o)
	}
}

func TestStream_IdleRestartAddsNothing(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	r.stopCleanly()
	for range 5 {
		r = b.start(nil)
		r.awaitState(state.Streaming)
		r.stopCleanly()
		if n := len(r.seen()); n != 0 {
			t.Fatalf("a restart brought %d events again", n)
		}
	}
	relay, slot := b.confirmed()
	if relay != slot {
		t.Errorf("relay_state says %s, the slot %s: the last position was not said", relay, slot)
	}
}

// TestStream_KeepaliveConfirmsNothingUnacknowledged is the classic loss: a keepalive's position confirmed while
// an event is out.
func TestStream_KeepaliveConfirmsNothingUnacknowledged(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.IdleInterval = 10 * time.Millisecond
	r := b.start(func(m *memorySink) { m.held = true })
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	before, _ := b.confirmed()
	received := r.stream.Stats().ReceivedLSN
	// Traffic elsewhere moves the WAL on and makes the server send keepalives.
	b.exec(`create table busy (x text)`)
	for range 20 {
		b.exec(`insert into busy select repeat('x', 200) from generate_series(1, 2000)`)
	}
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		got := r.stream.Stats().ReceivedLSN
		return got > received+1<<20, fmt.Sprintf("received %s, was %s", got, received)
	})
	for range 50 { // 50 looks, each some confirm intervals apart
		<-time.After(20 * time.Millisecond)
		if after, slot := b.confirmed(); after != before || slot > before {
			t.Fatalf("confirmed %s (slot %s) while an event was unacknowledged at %s", after, slot, before)
		}
	}
	r.crash()
	r = b.start(nil)
	if got := r.awaitEvents(1); got[0].payload != `{"n" : 1}` {
		t.Errorf("after the crash came %v", got)
	}
}

func TestStream_IdleOutboxOnBusyServer(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.IdleInterval = 100 * time.Millisecond
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.exec(`create table busy (x text)`)
	for range 30 {
		b.exec(`insert into busy select repeat('x', 1000) from generate_series(1, 4000)`)
	}
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		var lag int64
		if err := b.app.QueryRow(t.Context(), `select pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint from pg_replication_slots where slot_name = $1`, b.cfg.Slot).Scan(&lag); err != nil {
			t.Fatal(err)
		}
		return lag < 64<<20/10, fmt.Sprintf("slot lag %d bytes", lag)
	})
}

// TestStream_SettledServerWritesNoWAL: the relay's own writes must not be a reason for more of them.
func TestStream_SettledServerWritesNoWAL(t *testing.T) {
	for _, major := range []int{14, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			server := testenv.PostgresMajor(t, major)
			db := testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres"))
			b := setup(t, db)
			b.cfg.IdleInterval = 50 * time.Millisecond
			r := b.start(nil)
			r.awaitState(state.Streaming)
			for i := range 20 {
				b.publish(i)
			}
			r.awaitEvents(20)
			b.exec(`checkpoint`)
			wal := func() (lsn string) {
				if err := b.app.QueryRow(t.Context(), `select pg_current_wal_insert_lsn()::text`).Scan(&lsn); err != nil {
					t.Fatal(err)
				}
				return lsn
			}
			// Settled once two looks, many confirm and idle intervals apart, see the same position.
			last, same := wal(), 0
			testenv.Eventually(t, 60*time.Second, func() (bool, string) {
				now := wal()
				if now == last {
					same++
				} else {
					last, same = now, 0
				}
				return same >= 100, "WAL still moves at " + now
			})
		})
	}
}

func TestStream_StandbyTakesOver(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	r1 := b.start(nil)
	r1.awaitState(state.Streaming)
	r2 := b.start(nil)
	r2.awaitState(state.Standby)
	b.publish(1)
	r1.awaitEvents(1)
	r1.stopCleanly()
	r2.awaitState(state.Streaming)
	b.publish(2)
	if got := payloads(r2.awaitEvents(1)); got[0] != `{"n" : 2}` || len(got) != 1 {
		t.Errorf("after the takeover came %v", got)
	}
}

// TestStream_BackpressureKeepsTalking: a sink that takes nothing for many times wal_sender_timeout must not cost
// the connection.
func TestStream_BackpressureKeepsTalking(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.exec(`alter role postgres in database ` + b.db.Name + ` set wal_sender_timeout = '1s'`)
	stuck := make(chan struct{})
	r := b.start(func(m *memorySink) { m.stuck = stuck })
	r.awaitState(state.Streaming)
	b.exec(`select outbox.publish('k', 'Order', 'a', 'Made', to_json(repeat('x', 300))) from generate_series(1, 50000)`)
	<-time.After(4 * time.Second)
	close(stuck)
	r.awaitEvents(50000)
	if n := r.stream.Stats().Sessions; n != 1 {
		t.Errorf("%d sessions, want 1: the server gave up on a relay that was only waiting", n)
	}
}

// TestStream_WrittenBeforeSaid: while relay_state cannot be written, the server hears of no new position.
func TestStream_WrittenBeforeSaid(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.StatusInterval = 20 * time.Millisecond
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.publish(1)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		relay, slot := b.confirmed()
		return relay == slot && !r.stream.Stats().LastConfirm.IsZero(), fmt.Sprintf("relay_state %s, slot %s", relay, slot)
	})
	ctx := t.Context()
	tx, err := b.connect().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select from outbox.relay_state for update`); err != nil {
		t.Fatal(err)
	}
	relay, before := b.confirmed()
	b.publish(2)
	r.awaitEvents(2)
	for range 50 { // 50 looks, each some status intervals apart
		<-time.After(20 * time.Millisecond)
		if _, slot := b.confirmed(); slot != before {
			t.Fatalf("the slot moved to %s while relay_state stands at %s", slot, relay)
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		relay, slot := b.confirmed()
		return slot > before && relay == slot, fmt.Sprintf("relay_state %s, slot %s", relay, slot)
	})
}

// TestStream_OvertakenOwner: a relay whose owner token was replaced changes nothing and drops everything.
func TestStream_OvertakenOwner(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.exec(`update outbox.relay_state set owner = 'another'`)
	before, _ := b.confirmed()
	b.publish(1)
	r.awaitEvents(1)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.stream.Stats().Sessions
		return n >= 2, fmt.Sprintf("%d sessions", n)
	})
	// The event comes again in the next session: the overtaken one confirmed nothing.
	if events := r.awaitEvents(2); events[1].id != events[0].id {
		t.Errorf("after %s came %v", before, events)
	}
}

// TestStream_StopBeforeStreaming: a relay that never got to stream stops cleanly.
func TestStream_StopBeforeStreaming(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	active := b.start(nil)
	active.awaitState(state.Streaming)
	standby := b.start(nil)
	standby.awaitState(state.Standby)
	standby.stopCleanly()
	b.port(1)
	down := b.start(nil)
	down.awaitState(state.DatabaseUnreachable)
	down.stopCleanly()
}

// TestStream_HardStop: a stop that is cut short says what is left, and nothing is lost.
func TestStream_HardStop(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	r := b.start(func(m *memorySink) { m.held = true })
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	r.stop()
	r.awaitState(state.Draining)
	r.kill()
	if err := r.wait(); err == nil || !strings.Contains(err.Error(), "1 events unacknowledged") {
		t.Errorf("a stop that was cut short returned %v", err)
	}
	r = b.start(nil)
	r.awaitEvents(1)
}

// TestStream_FirstAcknowledgementIsConfirmedAtOnce: a relay that dies sooner than its confirm interval, again and
// again, still gets on.
func TestStream_FirstAcknowledgementIsConfirmedAtOnce(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.ConfirmInterval = time.Hour
	r := b.start(nil)
	r.awaitState(state.Streaming)
	before, _ := b.confirmed()
	b.publish(1)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		after, _ := b.confirmed()
		return after > before, fmt.Sprintf("%s is still confirmed", after)
	})
	r.crash()
}
