package cdc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
)

// This file watches for rows that the stream never brings: those written while a table was not in the publication, or
// the publication did not publish inserts. Afterwards everything looks as before, and the stream does not tell. The
// catalog does: what is put back is another row there than what was taken away.

// published is how the tables are published.
type published struct {
	rows map[string]string // by which catalog rows, see publishedKey; empty: not known
	xid  uint64            // every transaction below it was over while they were published so
	oids map[uint32]int    // of the tables; index of the mapping
}

// publishedKey is the publication's own key in published.rows; the others are Table.String, which is quoted.
const publishedKey = "publication"

// readPublished is what a record holds.
func readPublished(rec Record) (published, error) {
	p := published{xid: rec.PublicationXID}
	if rec.Publication == "" {
		return p, nil
	}
	if err := json.Unmarshal([]byte(rec.Publication), &p.rows); err != nil {
		return p, fmt.Errorf("read relay_state.publication: %w", err)
	}
	return p, nil
}

// String is the form that a record holds.
func (p published) String() string {
	text, _ := json.Marshal(p.rows) // of strings
	return string(text)
}

// loadPublished reads the catalog. A table that is not published has an empty string for its row. The transaction ID
// and the rows are of one snapshot: that of the statement.
func (s *Stream) loadPublished(ctx context.Context, db DB) (published, error) {
	mappings := s.cfg.mappings()
	names := make([]string, len(mappings))
	for i, m := range mappings {
		names[i] = m.Table.String()
	}
	var pub string
	var xid int64
	var oids []int64
	var rows []string
	err := db.QueryRow(ctx, `
		select coalesce((select p.oid || '/' || p.xmin from pg_publication p where p.pubname = $1), ''),
			pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
			array_agg(coalesce(to_regclass(n.name)::oid::bigint, 0) order by n.i),
			array_agg(coalesce((
				select r.prrelid || '/' || r.oid || '/' || r.xmin
				from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
				where p.pubname = $1 and r.prrelid = to_regclass(n.name)), '') order by n.i)
		from unnest($2::text[]) with ordinality n (name, i)`, s.cfg.Publication, names).Scan(&pub, &xid, &oids, &rows)
	if err != nil {
		return published{}, s.serverError("read publication", err)
	}
	p := published{rows: map[string]string{publishedKey: pub}, xid: uint64(xid), oids: map[uint32]int{}}
	for i, name := range names {
		p.rows[name] = rows[i]
		if oids[i] != 0 {
			p.oids[uint32(oids[i])] = i
		}
	}
	return p, nil
}

// changed lists what is published by another row than before, of what is known of both.
func (p published) changed(now published) (what []string) {
	for _, name := range slices.Sorted(maps.Keys(p.rows)) {
		if row, ok := now.rows[name]; ok && row != p.rows[name] {
			what = append(what, name)
		}
	}
	return what
}

// publicationGap is the error of rows that the stream may lack although publication and tables are in order.
type publicationGap struct{ err *state.Error }

func (g *publicationGap) Error() string { return g.err.Error() }
func (g *publicationGap) Unwrap() error { return g.err }

// checkStillPublished compares how the tables are published with how they were, and says what has changed. When no row
// is there that was written since, nothing is missing and the news is all there is. The gap must not be passed over in
// any other case: what lies in it is in the tables and nowhere else.
func (s *Stream) checkStillPublished(ctx context.Context, db DB, version int, was, now published) (what []string, err error) {
	what = was.changed(now)
	if len(what) == 0 {
		return nil, nil
	}
	// What is wrong still comes first, in its own words.
	if _, err := s.checkTables(ctx, db); err != nil {
		return what, err
	}
	if err := s.checkPublication(ctx, db, version); err != nil {
		return what, err
	}
	if slices.Contains(what, publishedKey) {
		what = []string{"the publication itself"}
	}
	if some, err := s.anyRow(ctx, db, was.xid); err != nil || !some {
		return what, err
	}
	return what, &publicationGap{&state.Error{State: state.PublicationMismatch,
		Reason: fmt.Sprintf("publication %q was changed since the relay last looked (%s): rows written meanwhile may not be in the stream", s.cfg.Publication, strings.Join(what, ", ")),
		Hint: hintRecover + ". If the change left out no row, as one ALTER PUBLICATION ... SET TABLE or OWNER TO does not, " +
			"relay recover --nothing-missing goes on with the slot as it is"}}
}

