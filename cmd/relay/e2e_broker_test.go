package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// unreachable is a broker behind a network that lets nobody through.
func unreachable(proxy *faultproxy.Proxy) {
	proxy.Set(faultproxy.Faults{Refuse: true})
	proxy.Reset()
}

// TestE2E_Broker is what Kafka can do to a relay, one fault after the other on one real broker.
func TestE2E_Broker(t *testing.T) {
	t.Parallel()
	broker, proxy := proxiedKafka(t)
	rigOn := func(t *testing.T, server *pgserver.Server, partitions int32) *rig {
		r := newRig(t, server, []string{proxy.Addr()}, partitions)
		t.Cleanup(proxy.Heal) // whatever became of the test, the next one begins in peace
		return r
	}

	// The broker has not got a record, keepalives speak of later WAL, and the relay is killed: the record is not
	// lost, because the server was never told that it is not needed.
	t.Run("keepalives while a record is held", func(t *testing.T) {
		r := rigOn(t, sharedPostgres(t), 1)
		p := r.startStreaming()
		ids := r.publish("order-1", 1)
		r.drained(p, 30*time.Second)
		proxy.Set(faultproxy.Faults{ToTarget: faultproxy.Path{Pause: true}})
		id, before := r.publishOne("order-1")
		ids = append(ids, id)
		if err := chaos.Noise(t.Context(), r.conn, 3); err != nil {
			t.Fatal(err)
		}
		r.keepalives(p)
		stillUnconfirmed(r, before)
		p.kill()
		proxy.Reset() // what was held never arrives
		proxy.Heal()
		p = r.startStreaming()
		r.drained(p, 30*time.Second)
		p.stop()
		r.mustHave(ids, false)
	})

	t.Run("outage", func(t *testing.T) {
		r := rigOn(t, sharedPostgres(t), 3)
		p := r.startStreaming()
		ids := r.publish("order-1", 1)
		r.drained(p, 30*time.Second)
		unreachable(proxy)
		id, before := r.publishOne("order-1")
		ids = append(ids, id)
		for i := range 20 {
			ids = append(ids, r.publish(fmt.Sprint("order-", i), 5)...)
		}
		p.awaitState(state.BrokerUnreachable, 20*time.Second)
		if err := chaos.Noise(t.Context(), r.conn, 3); err != nil {
			t.Fatal(err)
		}
		r.keepalives(p)
		stillUnconfirmed(r, before)
		p.kill()
		p = r.start()
		p.awaitState(state.BrokerUnreachable, 20*time.Second) // from the start
		proxy.Heal()
		p.awaitState(state.Streaming, 20*time.Second)
		r.drained(p, 30*time.Second)
		p.stop()
		r.mustHave(ids, false)
	})

	// A broker that freezes or dies ends no session, and batches are idempotent: nothing is in the topic twice.
	t.Run("frozen and killed", func(t *testing.T) {
		r := rigOn(t, sharedPostgres(t), 3)
		p := r.startStreaming("RELAY_KAFKA_REQUEST_TIMEOUT=2s")
		w := r.write(seed(t))
		flows := func() {
			t.Helper()
			before := p.status().Published.Events
			p.awaitStatus(60*time.Second, "no events flow", func(s *Report) bool {
				return s.State == state.Streaming && s.Published.Events > before+200
			})
		}
		flows()
		if err := broker.Pause(); err != nil {
			t.Fatal(err)
		}
		p.awaitState(state.BrokerUnreachable, 20*time.Second)
		if err := broker.Continue(); err != nil {
			t.Fatal(err)
		}
		flows()
		if err := broker.Kill(); err != nil {
			t.Fatal(err)
		}
		p.awaitState(state.BrokerUnreachable, 20*time.Second)
		if err := broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		flows()
		proxy.Reset()
		flows()
		if s := p.status(); s.Slot.Sessions != 1 {
			t.Errorf("it took %d sessions", s.Slot.Sessions)
		}
		w.verify(p, 0)
	})

	// PostgreSQL ends a walsender whose client is silent for wal_sender_timeout. A relay that waits for Kafka is not.
	t.Run("delayed beyond wal_sender_timeout", func(t *testing.T) {
		if testing.Short() {
			t.Skip("skipped: takes half a minute")
		}
		server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"wal_sender_timeout": "3s"}})
		r := rigOn(t, server, 3)
		p := r.startStreaming()
		ids := r.publish("order-1", 1)
		r.drained(p, 30*time.Second)
		proxy.Set(faultproxy.Faults{ToTarget: faultproxy.Path{Pause: true}})
		const rows = 100_000
		r.publishBulk(rows)
		p.awaitStatus(30*time.Second, "receives nothing", func(s *Report) bool { return s.Received.Events > rows/10 })
		throughout(t, 10*time.Second, func() (bool, string) {
			s := p.status()
			return s.Slot.Sessions == 1 && s.Slot.Held, fmt.Sprintf("the stream broke off: %+v", s)
		})
		proxy.Heal()
		s := r.drained(p, time.Minute)
		if s.Slot.Sessions != 1 || s.Received.Events != uint64(rows+len(ids)) {
			t.Errorf("%d events came in %d sessions, want %d in one", s.Received.Events, s.Slot.Sessions, rows+len(ids))
		}
		p.stop()
		if n := len(r.consume()); n != rows+len(ids) {
			t.Errorf("%d records in the topic, want %d", n, rows+len(ids))
		}
		if log := serverLog(t, server); strings.Contains(log, "terminating walsender") {
			t.Errorf("PostgreSQL ended the walsender:\n%s", tail(log, 2000))
		}
	})

	// Nothing about a large transaction or an outage makes the relay grow: what it holds is bounded by its window.
	t.Run("memory", func(t *testing.T) {
		r := rigOn(t, sharedPostgres(t), 3)
		p := startBinary(t, shippedRelay(t), r.environ()...)
		p.awaitState(state.Streaming, 30*time.Second)
		ids := r.publish("order-1", 1)
		r.drained(p, 30*time.Second) // it knows the topic, so it encodes what it cannot send
		unreachable(proxy)
		rows := 300_000
		if testing.Short() {
			rows = 100_000
		}
		r.publishBulk(rows)
		full := uint64(0)
		p.awaitStatus(time.Minute, "the window does not fill", func(s *Report) bool {
			stands := s.Backlog.Bytes > 15<<20 && s.Backlog.Bytes == full
			full = s.Backlog.Bytes
			return stands
		})
		proxy.Heal()
		if s := r.drained(p, 2*time.Minute); s.Published.Events != uint64(rows+len(ids)) || s.Slot.Sessions != 1 {
			t.Errorf("%d of %d events published, in %d sessions", s.Published.Events, rows+len(ids), s.Slot.Sessions)
		}
		const limit = 64 << 20
		rss := p.peakRSS()
		t.Logf("at most %.1f MiB resident", float64(rss)/(1<<20))
		if rss > limit {
			t.Errorf("the relay took %d bytes of memory, more than %d", rss, limit)
		}
		p.stop()
	})
}

