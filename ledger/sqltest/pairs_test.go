package sqltest_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
)

// pairCalls are the calls of which two may meet on one row.
var pairCalls = []string{
	"reserve", "reserve_batch", "register_batch", "once", "once_batch", "claim_due", "claim_uncertain", "sweep", "purge", "begin_effect", "renew",
	"complete", "complete@late", "complete_batch", "fail_retry", "fail_ambiguous", "skip", "release", "resolve_delivered", "resolve_failed", "redrive", "redrive_resend",
}

// skipping are those that skip a locked row.
var skipping = []string{"claim_due", "claim_uncertain", "sweep", "purge"}

// pairFound is what is left of a row, without its times, and of its attempts.
const pairFound = `SELECT coalesce((SELECT concat_ws(' ', d.state, d.fence, d.gen_fence, d.generation, d.attempts, d.reason, d.worker, d.provider_ref,
	CASE WHEN d.effect_at IS NOT NULL THEN 'effect' END, CASE WHEN d.first_effect_at IS NOT NULL THEN 'first' END,
	CASE WHEN d.due_at IS NOT NULL THEN 'due' END, CASE WHEN d.held_since IS NOT NULL THEN 'held' END)
	FROM ledger.notification_dispatches d), 'none') || coalesce((SELECT ' / ' || string_agg(a.fence || ' ' || a.outcome, ', ' ORDER BY a.fence) FROM ledger.dispatch_attempts a), '')`

// pairResult is what two calls on one row were answered, and what they left of it.
type pairResult struct{ a, b, found string }

// Any two calls that meet on a row, the second while the first has not committed: both are answered, and the row is left,
// as if one had come after the other. If the first is rolled back, the second never knew of it.
func TestPairs(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for i, situation := range []string{"none", "pending", "failed", "reserved", "begun", "begun_last", "over", "over_last", "over_begun", "reheld", "uncertain", "delivered", "dead", "dead_old"} {
		t.Run(situation, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			first, second := b.connect(), b.connect()
			waited, share := 0, 2 // one pair of so many, for there are thousands
			if testing.Short() {
				share = 5
			}
			for _, callA := range pairCalls {
				for _, callB := range pairCalls {
					if rng.IntN(share) > 0 {
						continue
					}
					for _, channel := range []string{"hold", "resend"} {
						if rng.IntN(2) == 0 && situation != "over_begun" {
							continue
						}
						waited += b.pair(first, second, situation, channel, callA, callB, rng.IntN(4) > 0)
					}
				}
			}
			if waited == 0 {
				t.Error("no call ever waited for another")
			}
		})
	}
}

// pair lets two calls meet and returns 1 if the second waited.
func (b *bundle) pair(first, second *pgxpool.Conn, situation, channel, callA, callB string, commit bool) (waited int) {
	b.Helper()
	label := fmt.Sprintf("%s on %s: %s, then %s", situation, channel, callA, callB)
	var want []pairResult
	if commit {
		swapped := b.serially(situation, channel, callB, callA)
		want = append(want, b.serially(situation, channel, callA, callB), pairResult{swapped.b, swapped.a, swapped.found})
		// Whoever skips what is locked is answered as if there were nothing.
		if slices.Contains(skipping, callB) {
			alone := b.serially(situation, channel, callA, "")
			want = append(want, pairResult{alone.a, "-", alone.found})
		}
	} else {
		alone := b.serially(situation, channel, callB, "")
		want = append(want, pairResult{"rolled back", alone.a, alone.found})
		if slices.Contains(skipping, callB) {
			want = append(want, pairResult{"rolled back", "-", b.serially(situation, channel, "", "").found})
		}
	}

	id, fence := b.place(b.pool, situation, channel)
	tx, err := first.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback(b.Context())
	got := pairResult{a: b.ask(tx, callA, id, fence, channel)}
	answered := make(chan string, 1)
	go func() { answered <- b.ask(second, callB, id, fence, channel) }()
	pid := second.Conn().PgConn().PID()
	done := false
	testenv.Eventually(b, 10*time.Second, func() (bool, string) {
		select {
		case got.b = <-answered:
			done = true
			return true, ""
		default:
		}
		waits := oneOn[bool](b, b.conn, "SELECT coalesce((SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1), false)", pid)
		if waits {
			waited = 1
		}
		return waits, label + ": neither answered nor waiting"
	})
	if commit {
		err = tx.Commit(b.Context())
	} else {
		err = tx.Rollback(b.Context())
		got.a = "rolled back"
	}
	if err != nil {
		b.Fatal(err)
	}
	if !done {
		got.b = <-answered
	}
	got.found = oneOn[string](b, b.conn, pairFound)
	if !slices.Contains(want, got) {
		b.Errorf("%s (commit %v):\n got %+v\nwant one of %+v", label, commit, got, want)
	}
	b.whole()
	return waited
}

// place leaves nothing but one row in that situation, and returns its id and fence.
func (b *bundle) place(q querier, situation, channel string) (id, fence int64) {
	b.Helper()
	must := func(sql string, args ...any) {
		b.Helper()
		if _, err := q.Exec(b.Context(), sql, args...); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	must("DELETE FROM ledger.notification_dispatches")
	must("DELETE FROM ledger.dispatch_attempts")
	i := slices.IndexFunc(situations, func(s struct{ name, state, columns string }) bool { return s.name == situation })
	if s := situations[i]; s.state != "none" {
		put(must, s.state, channel, s.columns)
		if err := q.QueryRow(b.Context(), "SELECT id, fence FROM ledger.notification_dispatches").Scan(&id, &fence); err != nil {
			b.Fatal(err)
		}
	}
	return id, fence
}

// ask makes a call by name; an error is an answer too.
func (b *bundle) ask(q querier, call string, id, fence int64, channel string) string {
	i := slices.IndexFunc(calls, func(c struct{ name, sql string }) bool { return c.name == call })
	var answer *string
	// Each call takes its parameters as it likes; a comparison with all of them takes the rest.
	sql := "SELECT (" + calls[i].sql + ")::text FROM (SELECT $1::bigint, $2::bigint, $3::text, $4::timestamptz) AS given"
	if err := q.QueryRow(b.Context(), sql, id, fence, channel, time.Now()).Scan(&answer); err != nil {
		return err.Error()
	}
	if answer == nil {
		return "null"
	}
	return *answer
}

// serially makes the calls one after the other, in a transaction that is rolled back. An empty name is no call.
func (b *bundle) serially(situation, channel, callA, callB string) (r pairResult) {
	b.Helper()
	tx, err := b.conn.BeginTx(b.Context(), pgx.TxOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback(b.Context())
	id, fence := b.place(tx, situation, channel)
	if callA != "" {
		r.a = b.ask(tx, callA, id, fence, channel)
	}
	if callB != "" {
		r.b = b.ask(tx, callB, id, fence, channel)
	}
	r.found = oneOn[string](b, tx, pairFound)
	return r
}
