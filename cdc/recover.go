package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// Errors of PlanRecovery and Recover; what they wrap has the names.
var (
	// ErrSlotInUse is returned when a relay streams from the slot.
	ErrSlotInUse = errors.New("cdc: slot is in use")
	// ErrNothingToRecover is returned when the slot is sound, or has never been streamed from.
	ErrNothingToRecover = errors.New("cdc: nothing to recover")
	// ErrScopeNeeded is returned when nothing tells which rows may be missing, so that the caller must.
	ErrScopeNeeded = errors.New("cdc: scope of the recovery is needed")
	// ErrPlanOutdated is returned when the relay's state is not any more what the plan was made of.
	ErrPlanOutdated = errors.New("cdc: plan is out of date")
)

// Scope says which rows a recovery publishes again. The zero value is the rows of every transaction that
// relay_state.safe_xid does not vouch for: none that is missing, and few that are not.
type Scope struct {
	Since time.Time // rows whose event's time is not before it
	All   bool      // every row
}

// Plan is what a recovery would do.
type Plan struct {
	Cause    state.State // what makes it necessary
	Record   Record      // what relay_state holds
	SlotLSN  outbox.LSN  // where the slot stands; 0: there is none
	SystemID string      // of this server

	Scope          string      // in words
	Listed         int64       // events that are left of an earlier list, and go first
	Events         int64       // events that the scope takes in
	Oldest, Newest time.Time   // of these; zero: there are none, or the tables do not know
	Types          []TypeCount // of these, most frequent first; at most 20

	scope scope
}

// TypeCount is a number of events of one aggregate type.
type TypeCount struct {
	AggregateType string // of a table that has no such column: the table
	Events        int64
}

// Recovered is what a recovery has done.
type Recovered struct {
	Events      int64      // in the list, in all
	Incarnation uint32     // from now on
	From        outbox.LSN // where the new slot begins
}

// PlanRecovery finds out why a recovery is needed and what it would publish again. It changes nothing. Errors are
// the ones above, or name a state.
func (s *Stream) PlanRecovery(ctx context.Context, want Scope) (Plan, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return Plan{}, err
	}
	defer closeConn(ctx, conn.PgConn())
	sv, err := s.checkServer(ctx, conn)
	if err != nil {
		return Plan{}, err
	}
	p, err := s.diagnose(ctx, conn, sv)
	if err != nil {
		return p, err
	}
	switch {
	case want.All:
		p.scope = scope{all: true}
	case !want.Since.IsZero():
		p.scope = scope{since: want.Since}
	default:
		sc, ok, err := s.safeScope(ctx, conn, p.Record, p.SystemID)
		if err != nil {
			return p, err
		}
		if !ok {
			return p, fmt.Errorf("%w: relay_state of slot %q does not tell which transactions of this server are published (%s)", ErrScopeNeeded, s.cfg.Slot, p.Cause)
		}
		p.scope = sc
	}
	p.Scope = p.scope.String()
	return p, s.survey(ctx, conn, &p)
}

// diagnose says what is wrong, or that nothing is.
func (s *Stream) diagnose(ctx context.Context, conn *pgx.Conn, sv server) (p Plan, err error) {
	rec, found, err := s.store.Load(ctx, conn, s.cfg.Slot)
	switch {
	case err != nil:
		return p, s.serverError("read relay_state", err)
	case !found || rec.Confirmed == 0:
		return p, fmt.Errorf("%w: no relay has ever streamed from slot %q of this database", ErrNothingToRecover, s.cfg.Slot)
	}
	p.Record = rec
	if p.SystemID, err = s.systemIdentifier(ctx, conn); err != nil {
		return p, err
	}
	row, found, err := s.loadSlot(ctx, conn)
	if err != nil {
		return p, err
	}
	p.SlotLSN = row.confirmed
	if found {
		if row.active {
			return p, fmt.Errorf("%w: backend %d streams from slot %q", ErrSlotInUse, row.activePID, s.cfg.Slot)
		}
		if err := s.checkSlot(row, sv.database); err != nil && state.Of(err).State == state.SlotWrongPlugin {
			return p, err // somebody else's: nothing here may drop it
		}
	}
	switch {
	case p.SystemID != rec.SystemIdentifier:
		p.Cause = state.HistoryChanged
	case !found || rec.Phase == PhaseCreating:
		p.Cause = state.SlotMissing
	case row.walStatus == "lost":
		p.Cause = state.SlotLost
	case row.confirmed > rec.Confirmed:
		p.Cause = state.SlotRecreated
	default:
		changed, err := s.publicationChanged(ctx, conn, sv.version, rec)
		if err != nil {
			return p, err
		}
		if changed {
			p.Cause = state.PublicationMismatch
			return p, nil
		}
		return p, fmt.Errorf("%w: slot %q is sound: it stands at %s, and relay_state at %s", ErrNothingToRecover, s.cfg.Slot, row.confirmed, rec.Confirmed)
	}
	return p, nil
}

