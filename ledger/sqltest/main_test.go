package sqltest_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// The channels of most tests. Those named for a policy are guarded.
const channels = `
INSERT INTO ledger.channels (channel, mode, on_uncertain, after_channel) VALUES
    ('hold',   'guarded', 'hold',   NULL),
    ('probe',  'guarded', 'probe',  NULL),
    ('resend', 'guarded', 'resend', NULL),
    ('simple', 'simple',  'resend', NULL),
    ('after',  'guarded', 'hold',   'simple')`

// bundle is a database of a test's own with the ledger in it, and a superuser's connections.
type bundle struct {
	testing.TB
	db   *testenv.Database
	pool *pgxpool.Pool
	conn *pgxpool.Conn // the test's own
}

func setup(tb testing.TB) *bundle {
	tb.Helper()
	return setupOn(tb, testenv.NewDatabase(tb))
}

func setupOn(tb testing.TB, db *testenv.Database) *bundle {
	tb.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := migrations.Up(tb.Context(), cfg, migrations.Ledger()); err != nil {
		tb.Fatal(err)
	}
	poolConfig, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		tb.Fatal(err)
	}
	poolConfig.MaxConns = 100
	pool, err := pgxpool.NewWithConfig(tb.Context(), poolConfig)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(pool.Close)
	b := &bundle{TB: tb, db: db, pool: pool}
	b.conn = b.connect()
	b.exec(channels)
	return b
}

// connect returns one more connection, given back at cleanup.
func (b *bundle) connect() *pgxpool.Conn {
	b.Helper()
	conn, err := b.pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Release)
	return conn
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (b *bundle) exec(sql string, args ...any) {
	b.Helper()
	if _, err := b.conn.Exec(b.Context(), sql, args...); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

// one returns the only column of the only row.
func one[T any](b *bundle, sql string, args ...any) T {
	b.Helper()
	return oneOn[T](b, b.conn, sql, args...)
}

func oneOn[T any](tb testing.TB, q querier, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := q.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}

// list returns the only column of all rows.
func list[T any](b *bundle, sql string, args ...any) []T {
	b.Helper()
	rows, err := b.conn.Query(b.Context(), sql, args...)
	if err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return values
}

// reservation is what ledger.reserve returns.
type reservation struct {
	Outcome      string
	ID           *int64
	Fence        *int64
	Attempt      *int
	LeaseMS      *int64
	ProviderKey  *string
	RetryAfterMS *int64
	Result       *string
}

const reserveSQL = `SELECT outcome, id, fence, attempt, lease_ms, provider_key, retry_after_ms, result::text
FROM ledger.reserve('', $1, $2, $3, $4, clock_timestamp(), $5::interval)`

func tryReserve(ctx context.Context, q querier, key, recipient, channel, worker string, lease any) (r reservation, err error) {
	err = q.QueryRow(ctx, reserveSQL, key, recipient, channel, worker, lease).
		Scan(&r.Outcome, &r.ID, &r.Fence, &r.Attempt, &r.LeaseMS, &r.ProviderKey, &r.RetryAfterMS, &r.Result)
	return r, err
}

func (b *bundle) reserve(key, recipient, channel string) reservation {
	b.Helper()
	r, err := tryReserve(b.Context(), b.conn, key, recipient, channel, "worker", nil)
	if err != nil {
		b.Fatalf("reserve %q: %v", key, err)
	}
	return r
}

// reserved is reserve where nothing but a reservation will do.
func (b *bundle) reserved(key, recipient, channel string) (id, fence int64) {
	b.Helper()
	r := b.reserve(key, recipient, channel)
	if r.Outcome != "reserved" {
		b.Fatalf("reserve %q: %q, want reserved", key, r.Outcome)
	}
	return *r.ID, *r.Fence
}

// answer makes a call that returns one text and compares it.
func (b *bundle) answer(want, sql string, args ...any) {
	b.Helper()
	if got := one[*string](b, sql, args...); got == nil || *got != want {
		b.Errorf("%s %v: got %v, want %q", sql, args, deref(got), want)
	}
}

func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

func (b *bundle) state(id int64) string {
	b.Helper()
	return one[string](b, "SELECT state FROM ledger.notification_dispatches WHERE id = $1", id)
}

// age makes a span of time pass for one row: each of its times is moved back by it.
func (b *bundle) age(id int64, span string) {
	b.Helper()
	b.exec(`UPDATE ledger.notification_dispatches SET due_at = due_at - $2::interval, lease_until = lease_until - $2::interval,
held_since = held_since - $2::interval, first_effect_at = first_effect_at - $2::interval, effect_at = effect_at - $2::interval,
probe_until = probe_until - $2::interval, blocked_since = blocked_since - $2::interval, created_at = created_at - $2::interval,
done_at = done_at - $2::interval WHERE id = $1`, id, span)
}

// begin opens a transaction that is rolled back at cleanup if it is still open then.
func (b *bundle) begin(conn *pgxpool.Conn) pgx.Tx {
	b.Helper()
	tx, err := conn.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { tx.Rollback(context.WithoutCancel(b.Context())) })
	return tx
}

// sqlState returns the SQLSTATE of an error; "" if it has none.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// wholeSQL selects the rows that break what a row of their state must be: the rules that no CHECK holds.
const wholeSQL = `
SELECT coalesce(array_agg(d.state || ' ' || d.id), '{}') FROM ledger.notification_dispatches d
WHERE (CASE state
    WHEN 'pending'   THEN due_at IS NOT NULL AND num_nonnulls(lease_until, held_since, effect_at, probe_until, done_at) = 0
    WHEN 'failed'    THEN due_at IS NOT NULL AND num_nonnulls(lease_until, held_since, effect_at, probe_until, blocked_since, done_at) = 0
    WHEN 'reserved'  THEN due_at = lease_until AND held_since IS NOT NULL AND num_nonnulls(probe_until, blocked_since, done_at) = 0
    WHEN 'uncertain' THEN probe_until IS NOT NULL AND num_nonnulls(due_at, lease_until, blocked_since, done_at) = 0
    WHEN 'delivered' THEN done_at IS NOT NULL AND num_nonnulls(due_at, lease_until, held_since, probe_until, blocked_since) = 0
    WHEN 'skipped'   THEN done_at IS NOT NULL AND num_nonnulls(due_at, lease_until, held_since, effect_at, probe_until, blocked_since) = 0
    WHEN 'dead'      THEN done_at IS NOT NULL AND num_nonnulls(due_at, lease_until, held_since, effect_at, probe_until, blocked_since) = 0
    ELSE false END) IS NOT TRUE
   OR gen_fence > fence OR attempts < 0 OR attempts > max_attempts OR generation < 1
   OR effect_at IS NOT NULL AND first_effect_at IS NULL OR first_effect_at > effect_at`

func (b *bundle) whole() {
	b.Helper()
	if bad := one[[]string](b, wholeSQL); len(bad) > 0 {
		b.Errorf("rows that break the rules of their state: %v", bad)
	}
}