// anyRow reports whether the tables hold a row of a transaction that is not below xid. 0 is every row.
func (s *Stream) anyRow(ctx context.Context, db DB, xid uint64) (bool, error) {
	tables, err := s.rowTables(ctx, db)
	if err != nil {
		return false, err
	}
	sc := scope{xid: xid, all: xid == 0}
	for _, t := range sorted(tables) {
		cond, param, err := sc.where(t)
		if err != nil {
			return false, err
		}
		var some bool
		if err := db.QueryRow(ctx, fmt.Sprintf(`select exists (select from %s t where %s)`, t.table, cond), param).Scan(&some); err != nil {
			if ctx.Err() != nil {
				return true, nil // a table too large to be read in time has not been seen to be in order
			}
			return false, s.serverError("look for rows of "+t.table.String(), err)
		}
		if some {
			return true, nil
		}
	}
	return false, nil
}

// checkRecordPublished is the check against what an earlier session, or the making of the slot, has left in the record.
func (s *Stream) checkRecordPublished(ctx context.Context, db DB, version int, rec Record) error {
	was, err := readPublished(rec)
	if err != nil {
		return err
	}
	now, err := s.loadPublished(ctx, db)
	if err != nil {
		return err
	}
	_, err = s.checkStillPublished(ctx, db, version, was, now)
	return err
}

// followPublication looks at the publication, compares, and notes what is new, for one who holds the slot.
func (s *Stream) followPublication(ctx context.Context, db DB, version int, owner string, was published) (published, error) {
	now, err := s.loadPublished(ctx, db)
	if err != nil {
		return was, err
	}
	what, err := s.checkStillPublished(ctx, db, version, was, now)
	if err != nil {
		return was, err
	}
	if len(what) > 0 && s.listener.PublicationChanged != nil {
		s.listener.PublicationChanged(what)
	}
	if maps.Equal(was.rows, now.rows) {
		return now, nil
	}
	err = s.store.NotePublication(ctx, db, s.cfg.Slot, owner, now.String(), now.xid)
	return now, s.serverError("write relay_state", err)
}

// lookAtPublication is the check while a session streams. It may run often: a query of the catalog is all it costs as
// long as nothing has changed.
func (c *control) lookAtPublication(ctx context.Context) (err error) {
	c.published, err = c.s.followPublication(ctx, c.db, c.version, c.owner, c.published)
	return err
}

// publicationChanged reports whether a session would refuse to stream because of how the tables were published
// meanwhile.
func (s *Stream) publicationChanged(ctx context.Context, db DB, version int, rec Record) (bool, error) {
	err := s.checkRecordPublished(ctx, db, version, rec)
	if errors.As(err, new(*publicationGap)) {
		return true, nil
	}
	return false, err
}

// NothingMissing is the way out of a publication that was changed without leaving out a row: the slot stays as it is,
// and nothing is published again. It is written down as a recovery of no events. actor is who vouches for it. Errors
// are those of Recover.
func (s *Stream) NothingMissing(ctx context.Context, p Plan, actor string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn.PgConn())
	sv, err := s.checkServer(ctx, conn)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, int64(ensureLock)); err != nil {
		return s.serverError("lock", err)
	}
	now, err := s.diagnose(ctx, conn, sv)
	switch {
	case err != nil:
		return err
	case now.Cause != state.PublicationMismatch:
		return fmt.Errorf("%w: slot %q has another fault: %s", ErrNothingToRecover, s.cfg.Slot, now.Cause)
	case now.Record != p.Record:
		return fmt.Errorf("%w: slot %q", ErrPlanOutdated, s.cfg.Slot)
	}
	seen, err := s.loadPublished(ctx, conn)
	if err != nil {
		return err
	}
	p.Scope = "nothing"
	rec := p.Record
	rec.Publication, rec.PublicationXID = seen.String(), seen.xid
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := s.store.Put(ctx, tx, s.cfg.Slot, rec); err != nil {
			return err
		}
		return s.audit(ctx, tx, p, rec, actor, 0)
	})
	return s.serverError("write relay_state", err)
}
