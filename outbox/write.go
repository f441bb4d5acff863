package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Write writes events in the transaction tx, in their order and in one round trip for any number of them, and
// returns their IDs in the same order. They are published if and when the transaction commits. No events: nothing
// is sent. The events are not changed.
//
// tx is what Begin returned, a savepoint included; a *pgxpool.Pool or a *pgx.Conn does not compile. Every
// default_query_exec_mode works. The modes that cache take one more round trip for the first call on a connection,
// describe_exec for each call. Behind a pooler that shares sessions between transactions use exec or cache_describe.
//
// Errors: ErrNoTransaction; ErrDuplicateID; for events that break a rule, before anything is sent, all problems of
// all events joined, each a *FieldError; else the driver's error, wrapped. After an error that the server sent, the
// transaction is aborted and can only be rolled back. All the events of one call are sent as one message, of which
// PostgreSQL takes less than 1 GiB. Write may be called from many goroutines, with a transaction each.
func Write(ctx context.Context, tx pgx.Tx, events ...Event) ([]uuid.UUID, error) {
	if tx == nil {
		return nil, ErrNoTransaction
	}
	// Only a wrapper that pretends, or COMMIT sent as text, gets here with an idle connection.
	if c := tx.Conn(); c != nil && c.PgConn().TxStatus() == 'I' {
		return nil, ErrNoTransaction
	}
	if len(events) == 0 {
		return nil, nil
	}
	ids, args, err := prepare(events)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, insertSQL, args...); err != nil {
		if errors.Is(err, pgx.ErrTxClosed) {
			return nil, fmt.Errorf("%w: %w", ErrNoTransaction, err)
		}
		return nil, explain(err, ids)
	}
	return ids, nil
}

// violatesPrimaryKey asks the error of a driver, whichever it is, about the constraint. A unique index that somebody
// added to the table is another matter.
func violatesPrimaryKey(err error) bool {
	const uniqueViolation, name = "23505", "events_pkey"
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code == uniqueViolation && e.ConstraintName == name
	}
	// lib/pq, without importing it.
	if e, ok := errors.AsType[interface {
		error
		Get(field byte) string
	}](err); ok {
		return e.Get('C') == uniqueViolation && e.Get('n') == name
	}
	return false
}
