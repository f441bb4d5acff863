package inbox

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// feed finds out that there are new notifications, and for whom.
type feed struct {
	inbox   *Inbox
	wake    chan struct{} // a signal came
	settled atomic.Int64  // no notification appears at or below it any more; 0: not known
}

// Pace of the feed.
const (
	gather    = 20 * time.Millisecond // signals that come together are one
	wideRange = 5000                  // more new ids than that are not matched one by one
	reconnect = time.Second
)

// run looks, after each signal and at the latest after Config.Poll, until ctx ends. While nobody listens it does not ask
// the database.
func (f *feed) run(ctx context.Context) {
	last, known := int64(0), false // up to where streams were poked
	poll := time.NewTimer(f.inbox.cfg.Poll)
	defer poll.Stop()
	for {
		select {
		case <-f.wake:
			pause(ctx, gather)
		case <-poll.C:
		case <-ctx.Done():
			return
		}
		poll.Reset(f.inbox.cfg.Poll)
		if f.inbox.hub.size() == 0 {
			known = false
			continue
		}
		bound, err := f.bound(ctx)
		switch {
		case err != nil:
		case !known || bound-last > wideRange:
			f.inbox.hub.pokeAll()
		case bound > last:
			err = f.match(ctx, last, bound)
		}
		if err != nil {
			if ctx.Err() == nil {
				f.inbox.notice(fmt.Errorf("look for notifications: %w", err))
			}
			continue // from where it was
		}
		last, known = bound, true
	}
}

// bound asks up to which id all is settled and returns the highest answer so far.
func (f *feed) bound(ctx context.Context) (int64, error) {
	var now int64
	err := f.inbox.query(ctx, func(ctx context.Context) error {
		return f.inbox.pool.QueryRow(ctx, "SELECT ledger.notifications_settled()", describe).Scan(&now)
	})
	if err != nil {
		return 0, err
	}
	for {
		old := f.settled.Load()
		if now <= old {
			return old, nil
		}
		if f.settled.CompareAndSwap(old, now) {
			return now, nil
		}
	}
}

// match pokes the streams of those whom the rows above one id and up to another are for.
func (f *feed) match(ctx context.Context, above, upTo int64) error {
	return f.inbox.query(ctx, func(ctx context.Context) error {
		rows, err := f.inbox.pool.Query(ctx, "SELECT tenant, recipient FROM ledger.notifications WHERE id > $1 AND id <= $2", describe, above, upTo)
		if err != nil {
			return err
		}
		var a address
		_, err = pgx.ForEachRow(rows, []any{&a.tenant, &a.recipient}, func() error {
			f.inbox.hub.poke(a)
			return nil
		})
		return err
	})
}

// listen turns signals of the channel broadcast into wakes, until ctx ends. It is an aid: the poll finds what it misses.
func (f *feed) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		f.inbox.notice(fmt.Errorf("listen for notifications: %w", err))
		pause(ctx, reconnect)
	}
}

func (f *feed) hear(ctx context.Context) error {
	conn, err := f.inbox.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	// Given back it must hear nothing: it is closed, which a pool does with what is broken.
	defer conn.Conn().Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN ledger_notifications"); err != nil {
		return err
	}
	for {
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			return err
		}
		select {
		case f.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}
