package cdc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// fill commits n events, from number from on, in one transaction.
func (b *bench) fill(from, n int) {
	b.t.Helper()
	b.exec(`select outbox.publish('key:' || i, 'Order', 'agg-' || i % 7, 'Made', json_build_object('n', i)) from generate_series($1::int, $2::int) i`, from, from+n-1)
}

// ids returns the IDs of all rows of the outbox table.
func (b *bench) ids() map[string]bool {
	b.t.Helper()
	return b.idsOf(`select id::text from outbox.events`)
}

func (b *bench) listed() map[string]bool {
	b.t.Helper()
	return b.idsOf(`select event_id from outbox.backlog where slot = $1`, b.cfg.Slot)
}

func (b *bench) idsOf(sql string, args ...any) map[string]bool {
	b.t.Helper()
	rows, err := b.app.Query(b.t.Context(), sql, args...)
	if err != nil {
		b.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	ids := make(map[string]bool, len(list))
	for _, id := range list {
		ids[id] = true
	}
	if len(ids) != len(list) {
		b.t.Fatalf("%s: %d rows, %d IDs", sql, len(list), len(ids))
	}
	return ids
}

func (b *bench) phase() (phase string) {
	b.t.Helper()
	if err := b.app.QueryRow(b.t.Context(), `select phase from outbox.relay_state where slot = $1`, b.cfg.Slot).Scan(&phase); err != nil {
		b.t.Fatal(err)
	}
	return phase
}

// free lets go of the acknowledgements that are held.
func (m *memorySink) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
	m.release()
}

func TestBacklog_BeforeTheStream(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	const n = 3000
	b.fill(1, n)
	var sinks []*memorySink
	var mu sync.Mutex
	r := b.start(func(m *memorySink) {
		mu.Lock()
		defer mu.Unlock()
		m.held = len(sinks) == 0
		sinks = append(sinks, m)
	})
	r.awaitEvents(n)
	st := r.awaitState(state.Backlog)
	if !strings.Contains(st.Reason, fmt.Sprintf("0 of %d", n)) {
		t.Errorf("reason %q", st.Reason)
	}
	if left := r.stream.Stats().BacklogLeft; left != n {
		t.Errorf("%d of %d events are left, and none is acknowledged", left, n)
	}
	// All of the backlog is out and none of it acknowledged: nothing of the stream may go.
	b.fill(n+1, 5)
	for range 30 { // looks, some confirm intervals apart
		<-time.After(20 * time.Millisecond)
		if got := len(r.seen()); got != n {
			t.Fatalf("%d events are out while %d of the backlog are unacknowledged", got, n)
		}
	}
	if left := len(b.listed()); left != n {
		t.Errorf("%d of %d events are left in the list, and none is acknowledged", left, n)
	}
	sinks[0].free()
	events := r.awaitEvents(n + 5)
	r.awaitState(state.Streaming)
	for i, e := range events {
		if want := fmt.Sprintf(`{"n" : %d}`, i+1); e.payload != want {
			t.Fatalf("event %d is %s, want %s", i+1, e.payload, want)
		}
		if i < n && (e.pos.LSN != 0 || e.pos.Ordinal != uint32(i+1)) || i >= n && e.pos.LSN == 0 {
			t.Fatalf("event %d has position %v", i+1, e.pos)
		}
		if i > 0 && e.pos.Compare(events[i-1].pos) <= 0 {
			t.Fatalf("position %v after %v", e.pos, events[i-1].pos)
		}
	}
	if left, phase := len(b.listed()), b.phase(); left != 0 || phase != "streaming" {
		t.Errorf("%d entries are left in phase %s", left, phase)
	}
	r.stopCleanly()
	r = b.start(nil)
	r.awaitState(state.Streaming)
	b.fill(n+6, 1)
	if got := r.awaitEvents(1); len(got) != 1 {
		t.Errorf("a restart brought %d events", len(got))
	}
}

