package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/outbox"
)

// inTx runs f in a transaction and commits it unless f fails.
func inTx(t *testing.T, r *rig, f func(ledger.DBTX) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { return f(ledger.Pgx(tx)) })
}

func insertNotification(ctx context.Context, key ledger.Key) func(ledger.DBTX) error {
	return func(db ledger.DBTX) error {
		_, err := db.Exec(ctx, "INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ($1, $2, 'post')", key.EventKey, key.Recipient)
		return err
	}
}

func (r *rig) notifications(t *testing.T) int {
	t.Helper()
	return query1[int](t, r, "SELECT count(*) FROM ledger.notifications")
}

// T37: the guarded row is written whatever state the delivery was left in, and never a second time.
func TestOnce(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec(t, "CREATE TABLE guarded (recipient text)")
	prepare := map[string]func(key ledger.Key){
		"absent": func(ledger.Key) {},
		"pending": func(key ledger.Key) {
			want(t, "release", ledger.Released)(r.Release(t.Context(), mustReserve(t, r.Ledger, key)))
		},
		"failed": func(key ledger.Key) {
			want(t, "fail", ledger.Failed)(r.Fail(t.Context(), mustReserve(t, r.Ledger, key), ledger.KindRetry, "x", 0))
		},
		"lease over": func(key ledger.Key) { r.expire(t, mustReserve(t, r.Ledger, key).ID) },
		"held":       func(key ledger.Key) { mustReserve(t, r.Ledger, key) },
		"skipped": func(key ledger.Key) {
			want(t, "skip", ledger.Skipped)(r.Skip(t.Context(), nil, mustReserve(t, r.Ledger, key), "x"))
		},
	}
	got := map[string][2]ledger.Outcome{}
	for state, f := range prepare {
		key := keyOn("database")
		key.Recipient = state
		f(key)
		var pair [2]ledger.Outcome
		for i := range pair {
			err := inTx(t, r, func(tx ledger.DBTX) (err error) {
				pair[i], err = r.Once(t.Context(), tx, key, func(db ledger.DBTX) error {
					_, err := db.Exec(t.Context(), "INSERT INTO guarded VALUES ($1)", state)
					return err
				})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		got[state] = pair
	}
	written := [2]ledger.Outcome{ledger.Delivered, ledger.AlreadyDelivered}
	wantPairs := map[string][2]ledger.Outcome{
		"absent": written, "pending": written, "failed": written, "lease over": written,
		"held":    {ledger.AlreadyReserved, ledger.AlreadyReserved},
		"skipped": {ledger.AlreadySkipped, ledger.AlreadySkipped},
	}
	if diff := cmp.Diff(wantPairs, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if n := query1[int](t, r, "SELECT count(*) FROM guarded"); n != 4 {
		t.Errorf("%d guarded rows, want 4", n)
	}
}

// T31: both stand or neither does; and what is not eligible is recorded so.
func TestOnce_rollback(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("database")
	mine := errors.New("mine")
	err := inTx(t, r, func(tx ledger.DBTX) error {
		_, err := r.Once(t.Context(), tx, key, func(db ledger.DBTX) error {
			if err := insertNotification(t.Context(), key)(db); err != nil {
				return err
			}
			return mine
		})
		return err
	})
	if err != mine || r.rows(t) != 0 || r.notifications(t) != 0 {
		t.Errorf("error %v, %d rows, %d notifications; want the callback's error and none", err, r.rows(t), r.notifications(t))
	}
	var outcome ledger.Outcome
	err = inTx(t, r, func(tx ledger.DBTX) (err error) {
		outcome, err = r.Once(t.Context(), tx, key, insertNotification(t.Context(), key), ledger.WithSkip("left the group"))
		return err
	})
	if err != nil || outcome != ledger.Skipped || r.notifications(t) != 0 || r.row(t, key).Reason != "left the group" {
		t.Errorf("%q, %v, row %+v", outcome, err, r.row(t, key))
	}
}

func TestOnceBatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	want(t, "known", ledger.Delivered)(r.Deliver(t.Context(), event("database").Key("user:2"), newProvider().handler()))
	var got map[string]ledger.Outcome
	err := inTx(t, r, func(tx ledger.DBTX) (err error) {
		got, err = r.OnceBatch(t.Context(), tx, event("database"), []string{"user:3", "user:2", "user:1", "user:3"},
			ledger.WithContent(ledger.Content{Type: "PostPublished"}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcomes := map[string]ledger.Outcome{"user:1": "delivered", "user:2": "already_delivered", "user:3": "delivered"}
	if diff := cmp.Diff(wantOutcomes, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if n := query1[int](t, r, "SELECT count(*) FROM ledger.events"); n != 1 {
		t.Errorf("%d events remembered, want 1", n)
	}
}

// What is no open transaction is refused before anything is written.
func TestOnce_needsTransaction(t *testing.T) {
	t.Parallel()
	r := setup(t)
	conn, err := r.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "COMMIT"); err != nil { // as text, so that the driver does not know
		t.Fatal(err)
	}
	for name, db := range map[string]ledger.DBTX{
		"nil": nil, "pool": ledger.Pgx(r.pool), "pooled connection": ledger.Pgx(conn), "connection": ledger.Pgx(conn.Conn()), "ended": ledger.Pgx(tx),
	} {
		never := func(ledger.DBTX) error { t.Errorf("%s: called", name); return nil }
		if _, err := r.Once(t.Context(), db, keyOn("database"), never); !errors.Is(err, ledger.ErrNoTransaction) {
			t.Errorf("Once, %s: %v", name, err)
		}
		if _, err := r.OnceBatch(t.Context(), db, event("database"), users(1)); !errors.Is(err, ledger.ErrNoTransaction) {
			t.Errorf("OnceBatch, %s: %v", name, err)
		}
		if err := ledger.Write(t.Context(), db, outbox.Event{}); !errors.Is(err, ledger.ErrNoTransaction) {
			t.Errorf("Write, %s: %v", name, err)
		}
		if name == "pool" {
			continue
		}
		if _, err := ledger.New(db, ledger.DefaultConfig()); !errors.Is(err, ledger.ErrNotPool) {
			t.Errorf("New, %s: %v", name, err)
		}
	}
	if n := r.rows(t); n != 0 {
		t.Errorf("%d rows", n)
	}
}

// A claimed row of an in-database channel: the guarded row is written in the transaction that completes it.
func TestComplete_withGuardedRow(t *testing.T) {
	t.Parallel()
	r := setup(t)
	key := keyOn("database")
	old, holder := zombie(t, r, key)
	write := func(res ledger.Reservation) (outcome ledger.Outcome, err error) {
		err = inTx(t, r, func(tx ledger.DBTX) (err error) {
			if outcome, err = r.Complete(t.Context(), tx, res, "", nil); err != nil {
				return err
			}
			if outcome == ledger.Delivered || outcome == ledger.LateAccepted {
				return insertNotification(t.Context(), key)(tx)
			}
			return nil
		})
		return outcome, err
	}
	want(t, "the old holder", ledger.LateAccepted)(write(old))
	want(t, "the new one", ledger.AlreadyDelivered)(write(holder))
	if n := r.notifications(t); n != 1 {
		t.Errorf("%d notifications, want 1", n)
	}
}
