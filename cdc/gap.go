package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/state"
)

// hintRecover is how to get out of every state in which the stream has a gap.
const hintRecover = "relay recover makes a new slot and publishes what may be missing from the outbox table; until then keep its rows (docs/recovery.md)"

// checkHistory refuses a record that is of another server. It comes before everything that asks for the slot: in a
// restored copy the slot is usually missing too, and that is not the news.
func (s *Stream) checkHistory(ctx context.Context, db DB) error {
	rec, found, err := s.store.Load(ctx, db, s.cfg.Slot)
	if err != nil {
		return s.serverError("read relay_state", err)
	}
	if !found || rec.Confirmed == 0 { // nothing was ever confirmed, so nothing can be missing
		return nil
	}
	here, err := s.systemIdentifier(ctx, db)
	if err == nil && here != rec.SystemIdentifier {
		err = s.historyChanged(rec.SystemIdentifier, here)
	}
	return err
}

func (s *Stream) systemIdentifier(ctx context.Context, db DB) (id string, err error) {
	err = db.QueryRow(ctx, `select system_identifier::text from pg_control_system()`).Scan(&id)
	return id, s.serverError("read system identifier", err)
}

func (s *Stream) historyChanged(was, is string) error {
	return &state.Error{State: state.HistoryChanged,
		Reason: fmt.Sprintf("relay_state of slot %q is of server %s, this is server %s", s.cfg.Slot, was, is),
		Hint:   "the database was restored or upgraded into another server, whose positions mean something else. " + hintRecover}
}

func (s *Stream) recoveryUnfinished() error {
	return &state.Error{State: state.SlotMissing,
		Reason: fmt.Sprintf("a recovery of slot %q was begun and not finished", s.cfg.Slot),
		Hint:   "run relay recover again: nothing was lost, and it begins anew"}
}

// refuseRows is nil when the tables are empty. what says of their rows why they matter.
func (s *Stream) refuseRows(ctx context.Context, db DB, what, hint string) error {
	tables, err := s.rowTables(ctx, db)
	if err != nil {
		return err
	}
	c, err := s.count(ctx, db, tables, scope{all: true})
	if err != nil || c.rows == 0 {
		return err
	}
	return &state.Error{State: state.ConfigInvalid, Hint: hint,
		Reason: fmt.Sprintf("table %s holds %s that %s", s.tableNames(), c.describe("rows", time.Now()), what)}
}

func (s *Stream) tableNames() string {
	var names []string
	for _, m := range s.cfg.mappings() {
		names = append(names, m.Table.String())
	}
	return strings.Join(names, ", ")
}

// describe writes the census for people.
func (c census) describe(of string, now time.Time) string {
	if c.rows == 0 || c.oldest.IsZero() {
		return fmt.Sprintf("%d %s", c.rows, of)
	}
	return fmt.Sprintf("%d %s, the oldest %v old,", c.rows, of, max(0, now.Sub(c.oldest)).Round(time.Second))
}

// gapInterval is how often the rows of one and the same gap are counted: that may read whole tables.
const gapInterval = 5 * time.Minute

// knownGap is what was found out about a gap.
type knownGap struct {
	state  state.State
	reason string // of the state, without the gap
	text   string
	at     time.Time
}

// withGap adds to a state that means a gap in the stream what lies in it: positions, and rows that may not have been
// published.
func (s *Stream) withGap(ctx context.Context, err error) error {
	e := state.Of(err)
	if e == nil {
		return err
	}
	switch e.State {
	case state.SlotMissing, state.SlotLost, state.SlotRecreated, state.HistoryChanged:
	default:
		if !errors.As(err, new(*publicationGap)) {
			return err
		}
	}
	g := s.gap // only the goroutine of Run comes here
	if g.state != e.State || g.reason != e.Reason || time.Since(g.at) >= gapInterval {
		text, gapErr := s.describeGap(ctx)
		if gapErr != nil { // the state is the news, and the next attempt may bring the rest
			return err
		}
		g = knownGap{e.State, e.Reason, text, time.Now()}
		s.gap = g
	}
	if g.text == "" {
		return err
	}
	return &state.Error{State: e.State, Reason: e.Reason + "; " + g.text, Hint: e.Hint, Err: e.Err}
}

// describeGap is empty where this relay never confirmed anything.
func (s *Stream) describeGap(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	db, err := s.connect(ctx)
	if err != nil {
		return "", err
	}
	defer closeConn(ctx, db.PgConn())
	// The server must not go on counting for a relay that has given up.
	if _, err := db.Exec(ctx, `select set_config('statement_timeout', $1, false)`, fmt.Sprint(s.cfg.QueryTimeout.Milliseconds())); err != nil {
		return "", err
	}
	rec, found, err := s.store.Load(ctx, db, s.cfg.Slot)
	if err != nil || !found || rec.Confirmed == 0 {
		return "", err
	}
	var end string
	var timeline int32
	err = db.QueryRow(ctx, `
		select pg_current_wal_lsn()::text, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int`).Scan(&end, &timeline)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("confirmed is everything up to %s, the server's WAL now ends at %s", rec.Confirmed, end)
	if timeline != rec.Timeline {
		text += fmt.Sprintf(" on timeline %d, which was %d", timeline, rec.Timeline)
	}
	if why, err := s.invalidation(ctx, db); err != nil {
		return "", err
	} else if why != "" {
		text = fmt.Sprintf("PostgreSQL names as the cause %s; ", why) + text
	}
	here, err := s.systemIdentifier(ctx, db)
	if err != nil {
		return "", err
	}
	sc, ok, err := s.safeScope(ctx, db, rec, here)
	if err != nil {
		return "", err
	}
	if !ok {
		return text + "; how many events may be missing cannot be told from here", nil
	}
	tables, err := s.rowTables(ctx, db)
	if err != nil {
		return "", err
	}
	c, err := s.count(ctx, db, tables, sc)
	if err != nil {
		if ctx.Err() != nil {
			return text + "; the rows that may be missing could not be counted in time", nil
		}
		return "", err
	}
	return text + "; " + c.describe("events", time.Now()) + " may not have been published", nil
}

// invalidation is why the server gave the slot up, as PostgreSQL 17 and later tell.
func (s *Stream) invalidation(ctx context.Context, db DB) (why string, err error) {
	err = db.QueryRow(ctx, `select coalesce(max(to_jsonb(r) ->> 'invalidation_reason'), '') from pg_replication_slots r where slot_name = $1`, s.cfg.Slot).Scan(&why)
	return why, s.serverError("read slot", err)
}

// safeScope is what safe_xid cannot vouch for; ok is false when it says nothing about this server.
func (s *Stream) safeScope(ctx context.Context, db DB, rec Record, here string) (sc scope, ok bool, err error) {
	if rec.SafeXID == 0 || rec.SystemIdentifier != here {
		return sc, false, nil
	}
	var near bool
	err = db.QueryRow(ctx, `
		select $1::text::numeric between next - 2000000000 and next
		from (select pg_snapshot_xmax(pg_current_snapshot())::text::numeric as next) s`, fmt.Sprint(rec.SafeXID)).Scan(&near)
	if err != nil {
		return sc, false, s.serverError("read snapshot", err)
	}
	return scope{xid: rec.SafeXID}, near, nil
}
