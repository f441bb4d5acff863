package ledger_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/migrations"
)

func TestMain(m *testing.M) {
	if stage := os.Getenv(envChild); stage != "" {
		os.Exit(childMain(stage))
	}
	code := testenv.Main(m)
	if left := ownGoroutines(); left != "" {
		fmt.Fprintln(os.Stderr, "goroutines of package ledger are left:\n"+left)
		code = max(code, 1)
	}
	os.Exit(code)
}

// ownGoroutines returns the stacks of goroutines that package ledger started and that do not end, "" if none.
func ownGoroutines() string {
	deadline := time.Now().Add(5 * time.Second)
	for {
		buf := make([]byte, 1<<22)
		var own []string
		for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if strings.Contains(stack, "created by github.com/outboxrelay/relay/ledger.") || strings.Contains(stack, "relay/ledger.(*holder)") {
				own = append(own, stack)
			}
		}
		if len(own) == 0 || time.Now().After(deadline) {
			return strings.Join(own, "\n\n")
		}
		runtime.Gosched()
	}
}

// rig is a fresh database with the ledger in it, and a ledger on it.
type rig struct {
	*ledger.Ledger
	url  string
	pool *pgxpool.Pool
}

// settings of the channels that every rig has: rows of ledger.channels, what is not said is the default.
var channels = []string{
	`('email', 'guarded', 'hold', '30 seconds', NULL)`,
	`('push', 'guarded', 'resend', '30 seconds', NULL)`,
	`('sms', 'guarded', 'probe', '30 seconds', NULL)`,
	`('database', 'simple', 'resend', '30 seconds', NULL)`,
	`('broadcast', 'simple', 'resend', '30 seconds', 'database')`,
}

func setup(tb testing.TB) *rig {
	tb.Helper()
	db := testenv.NewDatabase(tb)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		tb.Fatal(err)
	}
	for _, set := range []migrations.Set{migrations.Outbox(), migrations.Ledger()} {
		if _, err := migrations.Up(tb.Context(), cfg, set); err != nil {
			tb.Fatal(err)
		}
	}
	r := &rig{url: db.URL, pool: newPool(tb, db.URL)}
	r.exec(tb, `INSERT INTO ledger.channels (channel, mode, on_uncertain, lease, after_channel) VALUES `+strings.Join(channels, ","))
	r.Ledger = newLedger(tb, r.pool, nil)
	return r
}

func newPool(tb testing.TB, url string) *pgxpool.Pool {
	tb.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.MaxConns = 12
	p, err := pgxpool.NewWithConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// newLedger returns a ledger that is quick to look again, with changes to its settings.
func newLedger(tb testing.TB, p *pgxpool.Pool, change func(*ledger.Config)) *ledger.Ledger {
	tb.Helper()
	cfg := ledger.DefaultConfig()
	cfg.Worker = "test"
	cfg.Poll = 20 * time.Millisecond
	if change != nil {
		change(&cfg)
	}
	l, err := ledger.New(ledger.Pgx(p), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func (r *rig) exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	if _, err := r.pool.Exec(context.WithoutCancel(tb.Context()), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

func query1[T any](tb testing.TB, r *rig, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := r.pool.QueryRow(context.WithoutCancel(tb.Context()), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// row is what the tests look at of a dispatch row.
type row struct {
	State      string
	Attempts   int
	Fence      int64
	Generation int
	Reason     string
}

func (r *rig) row(tb testing.TB, key ledger.Key) row {
	tb.Helper()
	var d row
	err := r.pool.QueryRow(context.WithoutCancel(tb.Context()), `SELECT state, attempts, fence, generation, coalesce(reason, '')
FROM ledger.notification_dispatches WHERE tenant = $1 AND event_key = $2 AND recipient = $3 AND channel = $4`,
		key.Tenant, key.EventKey, key.Recipient, key.Channel).Scan(&d.State, &d.Attempts, &d.Fence, &d.Generation, &d.Reason)
	if err != nil {
		tb.Fatalf("row of %+v: %v", key, err)
	}
	return d
}

func (r *rig) rows(tb testing.TB) int {
	tb.Helper()
	return query1[int](tb, r, "SELECT count(*) FROM ledger.notification_dispatches")
}

// expire ends the lease of the row, or makes it due, as if the time had passed.
func (r *rig) expire(tb testing.TB, id int64) {
	tb.Helper()
	r.expireAll(tb, fmt.Sprintf("id = %d", id))
}

func (r *rig) expireAll(tb testing.TB, where string) {
	tb.Helper()
	r.exec(tb, `UPDATE ledger.notification_dispatches SET due_at = m, lease_until = CASE WHEN lease_until IS NOT NULL THEN m END
FROM (SELECT clock_timestamp() - interval '1 ms' AS m OFFSET 0) AS past WHERE due_at IS NOT NULL AND `+where)
}

func (r *rig) id(tb testing.TB, key ledger.Key) int64 {
	tb.Helper()
	return query1[int64](tb, r, `SELECT id FROM ledger.notification_dispatches
WHERE tenant = $1 AND event_key = $2 AND recipient = $3 AND channel = $4`, key.Tenant, key.EventKey, key.Recipient, key.Channel)
}

func keyOn(channel string) ledger.Key {
	return ledger.Key{EventKey: "scheduled-post-published:42", Recipient: "user:7", Channel: channel, OccurredAt: time.Now()}
}

func event(channel string) ledger.Event {
	return ledger.Event{EventKey: "scheduled-post-published:42", Channel: channel, OccurredAt: time.Now()}
}

// mustReserve reserves key and fails the test unless it gets it.
func mustReserve(tb testing.TB, l *ledger.Ledger, key ledger.Key) ledger.Reservation {
	tb.Helper()
	res, err := l.Reserve(tb.Context(), nil, key)
	if err != nil || res.Outcome != ledger.Reserved {
		tb.Fatalf("reserve: %q, %v", res.Outcome, err)
	}
	return res.Reservation
}

// want fails the test unless a call of the ledger answered so.
func want(tb testing.TB, what string, outcome ledger.Outcome) func(ledger.Outcome, error) {
	tb.Helper()
	return func(got ledger.Outcome, err error) {
		tb.Helper()
		if err != nil || got != outcome {
			tb.Fatalf("%s: got %q, error %v; want %q", what, got, err, outcome)
		}
	}
}

func wantState(tb testing.TB, r *rig, key ledger.Key, state ledger.State) {
	tb.Helper()
	if got := r.row(tb, key).State; got != string(state) {
		tb.Fatalf("state %q, want %q", got, state)
	}
}
