package sqltest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// T4
func TestReserve_concurrently(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, workers := range []int{2, 64} {
		key := fmt.Sprintf("k:%d", workers)
		outcomes := make([]string, workers)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range workers {
			conn := b.connect()
			wg.Go(func() {
				<-start
				r, err := tryReserve(t.Context(), conn, key, "user:1", "hold", "w", nil)
				if outcomes[i] = r.Outcome; err != nil {
					outcomes[i] = err.Error()
				}
			})
		}
		close(start)
		wg.Wait()
		count := map[string]int{}
		for _, o := range outcomes {
			count[o]++
		}
		if count["reserved"] != 1 || count["already_reserved"] != workers-1 {
			t.Errorf("%d workers: %v", workers, count)
		}
		if n := one[int](b, "SELECT count(*) FROM ledger.notification_dispatches WHERE event_key = $1", key); n != 1 {
			t.Errorf("%d rows", n)
		}
	}
}

// T18, for every call that inserts; T19
func TestReserve_behindOpenInsert(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"reserve":       "SELECT outcome FROM ledger.reserve('', 'k:1', 'user:1', 'simple', 'w', now())",
		"reserve_batch": "SELECT outcome FROM ledger.reserve_batch('', 'k:1', ARRAY['user:1'], 'simple', 'w', now())",
		"once":          "SELECT ledger.once('', 'k:1', 'user:1', 'simple', now())",
		"once_batch":    "SELECT outcome FROM ledger.once_batch('', 'k:1', ARRAY['user:1'], 'simple', now())",
	} {
		for _, end := range []string{"commits", "rolls back", "stays"} {
			t.Run(name+"/"+end, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				tx := b.begin(b.conn)
				if r, err := tryReserve(t.Context(), tx, "k:1", "user:1", "simple", "w", nil); err != nil || r.Outcome != "reserved" {
					t.Fatal(r.Outcome, err)
				}
				other := b.connect()
				type answer struct {
					outcome string
					err     error
				}
				got := make(chan answer, 1)
				started := time.Now()
				go func() {
					var a answer
					a.err = other.QueryRow(t.Context(), sql).Scan(&a.outcome)
					got <- a
				}()
				b.untilWaiting(other)
				want := map[bool]string{true: "reserved", false: "delivered"}[strings.HasPrefix(name, "reserve")]
				switch end {
				case "commits":
					want = "already_reserved"
					if err := tx.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
				case "rolls back":
					if err := tx.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}
				case "stays":
					want = "busy"
				}
				a := <-got
				if end == "stays" && strings.HasSuffix(name, "batch") {
					if sqlState(a.err) != "55P03" {
						t.Errorf("got %q and %v, want SQLSTATE 55P03", a.outcome, a.err)
					}
					return
				}
				if a.err != nil || a.outcome != want {
					t.Errorf("got %q and %v, want %q", a.outcome, a.err, want)
				}
				if took := time.Since(started); took > 20*time.Second {
					t.Errorf("busy after %v", took)
				}
				if v := oneOn[string](b, other, "SHOW lock_timeout"); v != "0" {
					t.Errorf("lock_timeout %s leaked into the session", v)
				}
			})
		}
	}
}

