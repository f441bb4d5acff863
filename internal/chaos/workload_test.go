package chaos_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestWorkload runs until every kind of transaction has gone as meant, and compares the truth with what the
// database shows otherwise: one entry an event, and no outbox row that the truth does not know.
func TestWorkload(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresWith(t, 0, map[string]string{"max_prepared_transactions": "50"})
	db := testenv.NewDatabaseOn(t, server.DSN("postgres", ""))
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := migrations.Up(t.Context(), conn.Config(), migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	cfg := chaos.Config{URL: db.URL, Seed: 1, Writers: 4, Aggregates: 16, LargeRows: 500}
	if err := chaos.Prepare(t.Context(), conn, cfg); err != nil {
		t.Fatal(err)
	}
	load := chaos.New(cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- load.Run(ctx) }()
	testenv.Eventually(t, 50*time.Second, func() (bool, string) {
		select {
		case err := <-ended:
			t.Fatalf("Run ended with %v", err)
		default:
		}
		tally := load.Tally()
		for _, kind := range chaos.Kinds() {
			if tally[kind] < 2 {
				return false, "too few transactions of kind " + kind
			}
		}
		return true, ""
	})
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := chaos.Quiesce(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	facts, err := chaos.Truth(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	var entries, unknown, versions int
	if err := conn.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM chaos.entries),
			(SELECT count(*) FROM outbox.events WHERE id NOT IN (SELECT event_id FROM chaos.truth)),
			(SELECT sum(version) FROM chaos.aggregates)`).Scan(&entries, &unknown, &versions); err != nil {
		t.Fatal(err)
	}
	if entries != len(facts) || unknown != 0 || versions != len(facts) {
		t.Errorf("%d facts, %d entries, versions add up to %d, %d outbox rows without a fact", len(facts), entries, versions, unknown)
	}
	t.Logf("%d events, transactions: %v", len(facts), load.Tally())
}

// TestNoise shows that noise is as loud as it says.
func TestNoise(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var before, after int64
	lsn := func(into *int64) {
		if err := conn.QueryRow(t.Context(), `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`).Scan(into); err != nil {
			t.Fatal(err)
		}
	}
	lsn(&before)
	if err := chaos.Noise(t.Context(), conn, 3); err != nil {
		t.Fatal(err)
	}
	lsn(&after)
	if n := after - before; n < 3<<20 {
		t.Errorf("3 MiB of noise are %d bytes", n)
	}
}
