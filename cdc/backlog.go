package cdc

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// backlog publishes what outbox.backlog lists before anything of the stream goes. It has a sink to itself: when the
// sink is empty nothing of the list is under way any more, and only then the phase changes. The session ends with
// that, and the next one streams.
type backlog struct {
	ses *session

	// marks takes the acknowledgements. The position that it gives is an ordinal of the list.
	marks *watermark
	seq   uint64
	at    uint32 // ordinal up to which the list has been read
	most  int    // entries to ask for next
	chunk *chunk

	left     atomic.Uint64 // entries that are neither published nor vanished
	vanished atomic.Uint64 // entries whose row is gone
	complete atomic.Bool   // the list has been read to its end
}

func newBacklog(ses *session) *backlog {
	return &backlog{ses: ses, marks: newWatermark(0), most: 64, chunk: newChunk()}
}

// feed hands the listed events to the sink in the order of the list, until soft ends or the list does. Its
// connection is its own: the session's must stay free to settle and to watch, and a result must not stay half read,
// for its snapshot would hold up vacuum for as long as the broker is away. So rows are read into a chunk first.
func (b *backlog) feed(ctx, soft context.Context, sink Sink) error {
	s := b.ses.s
	db, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, db.PgConn())
	tables, err := s.rowTables(ctx, db)
	if err != nil {
		return err
	}
	for soft.Err() == nil {
		b.chunk.reset()
		b.chunk.firstSeq = b.seq + 1
		more, err := b.read(ctx, db, tables)
		if err != nil {
			return err
		}
		if len(b.chunk.events) > 0 {
			if err := sink.Accept(ctx, b.chunk.firstSeq, b.chunk.events); err != nil {
				return err
			}
		}
		if !more {
			b.complete.Store(true)
			return nil
		}
	}
	return nil
}

// read fills the chunk from the list; more is false at the list's end.
func (b *backlog) read(ctx context.Context, db *pgx.Conn, tables map[string]*rowTable) (more bool, err error) {
	s := b.ses.s
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	entries, err := s.listed(ctx, db, b.at, b.most)
	if err != nil || len(entries) == 0 {
		return false, err
	}
	now := time.Now()
	for taken := 0; taken < len(entries); {
		t := tables[entries[taken].source]
		if t == nil {
			return false, &state.Error{State: state.TableMismatch,
				Reason: fmt.Sprintf("outbox.backlog lists rows of table %s, which this relay does not read", entries[taken].source),
				Hint:   "name the table in the relay's configuration again until the list is published"}
		}
		var ids []string
		for _, e := range entries[taken:] {
			if e.source != t.table.String() {
				break
			}
			ids = append(ids, e.id)
		}
		run, full := entries[taken:taken+len(ids)], false
		err := t.fetch(ctx, db.PgConn(), ids, func(i int, tuple []byte) (bool, error) {
			if tuple != nil && !b.chunk.fits(len(tuple)) {
				full = true
				return false, nil
			}
			taken++
			return true, b.take(t, run[i].ordinal, tuple, now)
		})
		if err != nil {
			return false, s.serverError(fmt.Sprintf("read rows of %s", t.table), err)
		}
		if full { // what was sent in vain is not kept; so ask for no more than that from here on
			b.most = max(1, taken)
			return true, nil
		}
	}
	b.most = min(b.most+b.most/4+1, chunkEvents)
	return true, nil
}

// take makes an event of a row.
func (b *backlog) take(t *rowTable, ordinal uint32, tuple []byte, now time.Time) error {
	if tuple == nil {
		b.vanished.Add(1)
	} else {
		pos := backlogPosition(b.ses.record.Incarnation, ordinal)
		if err := b.chunk.add(t.layout, insert{columns: len(t.columns), tuple: tuple}, pos); err != nil {
			return err
		}
		b.chunk.events[len(b.chunk.events)-1].CommitTime = now // when it committed nobody knows any more
		b.seq++
		b.marks.Issue(b.seq)
	}
	b.at = ordinal
	b.marks.Commit(b.seq, outbox.LSN(ordinal), now)
	return nil
}

// settle deletes from the list what is acknowledged, and ends the phase when nothing is left. It returns when
// streaming has ended.
func (b *backlog) settle(ctx context.Context, c *control) error {
	s := b.ses.s
	total, err := b.count(ctx, c.db)
	if err != nil {
		return err
	}
	var gone uint32
	var said state.Status
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last := c.streaming.Err() != nil
		done, acked := b.marks.Position()
		end := last && b.complete.Load()
		if open, _ := b.marks.Pending(); end && open > 0 {
			return fmt.Errorf("end backlog: the sink has ended with %d events unacknowledged", open)
		}
		if outbox.LSN(gone) < done || end {
			if err := b.drop(ctx, c.db, gone, uint32(done), end); err != nil {
				return err
			}
			gone = uint32(done)
		}
		b.left.Store(total - min(total, acked+b.vanished.Load()))
		if end && s.listener.BacklogDone != nil {
			s.listener.BacklogDone(acked, b.vanished.Load())
		}
		if last {
			return nil
		}
		if st := b.status(total); st != said {
			s.report(st)
			said = st
		}
		if time.Since(c.lastSlot) >= slotInterval {
			if err := c.watchSlot(ctx); err != nil {
				return err
			}
		}
		if err := c.listen(s.cfg.ConfirmInterval); err != nil {
			return err
		}
	}
}

func (b *backlog) status(total uint64) state.Status {
	left := b.left.Load()
	st := state.Status{State: state.Backlog, Reason: fmt.Sprintf("%d of %d events that go before the stream are published", total-left, total)}
	if n := b.vanished.Load(); n > 0 {
		st.Reason += fmt.Sprintf("; the rows of %d are gone", n)
	}
	return st
}

func (b *backlog) count(ctx context.Context, db DB) (total uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.ses.s.cfg.QueryTimeout)
	defer cancel()
	err = db.QueryRow(ctx, `select count(*) from outbox.backlog where slot = $1`, b.ses.s.cfg.Slot).Scan(&total)
	return total, b.ses.s.serverError("count backlog", err)
}

// drop deletes the entries behind from up to to, if the slot is still ours.
func (b *backlog) drop(ctx context.Context, db *pgx.Conn, from, to uint32, end bool) error {
	s := b.ses.s
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		if err := s.store.Hold(ctx, tx, s.cfg.Slot, b.ses.owner); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `delete from outbox.backlog where slot = $1 and ordinal > $2 and ordinal <= $3`, s.cfg.Slot, int64(from), int64(to)); err != nil {
			return err
		}
		if end {
			return s.store.EndBacklog(ctx, tx, s.cfg.Slot, b.ses.owner)
		}
		return nil
	})
	return s.serverError("delete from backlog what is published", err)
}

// hold talks to the server and reads nothing, until the session is over.
func (r *reader) hold() error {
	for r.stopping.Load() == keepReading {
		if err := r.service(); err != nil {
			return err
		}
		r.pause()
	}
	return r.run()
}
