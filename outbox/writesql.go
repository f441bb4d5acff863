package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// WriteSQL is Write for database/sql. It sends nothing but strings, so it does not depend on the driver; tried with
// pgx's stdlib in all its modes and with lib/pq, with and without binary_parameters. Whether a statement with
// arguments takes one round trip or two (prepare, then execute) is the driver's matter.
func WriteSQL(ctx context.Context, tx *sql.Tx, events ...Event) ([]uuid.UUID, error) {
	if tx == nil {
		return nil, ErrNoTransaction
	}
	if len(events) == 0 {
		return nil, nil
	}
	ids, args, err := prepare(events)
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, insertSQL, args...); err != nil {
		if errors.Is(err, sql.ErrTxDone) {
			return nil, fmt.Errorf("%w: %w", ErrNoTransaction, err)
		}
		return nil, explain(err, ids)
	}
	return ids, nil
}