// survey counts what the scope takes in.
func (s *Stream) survey(ctx context.Context, conn *pgx.Conn, p *Plan) error {
	tables, err := s.rowTables(ctx, conn)
	if err != nil {
		return err
	}
	c, err := s.count(ctx, conn, tables, p.scope)
	if err != nil {
		return err
	}
	p.Events, p.Oldest, p.Newest = c.rows, c.oldest, c.newest
	if p.Types, err = s.countTypes(ctx, conn, tables, p.scope); err != nil {
		return err
	}
	err = conn.QueryRow(ctx, `select count(*) from outbox.backlog where slot = $1`, s.cfg.Slot).Scan(&p.Listed)
	return s.serverError("count backlog", err)
}

// Recover carries out a plan: it makes the slot anew, and lists in its very snapshot what the plan's scope takes in,
// before what is left of an earlier list. Whatever it breaks off at, running PlanRecovery and it again gives the
// same result. actor is who asked for it. Errors are the ones above, or name a state.
func (s *Stream) Recover(ctx context.Context, p Plan, actor string) (done Recovered, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return done, err
	}
	defer closeConn(ctx, conn.PgConn())
	sv, err := s.checkServer(ctx, conn)
	if err != nil {
		return done, err
	}
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, int64(ensureLock)); err != nil {
		return done, s.serverError("lock", err)
	}
	now, err := s.diagnose(ctx, conn, sv)
	if err != nil {
		return done, err
	}
	if now.Cause != p.Cause || now.Record != p.Record || now.SlotLSN != p.SlotLSN || now.SystemID != p.SystemID {
		return done, fmt.Errorf("%w: slot %q", ErrPlanOutdated, s.cfg.Slot)
	}
	if _, err := s.ensurePublication(ctx, conn, sv); err != nil {
		return done, err
	}
	// From here on no relay trusts the slot, and one that still holds the owner token cannot write. Everything that
	// a second try needs to know stays as it is.
	begun := p.Record
	begun.Phase = PhaseCreating
	if err := s.store.Put(ctx, conn, s.cfg.Slot, begun); err != nil {
		return done, s.serverError("write relay_state", err)
	}
	if p.SlotLSN != 0 {
		if _, err := conn.Exec(ctx, `select pg_drop_replication_slot($1)`, s.cfg.Slot); err != nil {
			return done, s.serverError(fmt.Sprintf("drop slot %q", s.cfg.Slot), err)
		}
	}
	made, err := s.createSlot(ctx, conn, sv, begun, func(ctx context.Context, tx DB, rec *Record) (err error) {
		if done.Events, err = s.list(ctx, tx, p.scope); err != nil {
			return err
		}
		rec.Incarnation, rec.Phase = p.Record.Incarnation+1, PhaseStreaming
		if done.Events > 0 {
			rec.Phase = PhaseBacklog
		}
		return s.audit(ctx, tx, p, *rec, actor, done.Events)
	})
	done.Incarnation, done.From = made.Incarnation, made.Confirmed
	return done, err
}

// audit writes down who did what.
func (s *Stream) audit(ctx context.Context, tx DB, p Plan, to Record, actor string, events int64) error {
	_, err := tx.Exec(ctx, `
		insert into outbox.recoveries (slot, actor, cause, scope, events, from_system_identifier, from_incarnation, from_lsn,
			to_system_identifier, to_incarnation, to_lsn)
		values ($1, $2, $3, $4, $5, $6, $7, $8::text::pg_lsn, $9, $10, $11::text::pg_lsn)`,
		s.cfg.Slot, actor, string(p.Cause), p.Scope, events, p.Record.SystemIdentifier, int64(p.Record.Incarnation), p.Record.Confirmed.String(),
		to.SystemIdentifier, int64(to.Incarnation), to.Confirmed.String())
	return s.serverError("write outbox.recoveries", err)
}