// TestE2E_LaggingPartition has one partition take nothing while the others do: what they took does not confirm
// what it did not take.
func TestE2E_LaggingPartition(t *testing.T) {
	t.Parallel()
	fake := fakeKafka(t)
	r := newRig(t, sharedPostgres(t), fake.Brokers(), 3)
	p := r.startStreaming()
	var ids []string
	aggregates := map[int32]string{} // one of each partition
	for i := 0; len(aggregates) < 3; i++ {
		name := fmt.Sprint("order-", i)
		ids = append(ids, r.publish(name, 1)...)
		r.drained(p, 30*time.Second)
		for _, rec := range r.consume() {
			if string(rec.Key) == name {
				aggregates[rec.Partition] = name
			}
		}
	}
	refused, release := chaos.StallPartition(fake, 0)
	held, before := r.publishOne(aggregates[0])
	ids = append(ids, held)
	testenv.Eventually(t, 20*time.Second, func() (bool, string) { return refused.Load() > 0, "nothing was sent to partition 0" })
	others := append(r.publish(aggregates[1], 50), r.publish(aggregates[2], 50)...)
	ids = append(ids, others...)
	status := p.awaitStatus(30*time.Second, "the other partitions stand still", func(s *Report) bool { return s.Published.Events == uint64(len(ids)-1) })
	if err := chaos.Noise(t.Context(), r.conn, 3); err != nil {
		t.Fatal(err)
	}
	r.keepalives(p)
	stillUnconfirmed(r, before)
	if status.Backlog.Events == 0 {
		t.Error("no event is in the backlog")
	}
	p.kill()
	release()
	p = r.startStreaming()
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave(ids, false)
}

// stillUnconfirmed watches for longer than the relay takes to confirm what it may.
func stillUnconfirmed(r *rig, before outbox.LSN) {
	r.t.Helper()
	throughout(r.t, 4*time.Second, func() (bool, string) {
		r.mustNotConfirm(before)
		return true, ""
	})
}

// fakeKafka starts a broker that can be told to misbehave partition by partition.
func fakeKafka(t *testing.T) *kafkaserver.Fake {
	t.Helper()
	fake, err := kafkaserver.StartFake(kafkaserver.FakeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return fake
}
