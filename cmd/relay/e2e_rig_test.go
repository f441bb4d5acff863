package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
	"github.com/outboxrelay/relay/outbox"
)

// The tests named E2E run the relay as a process of its own between real servers, with the defaults of a release,
// and judge it by what is in the topic, in the database and on its admin listener. A fake broker takes Kafka's place
// only where one partition of several must misbehave. RELAY_TEST_SEED repeats what a workload tried;
// RELAY_TEST_SOAK=1 kills for a long time; -short does less of everything.

// rig is a database with an outbox, a topic, and relays between them.
type rig struct {
	t       *testing.T
	db      *testenv.Database
	conn    *pgx.Conn // for the test itself
	brokers []string
	topic   string
	slot    string
}

// sharedPostgres is the server of all tests here that do not harm it.
func sharedPostgres(t *testing.T) *pgserver.Server {
	return testenv.PostgresWith(t, 0, map[string]string{"max_prepared_transactions": "100"})
}

// newRig makes a database on the server and a topic on the brokers.
func newRig(t *testing.T, server *pgserver.Server, brokers []string, partitions int32) *rig {
	t.Helper()
	r := newRigWithoutTopic(t, server, brokers)
	testenv.CreateTopic(t, brokers, r.topic, partitions, nil)
	return r
}

func newRigWithoutTopic(t *testing.T, server *pgserver.Server, brokers []string) *rig {
	t.Helper()
	r := &rig{t: t, db: testenv.NewDatabaseOn(t, server.DSN("postgres", "")), brokers: brokers}
	r.slot, r.topic = r.db.Name, "topic-"+r.db.Name
	r.conn = r.connect()
	if _, err := migrations.Up(t.Context(), r.conn.Config(), migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) connect() *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.db.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(r.t.Context())) })
	return conn
}

// reconnect takes the test's connection anew after the server was away.
func (r *rig) reconnect() {
	r.t.Helper()
	_ = r.conn.Close(r.t.Context())
	r.conn = r.connect()
}

// start runs a relay on the rig with the defaults of a user who has set what must be set.
func (r *rig) start(environ ...string) *relayProcess {
	r.t.Helper()
	return startRelay(r.t, append(r.environ(), environ...)...)
}

func (r *rig) environ() []string {
	return []string{
		"RELAY_POSTGRES_URL=" + r.db.URL,
		"RELAY_POSTGRES_SLOT=" + r.slot,
		"RELAY_POSTGRES_ENSURE=true",
		"RELAY_KAFKA_BROKERS=" + r.brokers[0],
		"RELAY_ROUTE_TOPIC=" + r.topic,
	}
}

