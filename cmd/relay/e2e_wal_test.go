package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_IdleWAL watches a server that has nothing to do but serve a relay: its WAL does not grow. A relay that
// confirms its own confirmations would have it grow for ever, and keep archives and standbys busy.
func TestE2E_IdleWAL(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: idleness takes a minute")
	}
	// The background writer, which sleeps longer and longer while it has nothing to do, must not come late.
	server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{
		"autovacuum": "off", "checkpoint_timeout": "1h", "bgwriter_delay": "10ms",
	}})
	r := newRig(t, server, testenv.Kafka(t), 1)
	p := r.startStreaming()
	ids := r.publish("order-1", 10)
	r.drained(p, 30*time.Second)
	insert := func() string { return r.lsn(`SELECT pg_current_wal_insert_lsn()::text`).String() }

	// The server itself has a last word: a record of the running transactions, up to 15 s after the last other one.
	last, since := insert(), time.Now()
	testenv.Eventually(t, time.Minute, func() (bool, string) {
		if now := insert(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > 16*time.Second, "the server does not come to rest"
	})
	throughout(t, 25*time.Second, func() (bool, string) {
		now := insert()
		return now == last, fmt.Sprintf("the WAL of an idle server grew from %s to %s", last, now)
	})
	p.awaitState(state.Streaming, time.Second)
	p.stop()
	r.mustHave(ids, true)
}

// TestE2E_BusyNeighbour writes a lot to a table that is none of the relay's business: the slot of an idle outbox
// does not keep it from being thrown away.
func TestE2E_BusyNeighbour(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: writes 160 MiB of WAL")
	}
	server := testenv.Dedicated(t, pgserver.Config{})
	r := newRig(t, server, testenv.Kafka(t), 1)
	p := r.startStreaming()
	ids := r.publish("order-1", 1)
	r.drained(p, 30*time.Second)
	if err := chaos.Noise(t.Context(), r.conn, 160); err != nil {
		t.Fatal(err)
	}
	const limit = 64 << 20
	most := int64(0)
	testenv.Eventually(t, time.Minute, func() (bool, string) {
		var retained int64
		if err := r.conn.QueryRow(t.Context(), `
			SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1`, r.slot).Scan(&retained); err != nil {
			t.Fatal(err)
		}
		most = max(most, retained)
		return retained < limit, fmt.Sprintf("the slot retains %d bytes of WAL", retained)
	})
	t.Logf("at most %d MiB retained", most>>20)
	p.stop()
	r.mustHave(ids, true)
}

func serverLog(t *testing.T, server *pgserver.Server) string {
	t.Helper()
	b, err := os.ReadFile(server.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
