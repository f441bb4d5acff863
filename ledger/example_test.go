package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/outbox"
)

// ClaimPendingData is a listener whose work is a change of state: an insurance claim whose documents are incomplete
// goes from open to pending_data, and that it did is told in an event. It needs no row in the ledger: the claim's own
// state says whether it was done. Queue worker, command and backfill all call it.
func ClaimPendingData(ctx context.Context, l *ledger.Ledger, claim int64) (changed bool, err error) {
	n, err := l.Transition(ctx, func(tx ledger.DBTX) (int64, error) {
		return tx.Exec(ctx, "UPDATE claims SET state = 'pending_data' WHERE id = $1 AND state = 'open'", claim)
	}, func(tx ledger.DBTX) error {
		key, err := ledger.EventKey("claim-pending-data", fmt.Sprint(claim))
		if err != nil {
			return err
		}
		return ledger.Write(ctx, tx, outbox.Event{
			EventKey: key, AggregateType: "claim", AggregateID: fmt.Sprint(claim), EventType: "ClaimPendingData", Payload: []byte(`{}`),
		})
	})
	return n > 0, err
}

// remind shows the listener called twice.
func remind(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	l, err := ledger.New(ledger.Pgx(pool), ledger.DefaultConfig())
	if err != nil {
		return err
	}
	for range 2 {
		changed, err := ClaimPendingData(ctx, l, 7)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "changed:", changed)
	}
	return nil
}

func ExampleLedger_Transition() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	if err := remind(ctx, pool, os.Stdout); err != nil {
		fmt.Println(err)
	}
	// prints:
	// changed: true
	// changed: false
}

// claims is a rig with a table of claims, of which 7 is open, 8 is closed.
func claims(t *testing.T) *rig {
	t.Helper()
	r := setup(t)
	r.exec(t, "CREATE TABLE claims (id bigint PRIMARY KEY, state text NOT NULL, changed int NOT NULL DEFAULT 0)")
	r.exec(t, "INSERT INTO claims VALUES (7, 'open'), (8, 'closed')")
	return r
}

// followUps is how often the follow-up was written.
func (r *rig) followUps(t *testing.T) int {
	t.Helper()
	return query1[int](t, r, "SELECT count(*) FROM outbox.events WHERE event_type = 'ClaimPendingData'")
}