// startStreaming is start, and the wait until the relay streams.
func (r *rig) startStreaming(environ ...string) *relayProcess {
	r.t.Helper()
	p := r.start(environ...)
	p.awaitState(state.Streaming, 30*time.Second)
	return p
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.conn.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// publish commits n events of an aggregate, a transaction each, and returns their IDs.
func (r *rig) publish(aggregate string, n int) []string {
	r.t.Helper()
	ids := make([]string, n)
	for i := range ids {
		if err := r.conn.QueryRow(r.t.Context(), `
			SELECT outbox.publish('key:' || $2::int, 'Order', $1, 'Made', json_build_object('n', $2::int))::text`, aggregate, i).Scan(&ids[i]); err != nil {
			r.t.Fatal(err)
		}
	}
	return ids
}

// publishOne commits one event and returns its ID, and an LSN before its commit: one that may be confirmed while the
// event is not published, as nothing beyond it may.
func (r *rig) publishOne(aggregate string) (id string, before outbox.LSN) {
	r.t.Helper()
	return r.publishValue(aggregate, 10)
}

// publishValue is publishOne with a value of n bytes.
func (r *rig) publishValue(aggregate string, n int) (id string, before outbox.LSN) {
	r.t.Helper()
	if err := r.conn.QueryRow(r.t.Context(), `
		SELECT outbox.publish('one', 'Order', $1, 'Made', payload_bytes => decode(repeat('ab', $2::int), 'hex'))::text, pg_current_wal_insert_lsn()::text`,
		aggregate, n).Scan(&id, &before); err != nil {
		r.t.Fatal(err)
	}
	return id, before
}

// mustNotConfirm fails the test if more is confirmed than up to before.
func (r *rig) mustNotConfirm(before outbox.LSN) {
	r.t.Helper()
	if c := r.confirmed(); c > before {
		r.t.Fatalf("%s is confirmed, and an event committed after %s is not published", c, before)
	}
}

// publishBulk commits n events of about 250 bytes over 1000 aggregates in one transaction.
func (r *rig) publishBulk(n int) {
	r.t.Helper()
	r.exec(`
		INSERT INTO outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload)
		SELECT 'key:' || i, 'Order', 'order-' || i % 1000, 'Made', json_build_object('n', i, 'text', repeat('x', 200)) FROM generate_series(1, $1::int) i`, n)
}

// flushed returns how far the server's WAL is written.
func (r *rig) flushed() outbox.LSN {
	r.t.Helper()
	return r.lsn(`SELECT pg_current_wal_flush_lsn()::text`)
}

// confirmed returns what the server may throw away for all the relay cares.
func (r *rig) confirmed() outbox.LSN {
	r.t.Helper()
	return r.lsn(`SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, r.slot)
}

func (r *rig) lsn(sql string, args ...any) (lsn outbox.LSN) {
	r.t.Helper()
	if err := r.conn.QueryRow(r.t.Context(), sql, args...).Scan(&lsn); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return lsn
}

// keepalives waits until the relay has heard of the WAL's end of this moment, though nothing there concerns it.
func (r *rig) keepalives(p *relayProcess) {
	r.t.Helper()
	end := r.flushed()
	p.awaitStatus(30*time.Second, fmt.Sprintf("has not received %s", end), func(s *Report) bool { return received(s) >= end })
}

func received(s *Report) outbox.LSN {
	lsn, err := outbox.ParseLSN(s.Slot.ReceivedLSN)
	if err != nil {
		return 0
	}
	return lsn
}

// drained waits until the relay has published all that has been committed.
func (r *rig) drained(p *relayProcess, within time.Duration) Report {
	r.t.Helper()
	end := r.flushed()
	return p.awaitStatus(within, fmt.Sprintf("has not published all up to %s", end), func(s *Report) bool {
		return s.State == state.Streaming && received(s) >= end && s.Backlog.Events == 0
	})
}

// consume reads the topic as it is now.
func (r *rig) consume() []testenv.Record {
	r.t.Helper()
	return testenv.Consume(r.t, r.brokers, r.topic)
}

// mustHave fails the test unless the topic holds each of the IDs, and once only if it says so.
func (r *rig) mustHave(ids []string, once bool) {
	r.t.Helper()
	count := map[string]int{}
	for _, rec := range r.consume() {
		id, _ := rec.Header("id")
		count[id]++
	}
	for _, id := range ids {
		if n := count[id]; n == 0 || once && n > 1 {
			r.t.Errorf("event %s is %d times in the topic", id, n)
		}
		delete(count, id)
	}
	if len(count) > 0 {
		r.t.Errorf("in the topic, and not published: %v", count)
	}
}

// throughout fails the test unless check holds all the time for d.
func throughout(t *testing.T, d time.Duration, check func() (ok bool, why string)) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, why := check(); !ok {
			t.Fatal(why)
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		}
	}
}

// proxiedKafka starts a broker that everybody reaches through a proxy, the address it tells its clients included.
func proxiedKafka(t *testing.T) (*kafkaserver.Broker, *faultproxy.Proxy) {
	t.Helper()
	proxy, err := faultproxy.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: map[string]string{"advertised.listeners": "PLAINTEXT://" + proxy.Addr()}})
	proxy.SetTarget(broker.Brokers()[0])
	return broker, proxy
}
