package main

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_IdleRestart stops and starts an idle relay: nothing is published again.
func TestE2E_IdleRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	p := r.startStreaming()
	ids := r.publish("order-1", 3)
	r.drained(p, 30*time.Second)
	for i := range 5 {
		p.stop()
		p = r.startStreaming()
		r.exec(`SELECT pg_logical_emit_message(false, 'nobody', 'the WAL moves on')`)
		if s := r.drained(p, 30*time.Second); s.Received.Events != 0 {
			t.Errorf("restart %d: %d events came again", i+1, s.Received.Events)
		}
	}
	ids = append(ids, r.publish("order-1", 1)...)
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave(ids, true)
}

// TestE2E_StopAfterLast stops the relay the moment its last record is in the topic: the acknowledgement is not
// lost on the way to PostgreSQL, so nothing comes again.
func TestE2E_StopAfterLast(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	var ids []string
	for range rounds {
		p := r.startStreaming()
		ids = append(ids, r.publish("order-1", 20)...)
		testenv.ConsumeN(t, r.brokers, r.topic, len(ids), 30*time.Second)
		p.stop()
		r.mustHave(ids, true)
	}
	p := r.startStreaming()
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave(ids, true)
}

// TestE2E_StopWithinTransaction stops the relay when it has published a part of a transaction and knows no end of it:
// it reads on to the end, so that nothing of it comes again.
func TestE2E_StopWithinTransaction(t *testing.T) {
	t.Parallel()
	fake := fakeKafka(t)
	r := newRig(t, sharedPostgres(t), fake.Brokers(), 3)
	p := r.startStreaming("RELAY_WINDOW_BYTES=1MiB")
	ids := r.publish("order-1", 3)
	r.drained(p, 30*time.Second)
	refused, release := chaos.StallPartition(fake, 0)
	const rows = 20_000 // several windows
	r.publishBulk(rows)
	testenv.Eventually(t, 20*time.Second, func() (bool, string) { return refused.Load() > 0, "nothing was sent to partition 0" })
	p.awaitStatus(20*time.Second, "the other partitions take nothing", func(s *Report) bool { return s.Published.Events > 100 })
	p.signal(syscall.SIGTERM)
	p.awaitState(state.Draining, 10*time.Second)
	release()
	if code := p.awaitExit(20 * time.Second); code != exitOK {
		t.Errorf("exit code %d after a drain that went well", code)
	}
	// The sink had a part of the transaction, so the drain went on to its end: all of it is there, once.
	check := func(when string) {
		t.Helper()
		distinct := map[string]bool{}
		records := r.consume()
		for _, rec := range records {
			id, _ := rec.Header("id")
			distinct[id] = true
		}
		if len(distinct) != rows+len(ids) || len(records) != len(distinct) {
			t.Errorf("%s: %d records of %d events, want one each of %d", when, len(records), len(distinct), rows+len(ids))
		}
	}
	check("after the stop")
	p = r.startStreaming()
	r.drained(p, 30*time.Second)
	p.stop()
	check("after the next start")
}

// TestE2E_Postgres has PostgreSQL end sessions, restart and crash while events flow.
func TestE2E_Postgres(t *testing.T) {
	t.Parallel()
	server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"max_prepared_transactions": "20"}})
	r := newRig(t, server, testenv.Kafka(t), 3)
	p := r.startStreaming()
	w := r.write(seed(t))
	restart := func(stop func(context.Context) error) error {
		// A server that is told to stop waits for its walsenders: the relay must let it.
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := stop(ctx); err != nil {
			return err
		}
		p.awaitState(state.DatabaseUnreachable, 20*time.Second)
		if err := server.Restart(ctx); err != nil {
			return err
		}
		r.reconnect()
		return nil
	}
	faults := []struct {
		name string
		do   func() error
	}{
		{"walsender terminated", func() error {
			_, err := r.conn.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, r.slot)
			return err
		}},
		{"every session terminated", func() error {
			_, err := r.conn.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			return err
		}},
		{"fast restart", func() error {
			return restart(func(ctx context.Context) error { return server.Stop(ctx, pgserver.Fast) })
		}},
		{"immediate crash", func() error {
			return restart(func(ctx context.Context) error { return server.Stop(ctx, pgserver.Immediate) })
		}},
		{"kill", func() error { return restart(func(context.Context) error { return server.Kill() }) }},
	}
	for _, fault := range faults {
		before := p.awaitStatus(30*time.Second, "no events flow before "+fault.name, func(s *Report) bool { return s.Received.Events > 0 })
		if err := fault.do(); err != nil {
			t.Fatalf("%s: %v", fault.name, err)
		}
		p.awaitStatus(30*time.Second, "no events flow after "+fault.name, func(s *Report) bool {
			return s.State == state.Streaming && s.Slot.Sessions > before.Slot.Sessions && s.Published.Events > before.Published.Events+50
		})
	}
	w.verify(p, 0)
}

// TestE2E_FastStop stops PostgreSQL while Kafka takes nothing: the server need not wait for Kafka.
func TestE2E_FastStop(t *testing.T) {
	t.Parallel()
	fake := fakeKafka(t)
	server := testenv.Dedicated(t, pgserver.Config{})
	r := newRig(t, server, fake.Brokers(), 1)
	p := r.startStreaming()
	refused, release := chaos.StallPartition(fake, 0)
	ids := r.publish("order-1", 10)
	testenv.Eventually(t, 20*time.Second, func() (bool, string) { return refused.Load() > 0, "nothing was sent" })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := server.Stop(ctx, pgserver.Fast); err != nil {
		t.Fatalf("the relay keeps PostgreSQL from stopping: %v", err)
	}
	p.awaitState(state.DatabaseUnreachable, 20*time.Second)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.reconnect()
	release()
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave(ids, false)
}

// TestE2E_Signals stops a relay whose records nobody acknowledges: it says that it drains and waits; the second
// signal ends it at once, and the events come after the next start.
func TestE2E_Signals(t *testing.T) {
	t.Parallel()
	fake := fakeKafka(t)
	r := newRig(t, sharedPostgres(t), fake.Brokers(), 1)
	p := r.startStreaming()
	refused, release := chaos.StallPartition(fake, 0)
	ids := r.publish("order-1", 10)
	testenv.Eventually(t, 20*time.Second, func() (bool, string) { return refused.Load() > 0, "nothing was sent" })
	p.signal(syscall.SIGTERM)
	p.awaitState(state.Draining, 10*time.Second)
	throughout(t, time.Second, func() (bool, string) { return p.proc.Running(), "relay ends with records in flight" })
	p.signal(syscall.SIGTERM)
	if code := p.awaitExit(5 * time.Second); code != exitFailed {
		t.Errorf("exit code %d after the second signal, want %d", code, exitFailed)
	}

	// While draining, the acknowledgement may still come.
	p = r.startStreaming()
	before := refused.Load()
	testenv.Eventually(t, 20*time.Second, func() (bool, string) { return refused.Load() > before, "nothing was sent again" })
	p.signal(syscall.SIGTERM)
	p.awaitState(state.Draining, 10*time.Second)
	release()
	if code := p.awaitExit(20 * time.Second); code != exitOK {
		t.Errorf("exit code %d after a drain that went well", code)
	}
	r.mustHave(ids, true)
	p = r.startStreaming()
	if s := r.drained(p, 30*time.Second); s.Received.Events != 0 {
		t.Errorf("%d events came again after a clean drain", s.Received.Events)
	}
	p.stop()
}
