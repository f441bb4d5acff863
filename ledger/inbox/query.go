package inbox

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// describe is how queries travel: prepared without a name, so that a pooler may stand between.
const describe = pgx.QueryExecModeCacheDescribe

// queryTimeout bounds a query, the wait for its turn included.
const queryTimeout = 10 * time.Second

// Notification is one entry of a recipient's list.
type Notification struct {
	ID        int64           `json:"id"`
	CreatedAt time.Time       `json:"created_at"`
	ReadAt    *time.Time      `json:"read_at"`
	Type      string          `json:"type"`
	Data      json.RawMessage `json:"data"`
}

// query runs f when it is its turn.
func (b *Inbox) query(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-b.slots }()
	return f(ctx)
}

// list returns what is above an id, at most n, in order. after nil: the newest; upTo nil: as far as all is settled now.
func (b *Inbox) list(ctx context.Context, a address, after *int64, n int, upTo *int64) (list []Notification, err error) {
	err = b.query(ctx, func(ctx context.Context) error {
		rows, err := b.pool.Query(ctx, "SELECT id, created_at, read_at, type, data FROM ledger.list_notifications($1, $2, $3, $4, $5)",
			describe, a.tenant, a.recipient, after, n, upTo)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (v Notification, err error) {
			err = row.Scan(&v.ID, &v.CreatedAt, &v.ReadAt, &v.Type, &v.Data)
			return v, err
		})
		return err
	})
	return list, err
}

// read marks notifications of a as read and returns how many were not.
func (b *Inbox) read(ctx context.Context, a address, ids []int64) (n int, err error) {
	err = b.query(ctx, func(ctx context.Context) error {
		return b.pool.QueryRow(ctx, "SELECT ledger.read_notifications($1, $2, $3)", describe, a.tenant, a.recipient, ids).Scan(&n)
	})
	return n, err
}