// TestBacklog_AsStreamed: a row that the list brings is the same event as one that the stream brings.
func TestBacklog_AsStreamed(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	write := func() {
		b.exec(`select outbox.publish('k1', 'Order', 'a', 'Made', '{"x": 1.50,  "y":"ü\n"}')`)
		b.exec(`select outbox.publish('k2', 'Order', 'a', 'Made', payload_bytes => '\x0001ff', headers => '{"a":"b"}', topic => 't', partition_key => 'p', tenant => 'x')`)
		b.exec(`select outbox.publish('k3', 'Order', 'a', 'Made', occurred_at => '2026-01-02 03:04:05.060700+02')`)
		b.exec(`select outbox.publish('k4', 'Order', 'a', 'Made', payload_bytes => '')`)
	}
	write()
	r := b.start(nil)
	r.awaitState(state.Streaming)
	write()
	events := r.awaitEvents(8)
	byKey := func(a, b got) int { return strings.Compare(a.key, b.key) }
	slices.SortFunc(events[:4], byKey) // the list goes by time
	for i := range 4 {
		listed, streamed := events[i], events[i+4]
		listed.seq, listed.pos, listed.id = streamed.seq, streamed.pos, streamed.id
		if i != 2 {
			listed.whole, streamed.whole = withoutTimes(listed.whole), withoutTimes(streamed.whole)
		}
		listed.whole, streamed.whole = withoutID(listed.whole), withoutID(streamed.whole)
		if listed != streamed {
			t.Errorf("the list brings\n%+v, the stream\n%+v", listed, streamed)
		}
	}
}

func withoutTimes(s string) string { return s[:strings.Index(s, "occurred ")] }
func withoutID(s string) string    { return s[strings.Index(s, " "):] }

func TestBacklog_VanishedRows(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	b.fill(1, 100)
	b.ensured()
	if phase := b.phase(); phase != "backlog" {
		t.Fatalf("phase %s after the slot was made", phase)
	}
	b.exec(`delete from outbox.events where event_key in ('key:1', 'key:50', 'key:99', 'key:100')`)
	r := b.start(nil)
	r.awaitState(state.Streaming)
	events := r.awaitEvents(96)
	if st := r.stream.Stats(); len(events) != 96 || st.BacklogVanished != 4 || st.BacklogLeft != 0 {
		t.Errorf("%d events, %d vanished, %d left", len(events), st.BacklogVanished, st.BacklogLeft)
	}
	if pos := events[48].pos.Ordinal; pos != 51 {
		t.Errorf("ordinal %d after a row that is gone, want 51", pos)
	}
}