// The example runs, and T8, T9, R18, R20, R21, R27: a second run changes no row and starts nothing.
func TestTransition_twice(t *testing.T) {
	t.Parallel()
	r := claims(t)
	var out strings.Builder
	if err := remind(t.Context(), r.pool, &out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("changed: true\nchanged: false\n", out.String()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
	rowsBefore := query1[string](t, r, "SELECT string_agg(id || state || xmin, ',' ORDER BY id) FROM claims")
	if changed, err := ClaimPendingData(t.Context(), r.Ledger, 7); changed || err != nil {
		t.Errorf("third run: %v, %v", changed, err)
	}
	if changed, err := ClaimPendingData(t.Context(), r.Ledger, 8); changed || err != nil {
		t.Errorf("a closed claim: %v, %v", changed, err)
	}
	if after := query1[string](t, r, "SELECT string_agg(id || state || xmin, ',' ORDER BY id) FROM claims"); after != rowsBefore {
		t.Errorf("rows %s, were %s", after, rowsBefore)
	}
	if n := r.followUps(t); n != 1 || r.rows(t) != 0 {
		t.Errorf("%d follow-ups, %d rows in the ledger; want 1 and none", n, r.rows(t))
	}
}

// T10, R24: a run that fails after the change of state leaves nothing half done; the next one does it all. The
// follow-up's own handler, given its event twice, delivers once.
func TestTransition_failsHalfWay(t *testing.T) {
	t.Parallel()
	r := claims(t)
	mine := errors.New("mine")
	_, err := r.Transition(t.Context(), func(tx ledger.DBTX) (int64, error) {
		return tx.Exec(t.Context(), "UPDATE claims SET state = 'pending_data' WHERE id = 7 AND state = 'open'")
	}, func(ledger.DBTX) error { return mine })
	if err != mine {
		t.Errorf("got %v, want the follow-up's error", err)
	}
	if state := query1[string](t, r, "SELECT state FROM claims WHERE id = 7"); state != "open" {
		t.Errorf("state %q after a failed run", state)
	}
	if changed, err := ClaimPendingData(t.Context(), r.Ledger, 7); !changed || err != nil {
		t.Errorf("next run: %v, %v", changed, err)
	}
	if n := r.followUps(t); n != 1 {
		t.Errorf("%d follow-ups, want 1", n)
	}
	p := newProvider()
	key := ledger.Key{EventKey: "claim-pending-data:7", Recipient: "user:1", Channel: "email", OccurredAt: time.Now()}
	want(t, "follow-up", ledger.Delivered)(r.Deliver(t.Context(), key, p.handler()))
	want(t, "follow-up again", ledger.AlreadyDelivered)(r.Deliver(t.Context(), key, p.handler()))
	if n := p.arrived(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// What follows stands only if the change does: here the commit itself fails.
func TestTransition_commitFails(t *testing.T) {
	t.Parallel()
	r := claims(t)
	r.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON claims DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if changed, err := ClaimPendingData(t.Context(), r.Ledger, 7); changed || sqlState(err) != "P0001" {
		t.Errorf("got %v, %v; want the trigger's refusal", changed, err)
	}
	if n := r.followUps(t); n != 0 {
		t.Errorf("%d follow-ups of a change that was not made", n)
	}
}

// T11, R25, R28: of many workers one makes the transition. With the application's guard off, the unique constraint
// is what remains.
func TestTransition_concurrent(t *testing.T) {
	t.Parallel()
	r := claims(t)
	all := func(f func() (bool, error)) int {
		var mu sync.Mutex
		changes := 0
		var running sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			running.Go(func() {
				<-start
				changed, err := f()
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if changed {
					changes++
				}
			})
		}
		close(start)
		running.Wait()
		return changes
	}
	if n := all(func() (bool, error) { return ClaimPendingData(t.Context(), r.Ledger, 7) }); n != 1 || r.followUps(t) != 1 {
		t.Errorf("%d transitions, %d follow-ups, want 1", n, r.followUps(t))
	}
	unguarded := func() (bool, error) {
		n, err := r.Transition(t.Context(), func(tx ledger.DBTX) (int64, error) {
			return tx.Exec(t.Context(), `INSERT INTO ledger.notifications (event_key, recipient, type)
VALUES ('claim-pending-data:7', 'user:1', 'claim') ON CONFLICT DO NOTHING`)
		}, func(ledger.DBTX) error { return nil })
		return n > 0, err
	}
	if n := all(unguarded); n != 1 || r.notifications(t) != 1 {
		t.Errorf("%d inserted, %d notifications, want 1", n, r.notifications(t))
	}
}

// The ledger repeats its own transaction when others get in its way: a deadlock is nobody's error.
func TestTransition_deadlock(t *testing.T) {
	t.Parallel()
	r := claims(t)
	var firstLocked sync.WaitGroup
	firstLocked.Add(2)
	var mu sync.Mutex
	runs := 0
	cross := func(first, second int) error {
		waited := false
		_, err := r.Transition(t.Context(), func(tx ledger.DBTX) (int64, error) {
			mu.Lock()
			runs++
			mu.Unlock()
			if n, err := tx.Exec(t.Context(), "UPDATE claims SET changed = changed + 1 WHERE id = $1", first); err != nil {
				return n, err
			}
			if !waited {
				waited = true
				firstLocked.Done()
				firstLocked.Wait()
			}
			return tx.Exec(t.Context(), "UPDATE claims SET changed = changed + 1 WHERE id = $1", second)
		}, func(ledger.DBTX) error { return nil })
		return err
	}
	errs := make(chan error, 2)
	go func() { errs <- cross(7, 8) }()
	go func() { errs <- cross(8, 7) }()
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := query1[int](t, r, "SELECT sum(changed) FROM claims"); n != 4 || runs < 3 {
		t.Errorf("changed %d times in %d runs, want 4 in 3 or more", n, runs)
	}
}
