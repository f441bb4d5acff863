package cdc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// at points the bench, its database included, at another server that has a copy of it.
func (b *bench) at(server *pgserver.Server) {
	b.t.Helper()
	b.db = &testenv.Database{Name: b.db.Name, URL: server.DSN(b.db.Name, "")}
	dsn := b.db.URL
	b.cfg.Connect = func() (*pgx.ConnConfig, error) { return pgx.ParseConfig(dsn) }
	b.app = b.connect()
}

// onServer makes the bench's database on a server of the test's own, which nobody has to clean up.
func onServer(t *testing.T, server *pgserver.Server, name string, change ...func(*cdc.Config)) *bench {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), server.DSN("postgres", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(t.Context())
	if _, err := admin.Exec(t.Context(), "create database "+name); err != nil {
		t.Fatal(err)
	}
	return setup(t, &testenv.Database{Name: name, URL: server.DSN(name, "")}, change...)
}

// caughtUp waits until the standby has replayed all that the bench's server has written.
func (b *bench) caughtUp(standby *pgserver.Server) *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), standby.DSN(b.db.Name, ""))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close(b.t.Context()) })
	var end string
	if err := b.app.QueryRow(b.t.Context(), `select pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		b.t.Fatal(err)
	}
	testenv.Eventually(b.t, 30*time.Second, func() (bool, string) {
		var ok bool
		var at *string
		if err := conn.QueryRow(b.t.Context(), `select coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false), pg_last_wal_replay_lsn()::text`, end).Scan(&ok, &at); err != nil {
			b.t.Fatal(err)
		}
		return ok, fmt.Sprintf("the standby has replayed %v, want %s", at, end)
	})
	return conn
}

func promote(t *testing.T, standby *pgx.Conn) {
	t.Helper()
	var ok bool
	if err := standby.QueryRow(t.Context(), `select pg_promote(true, 30)`).Scan(&ok); err != nil || !ok {
		t.Fatalf("promote: %v, %v", ok, err)
	}
}

// TestPromotion_WithoutSlot: a standby that knows nothing of the slot is promoted. The relay says so, and recovery
// publishes what the old primary's relay had not.
func TestPromotion_WithoutSlot(t *testing.T) {
	primary := testenv.Dedicated(t, pgserver.Config{})
	b := onServer(t, primary, "shop")
	b.settled(1, 30)
	standby := testenv.Standby(t, primary, nil)
	b.at(primary)
	b.fill(101, 10) // nobody relays these
	conn := b.caughtUp(standby)
	r := b.start(nil)
	r.awaitState(state.Streaming)
	r.stopCleanly()

	// A relay that asks the standby before its promotion is told where to go.
	b.at(standby)
	r = b.start(nil)
	if st := r.awaitState(state.ConfigInvalid); !strings.Contains(st.Reason, "standby") {
		t.Errorf("reason %q", st.Reason)
	}
	r.stopCleanly()

	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	promote(t, conn)
	r = b.start(nil)
	st := r.awaitState(state.SlotMissing)
	for _, want := range []string{"on timeline 2, which was 1", "confirmed is everything up to", "may not have been published"} {
		if !strings.Contains(st.Reason, want) {
			t.Errorf("reason %q does not say %q", st.Reason, want)
		}
	}
	r.stopCleanly()
	b.fill(201, 10)
	b.recover(cdc.Scope{}, state.SlotMissing)
	r = b.start(nil)
	r.awaitState(state.Streaming)
	b.fill(301, 1)
	want := b.idsOf(`select id::text from outbox.events where event_key <> 'key:0' and substr(event_key, 5)::int > 200`)
	r.awaitIDs(want)
}

// TestPromotion_FailoverSlot: the standby has the slot too. The relay goes on there, says that the timeline changed,
// and loses nothing; and where the slot is ahead of what relay_state holds it stops.
func TestPromotion_FailoverSlot(t *testing.T) {
	for _, major := range []int{17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			promoteFailoverSlot(t, testenv.Dedicated(t, pgserver.Config{Major: major}))
		})
	}
}

func promoteFailoverSlot(t *testing.T, primary *pgserver.Server) {
	b := onServer(t, primary, "shop", func(c *cdc.Config) { c.Failover = true })
	b.exec(`select pg_create_physical_replication_slot('standby')`)
	b.settled(1, 30)
	standby := testenv.Standby(t, primary, map[string]string{
		"sync_replication_slots": "on", "hot_standby_feedback": "on", "primary_slot_name": "standby",
	})
	b.at(primary)
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.fill(101, 10)
	r.awaitEvents(10)
	conn := b.caughtUp(standby)
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		var synced bool
		err := conn.QueryRow(t.Context(), `select synced and not temporary from pg_replication_slots where slot_name = $1`, b.cfg.Slot).Scan(&synced)
		b.exec(publishSQL, "0") // the slot on the standby becomes usable as the one on the primary moves
		return err == nil && synced, fmt.Sprintf("slot on the standby: %v, %v", synced, err)
	})
	r.stopCleanly()
	b.fill(201, 10) // nobody relays these before the failover
	b.caughtUp(standby)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	promote(t, conn)
	b.at(standby)

	changed := make(chan string, 1)
	b.listener.TimelineChanged = func(from, to int32) { changed <- fmt.Sprintf("%d to %d", from, to) }
	r = b.start(nil)
	r.awaitState(state.Streaming)
	if got := <-changed; got != "1 to 2" {
		t.Errorf("timeline %s", got)
	}
	b.fill(301, 10)
	want := b.idsOf(`select id::text from outbox.events where event_key <> 'key:0' and substr(event_key, 5)::int > 200`)
	r.awaitIDs(want)
	r.stopCleanly()

	// As if the promotion had lost the last writes to relay_state, with the slot already told of them.
	b.exec(`update outbox.relay_state set confirmed_lsn = confirmed_lsn - 1000`)
	r = b.start(nil)
	if st := r.awaitState(state.SlotRecreated); !strings.Contains(st.Hint, "promoted standby") || !strings.Contains(st.Hint, "relay recover") {
		t.Errorf("hint %q", st.Hint)
	}
	r.stopCleanly()
	if events := r.seen(); len(events) != 0 {
		t.Errorf("%d events came past a gap", len(events))
	}
}

func TestFailover_NeedsPostgres17(t *testing.T) {
	server := testenv.PostgresMajor(t, 15)
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")), func(c *cdc.Config) { c.Failover = true })
	r := b.start(nil)
	if st := r.awaitState(state.ConfigInvalid); !strings.Contains(st.Reason, "PostgreSQL 15") {
		t.Errorf("reason %q", st.Reason)
	}
}

// TestHistoryChanged_Restored: an older copy of the data directory is put back, or the database is loaded into
// another server. The copy has the same system identifier, so its slot and relay_state fit together; another server
// has not, and safe_xid means nothing there.
func TestHistoryChanged_Restored(t *testing.T) {
	first := testenv.Dedicated(t, pgserver.Config{})
	b := onServer(t, first, "shop")
	b.settled(1, 30)
	second := testenv.Dedicated(t, pgserver.Config{Major: first.Major()})
	rows := b.dump()
	b2 := onServer(t, second, "shop")
	b2.load(rows)
	b2.cfg.Backlog = cdc.BacklogSkip
	b2.fill(101, 5)
	r := b2.start(nil)
	st := r.awaitState(state.HistoryChanged)
	for _, want := range []string{"relay_state of slot", "this is server", "cannot be told"} {
		if !strings.Contains(st.Reason, want) {
			t.Errorf("reason %q does not say %q", st.Reason, want)
		}
	}
	r.stopCleanly()
	if n := len(b2.idsOf(`select slot_name from pg_replication_slots where slot_name = $1`, b2.cfg.Slot)); n != 0 {
		t.Error("a slot was made in a restored database")
	}
	if _, err := b2.planner().PlanRecovery(t.Context(), cdc.Scope{}); err == nil || !strings.Contains(err.Error(), "scope") {
		t.Errorf("safe_xid of another server was believed: %v", err)
	}
	b2.recover(cdc.Scope{All: true}, state.HistoryChanged)
	r = b2.start(nil)
	r.awaitState(state.Streaming)
	if got, want := distinctIDs(r.seen()), b2.ids(); len(got) != len(want) {
		t.Errorf("%d events of %d", len(got), len(want))
	}
}

// dump takes rows and relay_state as SQL, as pg_dump would.
func (b *bench) dump() (sql []string) {
	b.t.Helper()
	for _, table := range []string{"outbox.events", "outbox.relay_state"} {
		rows, err := b.app.Query(b.t.Context(), `select to_json(t)::text from `+table+` t`)
		if err != nil {
			b.t.Fatal(err)
		}
		list, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			b.t.Fatal(err)
		}
		for _, row := range list {
			sql = append(sql, fmt.Sprintf(`insert into %s select * from json_populate_record(null::%s, '%s')`, table, table, strings.ReplaceAll(row, "'", "''")))
		}
	}
	return sql
}

func (b *bench) load(sql []string) {
	b.t.Helper()
	for _, s := range sql {
		b.exec(s)
	}
}
