package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// ensureLock is the advisory lock under which publications and slots are made: two relays that ensure at once
// take turns. The number is arbitrary and must not change.
const ensureLock = 0x6f7574626f78 // "outbox"

// Made says what Ensure found missing and made.
type Made struct{ Publication, Slot bool }

// Ensure makes the publication and the slot where they are missing, and writes the slot's record. What is there
// already is checked and left alone. It needs the rights to create a publication and to replicate. Errors name a
// state: see package state.
func (s *Stream) Ensure(ctx context.Context) (Made, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return Made{}, err
	}
	defer closeConn(ctx, conn.PgConn())
	sv, err := s.checkServer(ctx, conn)
	if err != nil {
		return Made{}, err
	}
	if _, err := s.checkTables(ctx, conn); err != nil {
		return Made{}, err
	}
	return s.ensure(ctx, conn, sv)
}

func (s *Stream) ensure(ctx context.Context, conn *pgx.Conn, sv server) (made Made, err error) {
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, int64(ensureLock)); err != nil {
		return made, s.serverError("lock", err)
	}
	defer conn.Exec(ctx, `select pg_advisory_unlock($1)`, int64(ensureLock))

	// The publication comes first: what WAL older than it gives does not follow a publication made later.
	if made.Publication, err = s.ensurePublication(ctx, conn, sv); err != nil {
		return made, err
	}
	row, slotFound, err := s.loadSlot(ctx, conn)
	if err != nil {
		return made, err
	}
	rec, recFound, err := s.store.Load(ctx, conn, s.cfg.Slot)
	if err != nil {
		return made, s.serverError("read relay_state", err)
	}
	half := recFound && rec.Phase == PhaseCreating
	switch {
	case half && rec.Confirmed != 0:
		return made, s.recoveryUnfinished()
	case slotFound && !half:
		return made, s.checkSlot(row, sv.database) // a record that it lacks is written by the session that adopts it
	case recFound && !half:
		return made, s.slotMissing()
	case slotFound: // left behind by somebody who died while making it
		if err := s.checkSlot(row, sv.database); err != nil && state.Of(err).State == state.SlotWrongPlugin {
			return made, err
		}
		if _, err := conn.Exec(ctx, `select pg_drop_replication_slot($1)`, s.cfg.Slot); err != nil {
			return made, s.serverError(fmt.Sprintf("drop half-made slot %q", s.cfg.Slot), err)
		}
	}
	if _, err := s.createSlot(ctx, conn, sv, Record{Incarnation: 1}, s.fillBacklog); err != nil {
		return made, err
	}
	made.Slot = true
	return made, nil
}

func (s *Stream) ensurePublication(ctx context.Context, conn *pgx.Conn, sv server) (made bool, err error) {
	err = s.checkPublication(ctx, conn, sv.version)
	if e := state.Of(err); e == nil || e.State != state.PublicationMissing {
		return false, err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`create publication %s for table %s with (publish = 'insert', publish_via_partition_root = true)`,
		pgx.Identifier{s.cfg.Publication}.Sanitize(), s.publishedTables(sv.version)))
	if err != nil {
		return false, s.serverError(fmt.Sprintf("create publication %q", s.cfg.Publication), err)
	}
	return true, s.checkPublication(ctx, conn, sv.version)
}