// TestBacklog_NoWriterIsBetween makes the slot while transactions come and go: each committed event comes once,
// by the list or by the stream.
func TestBacklog_NoWriterIsBetween(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 4 {
		conn := b.connect()
		rng := rand.New(rand.NewPCG(uint64(w), 7))
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				tx, err := conn.Begin(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				for range rng.IntN(4) + 1 {
					if _, err := tx.Exec(context.Background(), publishSQL, fmt.Sprint(w*1000000+i)); err != nil {
						t.Error(err)
					}
				}
				<-time.After(time.Duration(rng.IntN(4)) * time.Millisecond)
				if rng.IntN(4) == 0 {
					err = tx.Rollback(context.Background())
				} else {
					err = tx.Commit(context.Background())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	testenv.Eventually(t, 20*time.Second, func() (bool, string) { n := len(b.ids()); return n > 200, fmt.Sprintf("%d rows", n) })
	r := b.start(nil)
	r.awaitState(state.Streaming)
	listed := len(r.seen())
	r.awaitEvents(listed + 200)
	close(stop)
	writers.Wait()
	want := b.ids()
	events := r.awaitEvents(len(want))
	if diff := cmp.Diff(want, distinctIDs(events)); diff != "" || len(events) != len(want) {
		t.Errorf("%d events of %d rows (-want +got):\n%s", len(events), len(want), diff)
	}
	if events[0].pos.LSN != 0 || events[len(events)-1].pos.LSN == 0 {
		t.Errorf("not both came: list and stream; first %v, last %v", events[0].pos, events[len(events)-1].pos)
	}
}

// TestBacklog_Crash ends the relay at random moments, again and again: nothing is lost, and nothing comes again that
// was deleted from the list, which is what was acknowledged a confirm interval ago.
func TestBacklog_Crash(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		seed := uint64(time.Now().UnixNano())
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Logf("seed %d", seed)
			rng, sinkRNG := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
			b := setup(t, testenv.NewDatabase(t))
			b.cfg.Backlog, b.cfg.ConfirmInterval, b.cfg.BackoffMin = cdc.BacklogPublish, 5*time.Millisecond, 5*time.Millisecond
			const n = 2000
			b.fill(1, n)
			all := map[string]int{}
			left, halfway := b.ids(), 0
			for crashes := 0; ; crashes++ {
				var patient atomic.Bool
				r := b.start(func(m *memorySink) {
					// Acknowledgements come late, in part, or never.
					m.taken = func(got) bool { return patient.Load() || sinkRNG.IntN(200) != 0 }
				})
				wait := time.After(time.Duration(rng.Int64N(int64(250 * time.Millisecond))))
				if crashes > 12 && halfway > 0 || crashes > 100 {
					patient.Store(true)
					r.awaitState(state.Streaming)
					wait = time.After(0)
				}
				<-wait
				r.crash()
				events := r.seen()
				for i, e := range events {
					all[e.id]++
					if !left[e.id] {
						t.Errorf("event %s came again: it had left the list", e.payload)
					}
					if e.pos.LSN != 0 {
						t.Errorf("event %s has position %v", e.payload, e.pos)
					}
					if i > 0 && e.pos.Ordinal <= events[i-1].pos.Ordinal && e.seq > 1 {
						t.Errorf("ordinal %d after %d in one session", e.pos.Ordinal, events[i-1].pos.Ordinal)
					}
				}
				var found bool
				if err := b.app.QueryRow(t.Context(), `select count(*) > 0 from outbox.relay_state where slot = $1 and phase <> 'creating'`, b.cfg.Slot).Scan(&found); err != nil {
					t.Fatal(err)
				}
				if !found {
					continue // the list is not made yet
				}
				if left = b.listed(); len(left) > 0 && len(left) < n {
					halfway++
				}
				if b.phase() == "streaming" {
					break
				}
			}
			if halfway == 0 {
				t.Error("no crash was halfway through the list")
			}
			if len(left) != 0 || len(all) != n {
				t.Errorf("%d entries left and %d of %d events came", len(left), len(all), n)
			}
			for id := range b.ids() {
				if all[id] == 0 {
					t.Errorf("event %s is lost", id)
				}
			}
		})
	}
}

// TestBacklog_HalfMade: whatever a creation broke off at, the next one begins anew, and each event comes once.
func TestBacklog_HalfMade(t *testing.T) {
	for name, broken := range map[string]func(b *bench){
		"before the slot": func(b *bench) {
			b.exec(`insert into outbox.relay_state (slot, system_identifier, timeline, incarnation, phase)
				select $1, system_identifier::text, 1, 1, 'creating' from pg_control_system()`, b.cfg.Slot)
		},
		"after the slot": func(b *bench) {
			b.exec(`insert into outbox.relay_state (slot, system_identifier, timeline, incarnation, phase)
				select $1, system_identifier::text, 1, 1, 'creating' from pg_control_system()`, b.cfg.Slot)
			b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
			b.fill(101, 10) // this slot would bring them
		},
		"everything acknowledged and the phase not ended": func(b *bench) {
			b.ensured()
			r := b.start(nil)
			r.awaitState(state.Streaming)
			r.stopCleanly()
			b.exec(`update outbox.relay_state set phase = 'backlog'`)
			b.exec(`delete from outbox.events`)
			b.fill(1, 100) // by the stream
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, testenv.NewDatabase(t))
			b.cfg.Backlog = cdc.BacklogPublish
			b.fill(1, 100)
			broken(b)
			r := b.start(nil)
			r.awaitState(state.Streaming)
			b.fill(201, 1)
			want := b.ids()
			events := r.awaitEvents(len(want))
			if diff := cmp.Diff(want, distinctIDs(events)); diff != "" || len(events) != len(want) {
				t.Errorf("%d events of %d rows (-want +got):\n%s", len(events), len(want), diff)
			}
		})
	}
}