// hammer runs work on many connections until the time is over and returns the errors by SQLSTATE.
func (b *bundle) hammer(clients int, span time.Duration, work ...func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error) map[string]int {
	b.Helper()
	seed := rand.Uint64()
	b.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(b.Context(), span)
	defer cancel()
	failed := map[string]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range clients {
		conn := b.connect()
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for ctx.Err() == nil {
				// Work goes on when the time is over, so that no error is one of the end.
				if err := work[rng.IntN(len(work))](b.Context(), conn, rng); err != nil {
					mu.Lock()
					failed[sqlState(err)+" "+err.Error()]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// T21, T24 and the invariants: everything at once, on few keys in ever different order.
func TestDeadlocks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	span := 20 * time.Second
	if testing.Short() {
		span = 8 * time.Second
	}
	b.exec("UPDATE ledger.channels SET retention = '1 ms', horizon = '1 ms' WHERE channel = '*'")
	shuffled := func(rng *rand.Rand) []string {
		users := make([]string, 12)
		for i, u := range rng.Perm(24)[:12] {
			users[i] = fmt.Sprintf("user:%d", u)
		}
		return users
	}
	key := func(rng *rand.Rand) string { return fmt.Sprintf("k:%d", rng.IntN(3)) }
	run := func(sql string, args func(rng *rand.Rand) []any) func(context.Context, *pgxpool.Conn, *rand.Rand) error {
		return func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error {
			_, err := conn.Exec(ctx, sql, args(rng)...)
			return err
		}
	}
	both := func(rng *rand.Rand) []any { return []any{key(rng), shuffled(rng)} }
	none := func(*rand.Rand) []any { return nil }
	failed := b.hammer(16, span,
		run("SELECT ledger.reserve_batch('', $1, $2, 'simple', 'w', clock_timestamp() + interval '1 h', '1 ms')", both),
		run("SELECT ledger.register_batch('', $1, $2, 'after', clock_timestamp() + interval '1 h')", both),
		run("SELECT ledger.once_batch('', $1, $2, 'simple', clock_timestamp() + interval '1 h')", both),
		run("SELECT ledger.claim_due('w', ARRAY['simple', 'after'], 7, '1 ms')", none),
		run("SELECT ledger.sweep(7)", none),
		run("SELECT ledger.purge(7)", none),
		run(`SELECT ledger.complete_batch(array_agg(id ORDER BY random()), array_agg(fence ORDER BY id), NULL)
FROM (SELECT * FROM ledger.notification_dispatches WHERE state = 'reserved' ORDER BY random() LIMIT 12) d`, none),
	)
	delete(failed, "")
	for what, n := range failed {
		// A query that finds no row gives NULL arrays, which is refused. A batch that waits too long says so.
		if !strings.HasPrefix(what, "22023 ") && !strings.HasPrefix(what, "55P03 ") {
			t.Errorf("%d times %s", n, what)
		}
	}
	b.whole()
	if n := one[int64](b, "SELECT count(*) FROM (SELECT FROM ledger.notification_dispatches GROUP BY tenant, event_key, recipient, channel HAVING count(*) > 1) d"); n != 0 {
		t.Errorf("LI1: %d boundaries with more than one row", n)
	}
	if n := one[int64](b, "SELECT last_value FROM ledger.notification_dispatches_id_seq"); n < 200 {
		t.Errorf("%d rows were ever made: purge and reserve did not meet", n)
	}
}

// T24: a claim that was handed out has a row behind it, however fast purge is.
func TestPurge_neverUnbacked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("UPDATE ledger.channels SET retention = '1 us', horizon = '1 us' WHERE channel = '*'")
	const span = 3 * time.Second
	failed := b.hammer(8, span,
		func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error {
			var outcome, answer string
			var id, fence int64
			err := conn.QueryRow(ctx, "SELECT outcome, coalesce(id, 0), coalesce(fence, 0) FROM ledger.reserve('', 'k:1', $1, 'simple', 'w', clock_timestamp() + interval '1 h')",
				fmt.Sprintf("user:%d", rng.IntN(3))).Scan(&outcome, &id, &fence)
			if err != nil || outcome != "reserved" {
				return err
			}
			if err := conn.QueryRow(ctx, "SELECT ledger.complete($1, $2)", id, fence).Scan(&answer); err != nil {
				return err
			}
			if answer != "delivered" {
				return fmt.Errorf("complete after reserved: %q", answer)
			}
			return nil
		},
		func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error {
			_, err := conn.Exec(ctx, "SELECT ledger.purge(10)")
			return err
		})
	for what, n := range failed {
		t.Errorf("%d times %s", n, what)
	}
	if n := one[int64](b, "SELECT last_value FROM ledger.notification_dispatches_id_seq"); n < 20 {
		t.Errorf("%d rows were ever made: purge and reserve did not meet", n)
	}
}
