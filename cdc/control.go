package cdc

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// control owns the session's ordinary connection. It writes the watermark to relay_state and only then lets the
// reader say it; it watches the slot; and between the two it listens, so that a server that shuts down or a
// connection that breaks is noticed at once.
type control struct {
	s         *Stream
	db        *pgx.Conn
	owner     string
	watermark *watermark
	reader    *reader
	pid       uint32 // backend of the walsender
	version   int    // of the server

	confirmed   outbox.LSN // in relay_state
	acked       uint64     // events before it
	lastWrite   time.Time
	horizon     Horizon // candidate for safe_xid; zero: take one
	lastSlot    time.Time
	lastTables  time.Time
	slot        slotRow         // as last seen
	published   published       // as last seen
	asked       bool            // the reader waits for a look at the publication
	nudges      int             // confirmations for the sake of retained WAL since the restart LSN last moved
	streaming   context.Context // ends when the sink has finished: one last write. A field because it is the session's, not a call's
	firstAck    context.Context // ends with the session's first acknowledgement, which is not kept waiting
	lastConfirm func(outbox.LSN)
}

const (
	// idleBytes is how far the WAL must have moved for a confirmation that no event asked for. Without a
	// threshold the relay's own writes would be reason enough for the next one, for ever.
	idleBytes = 1 << 20
	// retainedBytes is how much WAL the slot may retain before less than idleBytes is reason enough: the server
	// lets go of old WAL only when a position behind its own latest snapshot record is confirmed, and after a burst
	// of other tables' writes that record may be the last thing written for long. maxNudges ends it where an old
	// transaction, and not the position, is what holds the WAL.
	retainedBytes = 16 << 20
	maxNudges     = 4
	// slotInterval is how often the slot is looked at.
	slotInterval = 5 * time.Second
	// tablesInterval is how often tables and publication are. A table that leaves the publication is not heard of in
	// the stream: it goes silent.
	tablesInterval = 10 * time.Second
)

// run works until the sink has finished, then writes the last position and returns nil.
func (c *control) run(ctx context.Context) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last := c.streaming.Err() != nil
		if err := c.confirm(ctx, last); err != nil || last {
			return err
		}
		if time.Since(c.lastSlot) >= slotInterval {
			if err := c.watchSlot(ctx); err != nil {
				return err
			}
		}
		if time.Since(c.lastTables) >= tablesInterval {
			if err := c.watchTables(ctx); err != nil {
				return err
			}
		}
		if err := c.listen(c.s.cfg.ConfirmInterval); err != nil {
			return err
		}
		if err := c.answerLook(ctx); err != nil {
			return err
		}
	}
}

// answerLook looks at the publication when the reader waits for that. What is acknowledged by then came before the
// change, and is confirmed first.
func (c *control) answerLook(ctx context.Context) error {
	if !c.asked {
		return nil
	}
	lctx, cancel := context.WithTimeout(ctx, c.s.cfg.QueryTimeout)
	defer cancel()
	if gap := c.lookAtPublication(lctx); gap != nil {
		if state.Of(gap) != nil && state.Of(gap).State != state.DatabaseUnreachable {
			if err := c.confirm(ctx, true); err != nil {
				return err
			}
		}
		return gap
	}
	c.asked = false
	c.reader.looked.Add(1)
	c.reader.poke()
	return nil
}

// confirm writes the watermark when events were acknowledged since the last write, or when the idle rule allows.
func (c *control) confirm(ctx context.Context, last bool) error {
	lsn, acked := c.watermark.Position()
	due := acked > c.acked && lsn > c.confirmed
	if !due && !last && time.Since(c.lastWrite) >= c.s.cfg.IdleInterval {
		switch {
		case lsn >= c.confirmed+idleBytes:
			due = true
		case lsn > c.confirmed && c.slot.retained >= retainedBytes && c.nudges < maxNudges:
			due = true
			c.nudges++
		}
	}
	if !due {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.QueryTimeout)
	defer cancel()
	var safe uint64
	if c.horizon.LSN != 0 && c.horizon.LSN <= lsn {
		safe = c.horizon.XID
	}
	// What is acknowledged is confirmed all the same, but no transaction is vouched for any more.
	gap := c.lookAtPublication(ctx)
	sure := c.published.xid
	if gap != nil {
		if state.Of(gap) == nil || state.Of(gap).State == state.DatabaseUnreachable {
			return gap
		}
		safe, sure = 0, 0
	}
	if err := c.s.store.Confirm(ctx, c.db, c.s.cfg.Slot, c.owner, lsn, safe, sure); err != nil {
		return c.s.serverError("confirm", err)
	}
	c.confirmed, c.acked, c.lastWrite = lsn, acked, time.Now()
	c.reader.flush.Store(uint64(lsn))
	c.reader.poke()
	c.lastConfirm(lsn)
	if gap != nil {
		if last {
			return nil // a clean stop; the next start finds it too
		}
		return gap
	}
	if safe != 0 || c.horizon.LSN == 0 {
		var err error
		if c.horizon, err = c.s.store.Horizon(ctx, c.db); err != nil {
			return c.s.serverError("read horizon", err)
		}
	}
	return nil
}

// watchSlot reads the slot as the server sees it. It is also how a stream that has gone silent is told from one
// whose server is busy decoding: the first has no walsender any more.
func (c *control) watchSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.QueryTimeout)
	defer cancel()
	row, found, err := c.s.loadSlot(ctx, c.db)
	switch {
	case err != nil:
		return err
	case !found:
		return c.s.slotMissing()
	case row.walStatus == "lost":
		return c.s.slotLost("wal_status is lost")
	}
	if row.restart != c.slot.restart {
		c.nudges = 0
	}
	c.slot, c.lastSlot = row, time.Now()
	if silent := time.Since(time.Unix(0, c.reader.lastHeard.Load())); silent > c.s.cfg.SilenceLimit && uint32(row.activePID) != c.pid {
		return &state.Error{State: state.DatabaseUnreachable,
			Reason: fmt.Sprintf("the stream has been silent for %v and the server no longer serves it", silent.Round(time.Second))}
	}
	return nil
}

// watchTables looks at tables and publication as they are now.
func (c *control) watchTables(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.s.cfg.QueryTimeout)
	defer cancel()
	if _, err := c.s.checkTables(ctx, c.db); err != nil {
		return err
	}
	c.lastTables = time.Now()
	if err := c.s.checkPublication(ctx, c.db, c.version); err != nil {
		return err
	}
	return c.lookAtPublication(ctx)
}

// listen waits for d, for the end of the sink or of the connection, or until the reader asks for a look.
func (c *control) listen(d time.Duration) error {
	ctx, cancel := context.WithTimeout(c.streaming, d)
	defer cancel()
	if c.acked == 0 {
		// A relay that is killed again and again within d must not begin at the same place each time.
		defer context.AfterFunc(c.firstAck, cancel)()
	}
	heard := make(chan bool)
	go func() {
		asked := false
		select {
		case <-c.reader.looks:
			asked = true
			cancel()
		case <-ctx.Done():
		}
		heard <- asked
	}()
	_, err := c.db.WaitForNotification(ctx)
	failed := err != nil && ctx.Err() == nil
	cancel()
	c.asked = <-heard || c.asked
	if failed {
		return c.s.serverError("listen", err)
	}
	return nil
}
