package cdc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Replay reads the events that criteria select among the published ones, table by table, and within one in the order
// of their transactions' IDs, or of their times where the table does not know these. It reads the places of many events
// at once, for no index need have that order, and then the rows by their IDs, a chunk at a time: so no statement is
// open while events are on their way, and vacuum is held up by none of it for long. It is for one goroutine.
type Replay struct {
	a           *Archive
	criteria    Criteria
	below       uint64
	incarnation uint32
	tables      []*rowTable // that are left; the first is being read
	ahead       []Mark      // of the first table, not read yet
	at          Mark
	chunk       *chunk
	ended       bool // of the first table: nothing is behind ahead
}

// marksAhead is how many places are read at once: some 2 MiB of memory against one look at the whole table.
const marksAhead = 20_000

// Page is a part of a replay.
type Page struct {
	Events []outbox.Committed // borrowed until the next one is read
	Gone   int                // rows that were selected and are not there any more
	Mark   Mark               // everything up to here is in this page or in one before it
}

// Replay begins a replay behind a mark. below bounds it: only events of transactions below it are read, so that it has
// an end while others are committed; it must not be above what SafeXID returned. A *CriteriaError is returned where
// the criteria, or the mark, do not fit the tables.
func (a *Archive) Replay(ctx context.Context, c Criteria, below uint64, after Mark) (*Replay, error) {
	if err := c.Validate(); err != nil {
		return nil, &CriteriaError{err.Error()}
	}
	tables, err := c.tablesOf(a.tables)
	if err != nil {
		return nil, err
	}
	rec, _, err := a.s.store.Load(ctx, a.db, a.s.cfg.Slot)
	if err != nil {
		return nil, a.fail("read relay_state", err)
	}
	r := &Replay{a: a, criteria: c, below: below, incarnation: rec.Incarnation, tables: tables, at: after, chunk: newChunk()}
	if after.Table != "" {
		i := slices.IndexFunc(tables, func(t *rowTable) bool { return t.table.String() == after.Table })
		if i < 0 {
			return nil, &CriteriaError{fmt.Sprintf("it has come to table %s, which this relay does not read", after.Table)}
		}
		r.tables = tables[i:]
	}
	return r, nil
}

// Next reads the next page: at most so many rows, and some 256 KiB of them unless one alone is larger. ok is false when
// there is nothing more.
func (r *Replay) Next(ctx context.Context, most int) (page Page, ok bool, err error) {
	for len(r.ahead) == 0 {
		if len(r.tables) == 0 {
			return Page{}, false, nil
		}
		if r.ended {
			r.tables, r.at, r.ended = r.tables[1:], Mark{}, false
			continue
		}
		if r.ahead, err = r.a.marks(ctx, r.tables[0], &r.criteria, r.below, r.at, marksAhead, false); err != nil {
			return Page{}, false, err
		}
		r.ended = len(r.ahead) < marksAhead
	}
	t, take := r.tables[0], r.ahead[:min(most, len(r.ahead), chunkEvents)]
	ids := make([]string, len(take))
	for i, m := range take {
		ids[i] = m.ID
	}
	r.chunk.reset()
	now, read, gone := time.Now(), 0, 0
	var bad error
	err = t.fetch(ctx, r.a.db.PgConn(), ids, func(i int, tuple []byte) (bool, error) {
		if tuple != nil && !r.chunk.fits(len(tuple)) {
			return false, nil
		}
		read = i + 1
		if tuple == nil {
			gone++
			return true, nil
		}
		if err := r.chunk.add(t.layout, insert{columns: len(t.columns), tuple: tuple}, outbox.Position{Incarnation: r.incarnation}); err != nil {
			bad = &CriteriaError{fmt.Sprintf("no event can be made of the row with ID %q: %v", ids[i], err)}
			return false, bad
		}
		r.chunk.events[len(r.chunk.events)-1].CommitTime = now // when it committed nobody knows any more
		return true, nil
	})
	switch {
	case bad != nil:
		return Page{}, false, bad
	case err != nil:
		return Page{}, false, r.a.fail(fmt.Sprintf("read rows of %s", t.table), err)
	}
	r.at, r.ahead = take[read-1], r.ahead[read:]
	return Page{Events: r.chunk.events, Gone: gone, Mark: r.at}, true, nil
}
