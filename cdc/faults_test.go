package cdc_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// viaProxy puts a proxy between the relay and the server.
func (b *bench) viaProxy() *faultproxy.Proxy {
	b.t.Helper()
	u, err := url.Parse(b.db.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	p, err := faultproxy.New(u.Host)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { p.Close() })
	host, port, err := net.SplitHostPort(p.Addr())
	if err != nil {
		b.t.Fatal(err)
	}
	b.change(func(c *pgx.ConnConfig) {
		c.Host = host
		fmt.Sscan(port, &c.Port)
	})
	return p
}

// distinct returns the payloads in the order of their first arrival, and fails on a sequence that is not made of
// overlapping contiguous runs.
func distinct(t *testing.T, events []got) []string {
	t.Helper()
	index := map[string]int{}
	var order []string
	for i, e := range events {
		if _, ok := index[e.id]; !ok {
			if i > 0 && len(order) > 0 && index[events[i-1].id] != len(order)-1 {
				t.Errorf("event %s came first while an older run was repeated", e.payload)
			}
			index[e.id] = len(order)
			order = append(order, e.payload)
			continue
		}
		if i > 0 && index[e.id] > index[events[i-1].id]+1 {
			t.Errorf("event %s left out others in a repeated run", e.payload)
		}
	}
	return order
}

// TestStream_CutAnywhere cuts the stream after every so many bytes: a transaction that came in half comes again
// as a whole, and nothing is lost or reordered.
func TestStream_CutAnywhere(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.ensured()
	b.cfg.BackoffMin, b.cfg.BackoffMax = time.Millisecond, 5*time.Millisecond
	proxy := b.viaProxy()
	const transactions, perTransaction = 20, 5
	n := 0
	for range transactions {
		b.exec(`begin`)
		for range perTransaction {
			b.publish(n)
			n++
		}
		b.exec(`commit`)
	}
	r := b.start(nil)
	// One connection is cut after ever more bytes, until one lives long enough to bring everything.
	for cut := int64(200); ; cut += 1237 {
		proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{CutAfter: cut}})
		before := proxy.Accepted()
		done := false
		testenv.Eventually(t, 30*time.Second, func() (bool, string) {
			done = len(distinctIDs(r.seen())) == n
			return done || proxy.Accepted() > before+1, fmt.Sprintf("cut at %d: %d of %d events", cut, len(distinctIDs(r.seen())), n)
		})
		if done {
			break
		}
	}
	proxy.Heal()
	got := distinct(t, r.seen())
	for i, p := range got {
		if want := fmt.Sprintf(`{"n" : %d}`, i); p != want {
			t.Fatalf("event %d is %s, want %s", i, p, want)
		}
	}
	if s := r.stream.Stats().Sessions; s < 2 {
		t.Errorf("%d sessions: nothing was cut", s)
	}
}

func distinctIDs(events []got) map[string]bool {
	ids := map[string]bool{}
	for _, e := range events {
		ids[e.id] = true
	}
	return ids
}

// TestStream_Blackhole: the network swallows everything without a word.
func TestStream_Blackhole(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.SilenceLimit, b.cfg.QueryTimeout, b.cfg.StatusInterval = 500*time.Millisecond, time.Second, 200*time.Millisecond
	b.exec(`alter role postgres in database ` + b.db.Name + ` set wal_sender_timeout = '2s'`)
	proxy := b.viaProxy()
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	proxy.Set(faultproxy.Both(faultproxy.Path{Drop: true}))
	r.awaitState(state.DatabaseUnreachable)
	proxy.Heal()
	b.publish(2)
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		return len(distinctIDs(r.seen())) == 2, fmt.Sprint(r.lastState())
	})
}

func TestStream_WalsenderTerminated(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.BackoffMin, b.cfg.BackoffMax = time.Millisecond, 10*time.Millisecond
	r := b.start(nil)
	r.awaitState(state.Streaming)
	for i := range 10 {
		b.publish(i)
		b.exec(`select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active`, b.cfg.Slot)
	}
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		return len(distinctIDs(r.seen())) == 10, fmt.Sprintf("%d of 10, %v", len(distinctIDs(r.seen())), r.lastState())
	})
	distinct(t, r.seen())
}

// TestStream_ServerMayStop: a server that is told to stop gets its way at once, with an event unacknowledged and
// the sink stuck, and the relay is there again after the restart.
func TestStream_ServerMayStop(t *testing.T) {
	for name, prepare := range map[string]func(*memorySink){
		"unacknowledged": func(m *memorySink) { m.held = true },
		"sink stuck":     func(m *memorySink) { m.stuck = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.Dedicated(t, pgserver.Config{})
			b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
			b.cfg.BackoffMax = 100 * time.Millisecond
			first := true
			r := b.start(func(m *memorySink) {
				if first {
					prepare(m)
				}
				first = false
			})
			r.awaitState(state.Streaming)
			b.exec(`select outbox.publish('k', 'Order', 'a', 'Made', to_json(repeat('x', 300))) from generate_series(1, 20000)`)
			testenv.Eventually(t, 20*time.Second, func() (bool, string) {
				n := r.stream.Stats().ReceivedEvents
				return n > 100, fmt.Sprintf("%d events received", n)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := server.Restart(ctx); err != nil {
				t.Fatalf("the server could not stop: %v", err)
			}
			testenv.Eventually(t, 60*time.Second, func() (bool, string) {
				n := len(distinctIDs(r.seen()))
				return n == 20000, fmt.Sprintf("%d of 20000 events after the restart, %v", n, r.lastState())
			})
		})
	}
}

func TestStream_ServerCrash(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
	b.cfg.BackoffMax = 100 * time.Millisecond
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		return !r.stream.Stats().LastConfirm.IsZero(), "nothing confirmed"
	})
	// The crash moves the slot back to its last checkpoint; relay_state says where to go on.
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.app = b.connect()
	b.publish(2)
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		return len(distinctIDs(r.seen())) == 2, fmt.Sprint(r.lastState())
	})
	if n := len(r.seen()); n != 2 {
		t.Errorf("%d events, want 2: a confirmed one came again", n)
	}
}

// TestStream_StandbyIsQuiet: standby relays write nothing into the server's log.
func TestStream_StandbyIsQuiet(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
	b.cfg.StandbyInterval = 20 * time.Millisecond
	active := b.start(nil)
	active.awaitState(state.Streaming)
	logged := func() int {
		text, err := os.ReadFile(server.LogPath())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "ERROR") + strings.Count(string(text), "FATAL")
	}
	before := logged()
	standbys := []*relay{b.start(nil), b.start(nil), b.start(nil)}
	for _, s := range standbys {
		s.awaitState(state.Standby)
	}
	b.publish(1)
	active.awaitEvents(1)
	active.crash()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		n := 0
		for _, s := range standbys {
			if s.lastState().State == state.Streaming {
				n++
			}
		}
		return n == 1, fmt.Sprintf("%d standbys stream", n)
	})
	if after := logged(); after > before+len(standbys)-1 {
		t.Errorf("the server's log has %d new errors", after-before)
	}
}

// TestStream_NoLeak: sessions leave no goroutine and no connection behind.
func TestStream_NoLeak(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.ensured()
	run := func() {
		r := b.start(nil)
		r.awaitState(state.Streaming)
		r.crash()
	}
	run()
	before := runtime.NumGoroutine()
	for range 20 {
		run()
	}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		n := runtime.NumGoroutine()
		return n <= before+2, fmt.Sprintf("%d goroutines, %d before", n, before)
	})
}
