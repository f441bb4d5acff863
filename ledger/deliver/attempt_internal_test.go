package deliver

import (
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/migrations"
)

// A holder whose row was taken over, or delivered by another, writes nothing that the ledger does not record.
func TestMaker_takenOver(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), cfg, migrations.Ledger()); err != nil {
		t.Fatal(err)
	}
	var pools [2]*pgxpool.Pool
	for i := range pools {
		if pools[i], err = pgxpool.New(t.Context(), db.URL); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pools[i].Close)
	}
	rules, err := ParseRules([]byte(`
channels: {database: {}}
rules:
  r:
    event_type: T
    recipients: SELECT 'user:1'
    eligible: SELECT true, ''
    channels: {database: {type: x}}
`), Kinds(NewLineWriter(os.Stderr)))
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(DefaultConfig(), rules, pools[0], pools[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := w.configure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.reg.event(t.Context(), &Event{Key: "k:1", Type: "T", OccurredAt: time.Now()}); err != nil {
		t.Fatal(err)
	}
	claim := func() ledger.Reservation {
		t.Helper()
		list, err := w.ledger.ClaimDue(t.Context(), []string{"database"}, 1)
		if err != nil || len(list) != 1 {
			t.Fatalf("claimed %d, %v", len(list), err)
		}
		return list[0]
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := pools[0].Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	notifications := func() (n int) {
		t.Helper()
		if err := pools[0].QueryRow(t.Context(), "SELECT count(*) FROM ledger.notifications").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	attempt := func(r ledger.Reservation, want ledger.Outcome, rows int) {
		t.Helper()
		got, err := w.make.attempt(t.Context(), t.Context(), r)
		if err != nil || got != want || notifications() != rows {
			t.Fatalf("got %q, %v and %d notifications; want %q and %d", got, err, notifications(), want, rows)
		}
	}
	first := claim()
	exec("UPDATE ledger.notification_dispatches SET due_at = m, lease_until = m FROM (SELECT clock_timestamp() - interval '1 s' AS m OFFSET 0) past")
	second := claim()
	attempt(first, ledger.LateAccepted, 1) // a success is a fact, and fences the second off
	attempt(second, ledger.AlreadyDelivered, 1)
	exec("DELETE FROM ledger.notifications") // its reader has thrown it away
	attempt(first, ledger.AlreadyDelivered, 0)
}
