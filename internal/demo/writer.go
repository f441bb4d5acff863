package demo

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const writers = 4

// writer is one session of the application.
type writer struct {
	conn  *pgx.Conn
	pace  *pace
	tally *tally
}

// ending is how a transaction goes.
type ending int

const (
	commits ending = iota
	rollsBack
	rollsBackToSavepoint // and commits what else it did
	releasesSavepoint    // and commits
)

// repertoire is what a writer does in turn. It begins with a rollback, so that there is one in the shortest demo.
func repertoire(turn int) ending {
	return []ending{rollsBack, commits, rollsBackToSavepoint, commits, releasesSavepoint, commits}[turn%6]
}

// write writes until there are no events left or writing ends. A transaction that was begun is finished, unless
// ctx ends.
func write(ctx, writing context.Context, url string, pace *pace, tally *tally) error {
	conn, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer disconnect(ctx, conn)
	w := &writer{conn: conn, pace: pace, tally: tally}
	for turn := 0; writing.Err() == nil; turn++ {
		how := repertoire(turn)
		kept := 0
		if how != rollsBack {
			if kept = pace.take(writing, 1+rand.IntN(3)); kept == 0 {
				return nil
			}
		}
		if err := w.transact(ctx, how, kept); err != nil {
			return err
		}
	}
	return nil
}

// transact runs one transaction that leaves this number of events, and others that it does not leave.
func (w *writer) transact(ctx context.Context, how ending, kept int) error {
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // nothing after Commit
	var ids []uuid.UUID
	switch how {
	case rollsBack:
		return w.discard(ctx, tx)
	case rollsBackToSavepoint:
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return fmt.Errorf("set savepoint: %w", err)
		}
		if err := w.discard(ctx, savepoint); err != nil {
			return err
		}
		ids, err = changeOrders(ctx, tx, kept)
		if err != nil {
			return err
		}
	case releasesSavepoint:
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return fmt.Errorf("set savepoint: %w", err)
		}
		if ids, err = changeOrders(ctx, savepoint, kept); err != nil {
			return err
		}
		if err := savepoint.Commit(ctx); err != nil {
			return fmt.Errorf("release savepoint: %w", err)
		}
	default:
		if ids, err = changeOrders(ctx, tx, kept); err != nil {
			return err
		}
	}
	w.tally.committing(ids)
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// discard writes events and rolls back the transaction or savepoint they are in.
func (w *writer) discard(ctx context.Context, tx pgx.Tx) error {
	ids, err := changeOrders(ctx, tx, 1+rand.IntN(2))
	if err != nil {
		return err
	}
	if err := tx.Rollback(ctx); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	w.tally.rollBack(len(ids))
	return nil
}
