package cdc_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
	"github.com/outboxrelay/relay/outbox"
)

var store = relaystate.Store{}

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// got is one event as the sink saw it.
type got struct {
	seq          uint64
	pos          outbox.Position
	id, key, typ string
	payload      string
	null         bool
	whole        string // every other column
}

// memorySink takes events into memory. While held, it acknowledges nothing; while stuck, Accept blocks.
type memorySink struct {
	done func([]uint64)

	mu     sync.Mutex
	events []got
	open   []uint64 // accepted, not acknowledged
	held   bool
	stuck  chan struct{} // closed: not stuck
	drain  chan struct{}
	taken  func(got) bool // false: hold this one's acknowledgement, for ever
}

func (m *memorySink) Accept(ctx context.Context, first uint64, events []outbox.Committed) error {
	m.mu.Lock()
	stuck := m.stuck
	m.mu.Unlock()
	select {
	case <-stuck:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, e := range events {
		g := got{first + uint64(i), e.Position, string(e.ID), string(e.EventKey), string(e.EventType), string(e.Payload), e.Payload == nil, rest(&e)}
		m.events = append(m.events, g)
		if m.taken == nil || m.taken(g) {
			m.open = append(m.open, g.seq)
		}
	}
	m.release()
	return nil
}

func rest(e *outbox.Committed) string {
	return fmt.Sprintf("%s %q %q %q %q %q %q occurred %s", e.ID, e.AggregateType, e.AggregateID, e.Tenant, e.Headers, e.Topic, e.PartitionKey, e.OccurredAt)
}

func (m *memorySink) release() {
	if !m.held && len(m.open) > 0 {
		m.done(m.open)
		m.open = nil
	}
}

func (m *memorySink) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.drain:
	}
	for {
		m.mu.Lock()
		left := len(m.open)
		m.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

func (m *memorySink) Drain() { close(m.drain) }

func (m *memorySink) seen() []got {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]got(nil), m.events...)
}

// bench is a database with an outbox, and relays on it.
type bench struct {
	t   *testing.T
	db  *testenv.Database
	app *pgx.Conn
	cfg cdc.Config

	listener cdc.Listener // its State is the bench's own
}

func setup(t *testing.T, db *testenv.Database, change ...func(*cdc.Config)) *bench {
	t.Helper()
	b := &bench{t: t, db: db}
	pc, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), pc, migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	b.app = b.connect()
	b.cfg = cdc.DefaultConfig()
	b.cfg.Slot = db.Name
	b.cfg.Connect = func() (*pgx.ConnConfig, error) { return pgx.ParseConfig(db.URL) }
	b.cfg.ConfirmInterval = 50 * time.Millisecond
	b.cfg.Ensure = true
	for _, c := range change {
		c(&b.cfg)
	}
	return b
}

func (b *bench) connect() *pgx.Conn {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.db.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.app.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// publish commits one event with this payload.
func (b *bench) publish(n int) {
	b.t.Helper()
	b.exec(publishSQL, fmt.Sprint(n))
}

const publishSQL = `select outbox.publish('key:' || $1::text, 'Order', 'agg', 'Made', json_build_object('n', $1::text::int))`

// relay is a running stream with the sinks of its sessions.
type relay struct {
	b      *bench
	stream *cdc.Stream
	stop   context.CancelFunc
	kill   context.CancelFunc
	ended  chan error

	mu     sync.Mutex
	sinks  []*memorySink
	states []state.Status
}

// start runs a relay. prepare, if not nil, sees each session's sink before it is used.
func (b *bench) start(prepare func(*memorySink)) *relay {
	b.t.Helper()
	r := &relay{b: b, ended: make(chan error, 1)}
	open := func(s cdc.Session) (cdc.Sink, error) {
		m := &memorySink{done: s.Done, drain: make(chan struct{}), stuck: make(chan struct{})}
		close(m.stuck)
		if prepare != nil {
			prepare(m)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sinks = append(r.sinks, m)
		return m, nil
	}
	listener := b.listener
	listener.State = func(s state.Status) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.states = append(r.states, s)
	}
	stream, err := cdc.NewStream(b.cfg, store, open, listener)
	if err != nil {
		b.t.Fatal(err)
	}
	r.stream = stream
	soft, stop := context.WithCancel(context.Background())
	hard, kill := context.WithCancel(context.Background())
	r.stop, r.kill = stop, kill
	go func() { r.ended <- stream.Run(soft, hard) }()
	b.t.Cleanup(func() { r.kill(); r.stop(); r.wait() })
	return r
}

// wait returns what Run returned.
func (r *relay) wait() error {
	err := <-r.ended
	r.ended <- err
	return err
}

// stopCleanly stops the relay and fails the test if it did not go well.
func (r *relay) stopCleanly() {
	r.b.t.Helper()
	r.stop()
	if err := r.wait(); err != nil {
		r.b.t.Fatalf("stop: %v", err)
	}
}

// crash ends the relay without a last word.
func (r *relay) crash() {
	r.kill()
	r.stop()
	_ = r.wait()
}

func (r *relay) seen() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []got
	for _, s := range r.sinks {
		all = append(all, s.seen()...)
	}
	return all
}

// awaitEvents waits for n events in all sessions together.
func (r *relay) awaitEvents(n int) []got {
	r.b.t.Helper()
	var all []got
	testenv.Eventually(r.b.t, 30*time.Second, func() (bool, string) {
		all = r.seen()
		return len(all) >= n, fmt.Sprintf("%d of %d events; states %v", len(all), n, r.lastState())
	})
	return all
}

func (r *relay) lastState() state.Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.states) == 0 {
		return state.Status{}
	}
	return r.states[len(r.states)-1]
}

func (r *relay) awaitState(want state.State) state.Status {
	r.b.t.Helper()
	var st state.Status
	testenv.Eventually(r.b.t, 60*time.Second, func() (bool, string) {
		st = r.lastState()
		return st.State == want, fmt.Sprintf("state is %q (%s), want %q", st.State, st.Reason, want)
	})
	return st
}

// confirmed reads what relay_state and the slot say.
func (b *bench) confirmed() (relay, slot outbox.LSN) {
	b.t.Helper()
	if err := b.app.QueryRow(b.t.Context(), `
		select s.confirmed_lsn::text, r.confirmed_flush_lsn::text
		from outbox.relay_state s join pg_replication_slots r on r.slot_name = s.slot where s.slot = $1`, b.cfg.Slot).Scan(&relay, &slot); err != nil {
		b.t.Fatal(err)
	}
	return relay, slot
}

func payloads(events []got) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.payload
	}
	return out
}
