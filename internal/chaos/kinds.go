package chaos

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// kind is a way in which a transaction goes.
type kind struct {
	name   string
	weight int
	do     func(*writer, context.Context) error
}

// kinds lists them all. The weights are of a thousand.
var kinds = []kind{
	{"commit", 640, func(w *writer, ctx context.Context) error { return w.commit(ctx, w.some(1, 3)) }},
	{"several aggregates", 60, func(w *writer, ctx context.Context) error { return w.commit(ctx, w.some(2, 20)) }},
	{"large", 5, (*writer).large},
	{"copy", 25, (*writer).copy100},
	{"rollback", 90, (*writer).rollback},
	{"savepoint", 60, (*writer).savepoint},
	{"error", 30, (*writer).violate},
	{"insert and delete", 25, (*writer).insertAndDelete},
	{"clean up", 15, (*writer).cleanUp},
	{"messages", 20, (*writer).messages},
	{"killed", 15, (*writer).killed},
	{"prepared", 15, (*writer).prepared},
}

// Kinds returns the names of the kinds of transactions.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// some picks the aggregates of least to most events; one may come several times.
func (w *writer) some(least, most int) []string {
	ids := make([]string, least+w.rng.IntN(most-least+1))
	for i := range ids {
		ids[i] = sharedAggregate(int(w.zipf.Uint64()))
	}
	return ids
}

// transaction runs f in a transaction, which it rolls back unless f has ended it.
func (w *writer) transaction(ctx context.Context, f func(pgx.Tx) error) error {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // after a commit there is nothing left to roll back
	return f(tx)
}

// commit is the ordinary case.
func (w *writer) commit(ctx context.Context, aggregates []string) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if err := w.change(ctx, tx, aggregates, w.way()); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// large is more than the relay holds in memory of one transaction.
func (w *writer) large(ctx context.Context) error {
	n := w.load.cfg.LargeRows
	if n == 0 {
		return w.commit(ctx, w.some(1, 3))
	}
	return w.commit(ctx, w.some(n, 3*n))
}

// copy100 writes rows that share an LSN.
func (w *writer) copy100(ctx context.Context) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if err := w.change(ctx, tx, w.some(100, 100), copyEvents); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// rollback does everything and takes it back.
func (w *writer) rollback(ctx context.Context) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if err := w.change(ctx, tx, w.some(1, 30), w.way()); err != nil {
			return err
		}
		return tx.Rollback(ctx)
	})
}

// savepoint takes back the middle of three parts, which the other two lock again: versions go on as if it had
// never been.
func (w *writer) savepoint(ctx context.Context) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		aggregates := w.some(1, 3)
		if err := w.change(ctx, tx, aggregates, w.way()); err != nil {
			return err
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if err := w.change(ctx, inner, aggregates, w.way()); err != nil {
			return err
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		if err := w.change(ctx, tx, aggregates, w.way()); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// violate has the last statement of a transaction fail.
func (w *writer) violate(ctx context.Context) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if err := w.change(ctx, tx, w.some(1, 5), w.way()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT outbox.publish('', 'chaos', 'x', 'Refused')`)
		const checkViolation = "23514"
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == checkViolation {
			return nil
		}
		return fmt.Errorf("an empty event key: %w", err)
	})
}

// insertAndDelete cleans up at once: the event counts although its row never becomes visible to anybody.
func (w *writer) insertAndDelete(ctx context.Context) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		way := w.way()
		var ids []string
		err := w.change(ctx, tx, w.some(1, 3), func(ctx context.Context, tx pgx.Tx, events []outbox.Event) error {
			for i := range events {
				ids = append(ids, events[i].ID.String())
			}
			return way(ctx, tx, events)
		})
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM outbox.events WHERE id = ANY($1::text[]::uuid[])`, ids); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// cleanUp deletes and updates old rows, which is no event.
func (w *writer) cleanUp(ctx context.Context) error {
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `
			DELETE FROM outbox.events WHERE id IN (SELECT id FROM outbox.events ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED)`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			UPDATE outbox.events SET event_type = 'Meddled'
			WHERE id IN (SELECT id FROM outbox.events ORDER BY id DESC LIMIT 5 FOR UPDATE SKIP LOCKED)`); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// messages sends logical messages of somebody else's, one of which survives a rollback.
func (w *writer) messages(ctx context.Context) error {
	const sql = `SELECT pg_logical_emit_message($1::boolean, 'somebody else', 'not an event')`
	err := w.transaction(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, false)
		return err
	})
	if err != nil {
		return err
	}
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, sql, true); err != nil {
			return err
		}
		if err := w.change(ctx, tx, w.some(1, 3), w.way()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sql, true); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
}

// killed has the backend terminated before the COMMIT, or while it may be under way.
func (w *writer) killed(ctx context.Context) error {
	executioner, err := pgx.Connect(ctx, w.load.cfg.URL)
	if err != nil {
		return err
	}
	defer executioner.Close(ctx)
	return w.transaction(ctx, func(tx pgx.Tx) error {
		if err := w.change(ctx, tx, w.some(1, 5), w.way()); err != nil {
			return err
		}
		pid := w.conn.PgConn().PID()
		struck := make(chan error, 1)
		strike := func() {
			_, err := executioner.Exec(ctx, `SELECT pg_terminate_backend($1)`, pid)
			struck <- err
		}
		if w.rng.IntN(2) == 0 {
			go strike()
		} else {
			strike()
		}
		_ = tx.Commit(ctx) // whatever it says, the truth knows
		return <-struck
	})
}

// prepared commits in two phases, with another transaction of the same session between.
func (w *writer) prepared(ctx context.Context) error {
	gid := fmt.Sprintf("%s%d", w.gid, w.done)
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := w.change(ctx, tx, w.some(1, 3), w.way()); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	// pgx does not know of the first phase: for it the transaction goes on, for the server it has left the session.
	if _, err := tx.Exec(ctx, fmt.Sprintf(`PREPARE TRANSACTION '%s'`, gid)); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	if err := w.commit(ctx, []string{privateAggregate(w.index)}); err != nil {
		return err
	}
	verb := "COMMIT"
	if w.rng.IntN(2) == 0 {
		verb = "ROLLBACK"
	}
	_, err = w.conn.Exec(ctx, fmt.Sprintf(`%s PREPARED '%s'`, verb, gid))
	return err
}
