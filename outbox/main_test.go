package outbox_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
	"github.com/outboxrelay/relay/outbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// newOutbox returns the URL of a fresh database with the outbox in it.
func newOutbox(tb testing.TB) string {
	tb.Helper()
	db := testenv.NewDatabase(tb)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := migrations.Up(tb.Context(), cfg, migrations.Outbox()); err != nil {
		tb.Fatal(err)
	}
	return db.URL
}

func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func begin(tb testing.TB, conn *pgx.Conn) pgx.Tx {
	tb.Helper()
	tx, err := conn.Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return tx
}

func rowCount(tb testing.TB, conn *pgx.Conn) int {
	tb.Helper()
	var n int
	if err := conn.QueryRow(tb.Context(), "SELECT count(*) FROM outbox.events").Scan(&n); err != nil {
		tb.Fatal(err)
	}
	return n
}

func exec1(tb testing.TB, conn *pgx.Conn, sql string, args ...any) {
	tb.Helper()
	if _, err := conn.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

// placed is an event without a fault.
func placed() outbox.Event {
	return outbox.Event{
		EventKey:      "order-placed:42",
		AggregateType: "order",
		AggregateID:   "42",
		EventType:     "OrderPlaced",
		Payload:       []byte(`{"total": 12.50}`),
	}
}