// TestBacklog_Stop: a relay that is told to stop halfway finishes what is under way, and the next one goes on.
func TestBacklog_Stop(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	const n = 20000
	b.fill(1, n)
	var mu sync.Mutex
	seen := map[string]int{}
	add := func(r *relay) {
		for _, e := range r.seen() {
			seen[e.id]++
		}
	}
	taken := make(chan struct{}, n)
	r := b.start(func(m *memorySink) {
		m.taken = func(got) bool { mu.Lock(); defer mu.Unlock(); taken <- struct{}{}; return true }
	})
	for range 500 {
		<-taken
	}
	r.stopCleanly()
	add(r)
	if left := len(b.listed()); left+len(seen) != n || left == 0 {
		t.Errorf("%d are published and %d left of %d", len(seen), left, n)
	}
	r = b.start(nil)
	r.awaitState(state.Streaming)
	add(r)
	for id, times := range seen {
		if times != 1 {
			t.Fatalf("event %s came %d times", id, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d events came", len(seen), n)
	}
}

// TestBacklog_Overtaken: a relay that lost the slot deletes nothing from the list.
func TestBacklog_Overtaken(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog = cdc.BacklogPublish
	b.fill(1, 100)
	b.ensured()
	var first *memorySink
	var mu sync.Mutex
	r := b.start(func(m *memorySink) {
		mu.Lock()
		defer mu.Unlock()
		m.held = true
		if first == nil {
			first = m
		}
	})
	r.awaitEvents(100)
	b.exec(`update outbox.relay_state set owner = 'another'`)
	mu.Lock()
	first.free()
	mu.Unlock()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		n := r.stream.Stats().Sessions
		return n >= 2, fmt.Sprintf("%d sessions", n)
	})
	r.awaitEvents(200)
	if left, phase := len(b.listed()), b.phase(); left != 100 || phase != "backlog" {
		t.Errorf("a relay that lost the slot left %d of 100 entries in phase %s", left, phase)
	}
}

// TestBacklog_Refused: rows that a slot does not bring need a decision, and only a slot of the relay's own can have
// a list.
func TestBacklog_Refused(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.fill(1, 3)
	r := b.start(nil)
	st := r.awaitState(state.ConfigInvalid)
	if !strings.Contains(st.Reason, "3 rows") || !strings.Contains(st.Hint, "backlog: publish") {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
	r.stopCleanly()
	b.ensurePublication()
	b.exec(`delete from outbox.relay_state`)
	b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
	b.cfg.Backlog, b.cfg.Ensure = cdc.BacklogPublish, false
	r = b.start(nil)
	st = r.awaitState(state.ConfigInvalid)
	if !strings.Contains(st.Reason, "made by somebody else") || !strings.Contains(st.Hint, "drop the slot") {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
	r.stopCleanly()
	if len(r.seen()) != 0 {
		t.Error("events came")
	}
	b.cfg.Backlog = cdc.BacklogSkip
	r = b.start(nil)
	r.awaitState(state.Streaming)
	b.fill(4, 1)
	if got := payloads(r.awaitEvents(1)); got[0] != `{"n" : 4}` {
		t.Errorf("after skip came %v", got)
	}
}

func (b *bench) ensurePublication() {
	b.t.Helper()
	b.exec(`drop publication if exists relay`)
	b.exec(`create publication relay for table outbox.events with (publish = 'insert')`)
}

// TestBacklog_KeepsWhatIsNotAcknowledged: an entry leaves the list when its event is acknowledged, not when it is read.
func TestBacklog_KeepsWhatIsNotAcknowledged(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.Backlog, b.cfg.ConfirmInterval = cdc.BacklogPublish, 10*time.Millisecond
	b.fill(1, 10)
	sinks := make(chan *memorySink, 1)
	r := b.start(func(m *memorySink) { m.held = true; sinks <- m })
	r.awaitEvents(10)
	(<-sinks).done([]uint64{1, 2, 3, 4})
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		n := len(b.listed())
		return n <= 6, fmt.Sprintf("%d entries are listed", n)
	})
	for range 20 { // 20 looks, each some intervals apart
		<-time.After(20 * time.Millisecond)
		if n := len(b.listed()); n != 6 {
			t.Fatalf("%d entries are listed and 6 events unacknowledged", n)
		}
	}
	r.crash()
	r = b.start(nil)
	r.awaitState(state.Streaming)
	if n := len(r.seen()); n != 6 {
		t.Errorf("%d events came again, want the 6", n)
	}
}