// createSlot makes the slot. fill is given a transaction in the very snapshot at which the slot begins: what it sees
// there the stream will not bring, and what it does not see the stream brings. It sets the phase; its commit is
// what makes the slot count. Until then the record says creating, and nobody trusts the slot.
func (s *Stream) createSlot(ctx context.Context, conn *pgx.Conn, sv server, rec Record, fill func(context.Context, DB, *Record) error) (Record, error) {
	if s.cfg.Failover && sv.version < 170000 {
		return rec, &state.Error{State: state.ConfigInvalid,
			Reason: fmt.Sprintf("postgres.failover is set and the server is PostgreSQL %d", sv.version/10000),
			Hint:   "failover slots exist from PostgreSQL 17 on; without them see the runbook for a failover in docs/recovery.md"}
	}
	repl, _, err := s.connectReplication(ctx)
	if err != nil {
		return rec, err
	}
	defer closeConn(ctx, repl)
	id, err := pglogrepl.IdentifySystem(ctx, repl)
	if err != nil {
		return rec, s.serverError("identify system", err)
	}
	if rec.Confirmed == 0 { // else the record says creating already, and what it says besides is still needed
		rec.SystemIdentifier, rec.Timeline, rec.Phase = id.SystemID, id.Timeline, PhaseCreating
		if err := s.store.Put(ctx, conn, s.cfg.Slot, rec); err != nil {
			return rec, s.serverError("write relay_state", err)
		}
	}
	made, err := s.waitForSlot(ctx, conn, repl)
	if err != nil {
		return rec, err
	}
	rec.SystemIdentifier, rec.Timeline = id.SystemID, id.Timeline
	if rec.Confirmed, err = outbox.ParseLSN(made.ConsistentPoint); err != nil {
		return rec, fmt.Errorf("create slot %q: %w", s.cfg.Slot, err)
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return rec, s.serverError("begin", err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `set transaction snapshot '`+strings.ReplaceAll(made.SnapshotName, "'", "''")+`'`); err != nil {
		return rec, s.serverError("take the slot's snapshot", err)
	}
	if err := tx.QueryRow(ctx, `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint`).Scan(&rec.SafeXID); err != nil {
		return rec, s.serverError("read the slot's snapshot", err)
	}
	pub, err := s.loadPublished(ctx, tx)
	if err != nil {
		return rec, err
	}
	rec.Publication, rec.PublicationXID = pub.String(), pub.xid
	if err := fill(ctx, tx, &rec); err != nil {
		_ = tx.Rollback(ctx)
		if _, dropErr := conn.Exec(ctx, `select pg_drop_replication_slot($1)`, s.cfg.Slot); dropErr != nil {
			return rec, errors.Join(err, s.serverError(fmt.Sprintf("drop slot %q", s.cfg.Slot), dropErr))
		}
		return rec, err
	}
	if err := s.store.Put(ctx, tx, s.cfg.Slot, rec); err != nil {
		return rec, s.serverError("write relay_state", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return rec, s.serverError("write relay_state", err)
	}
	return rec, nil
}

// fillBacklog decides what becomes of the rows that a new relay's slot does not bring.
func (s *Stream) fillBacklog(ctx context.Context, tx DB, rec *Record) error {
	rec.Phase = PhaseStreaming
	// A list of that name is a dead slot's, whose record somebody has deleted.
	if _, err := tx.Exec(ctx, `delete from outbox.backlog where slot = $1`, s.cfg.Slot); err != nil {
		return s.serverError("clear backlog", err)
	}
	switch s.cfg.Backlog {
	case BacklogSkip:
		return nil
	case BacklogPublish:
		listed, err := s.list(ctx, tx, scope{all: true})
		if listed > 0 {
			rec.Phase = PhaseBacklog
		}
		return err
	}
	return s.refuseRows(ctx, tx, "are older than the slot", "say backlog: publish to publish them before everything else, or backlog: skip to leave them unpublished")
}

// waitForSlot creates the slot. The server waits for every transaction that is older; meanwhile the state says
// which sessions it waits for.
func (s *Stream) waitForSlot(ctx context.Context, conn *pgx.Conn, repl *pgconn.PgConn) (pglogrepl.CreateReplicationSlotResult, error) {
	type result struct {
		pglogrepl.CreateReplicationSlotResult
		err error
	}
	done := make(chan result, 1)
	go func() {
		command := "CREATE_REPLICATION_SLOT " + s.cfg.Slot + " LOGICAL pgoutput EXPORT_SNAPSHOT"
		if s.cfg.Failover {
			command = "CREATE_REPLICATION_SLOT " + s.cfg.Slot + " LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER)"
		}
		r, err := pglogrepl.ParseCreateReplicationSlot(repl.Exec(ctx, command))
		done <- result{r, err}
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			if r.err != nil {
				return r.CreateReplicationSlotResult, s.serverError(fmt.Sprintf("create slot %q", s.cfg.Slot), r.err)
			}
			return r.CreateReplicationSlotResult, nil
		case <-tick.C:
			qctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
			open, more, err := blockers(qctx, conn, repl.PID())
			cancel()
			if err == nil && len(open) > 0 { // what is wrong with the connection, the next one who uses it says
				s.report(creatingStatus(s.cfg.Slot, open, more))
			}
		}
	}
}

// closeConn says goodbye if that goes quickly.
func closeConn(ctx context.Context, conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
