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

// server is what the relay needs to know of the server.
type server struct {
	version       int // server_version_num
	walLevel      string
	inRecovery    bool
	senderTimeout time.Duration // wal_sender_timeout, 0: off
	database      string
	role          string
	mayReplicate  bool
	types         typeMap // of the tables' columns
}

// checkServer reads the server's settings and refuses those under which no slot can work.
func (s *Stream) checkServer(ctx context.Context, db DB) (server, error) {
	sv, err := s.loadServer(ctx, db)
	if err != nil {
		return sv, err
	}
	for _, check := range []func() error{sv.checkVersion, sv.checkWALLevel, sv.checkPrimary, sv.checkReplication} {
		if err := check(); err != nil {
			return sv, err
		}
	}
	return sv, nil
}

func (s *Stream) loadServer(ctx context.Context, db DB) (server, error) {
	var sv server
	var timeoutMS int64
	err := db.QueryRow(ctx, `
		select current_setting('server_version_num')::int, current_setting('wal_level'), pg_is_in_recovery(),
			(select setting::bigint from pg_settings where name = 'wal_sender_timeout'),
			current_database()::text, current_user::text,
			(select rolreplication or rolsuper from pg_roles where rolname = current_user)`).
		Scan(&sv.version, &sv.walLevel, &sv.inRecovery, &timeoutMS, &sv.database, &sv.role, &sv.mayReplicate)
	if err != nil {
		return sv, s.serverError("read server settings", err)
	}
	sv.senderTimeout = time.Duration(timeoutMS) * time.Millisecond
	return sv, nil
}

func (sv server) checkVersion() error {
	if sv.version >= 140000 {
		return nil
	}
	return &state.Error{State: state.ConfigInvalid,
		Reason: fmt.Sprintf("the server is PostgreSQL %d", sv.version/10000),
		Hint:   "the relay needs PostgreSQL 14 or later"}
}

func (sv server) checkWALLevel() error {
	if sv.walLevel == "logical" {
		return nil
	}
	return &state.Error{State: state.ConfigInvalid,
		Reason: fmt.Sprintf("wal_level is %q", sv.walLevel),
		Hint:   "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL"}
}

func (sv server) checkPrimary() error {
	if !sv.inRecovery {
		return nil
	}
	return &state.Error{State: state.ConfigInvalid,
		Reason: "the server is a standby (pg_is_in_recovery)",
		Hint:   "point postgres.url at the primary; target_session_attrs=read-write in it does so by itself"}
}

func (sv server) checkReplication() error {
	if sv.mayReplicate {
		return nil
	}
	return &state.Error{State: state.PermissionDenied,
		Reason: fmt.Sprintf("role %q may not replicate", sv.role),
		Hint:   fmt.Sprintf("ALTER ROLE %s WITH REPLICATION;", pgx.Identifier{sv.role}.Sanitize())}
}

// slotRow is a slot as pg_replication_slots shows it.
type slotRow struct {
	plugin    string
	kind      string
	database  string
	active    bool
	activePID int32
	confirmed outbox.LSN
	restart   outbox.LSN // oldest WAL the server keeps for the slot
	retained  int64      // bytes of it
	walStatus string     // reserved, extended, unreserved, lost
}

// loadSlot reads the slot; found is false when there is none.
func (s *Stream) loadSlot(ctx context.Context, db DB) (row slotRow, found bool, err error) {
	err = db.QueryRow(ctx, `
		select coalesce(plugin, '')::text, slot_type, coalesce(database, '')::text, active, coalesce(active_pid, 0),
			confirmed_flush_lsn::text, restart_lsn::text,
			case when pg_is_in_recovery() then 0 else coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint end,
			coalesce(wal_status, '')
		from pg_replication_slots where slot_name = $1`, s.cfg.Slot).
		Scan(&row.plugin, &row.kind, &row.database, &row.active, &row.activePID, &row.confirmed, &row.restart, &row.retained, &row.walStatus)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, false, nil
	}
	if err != nil {
		return row, false, s.serverError(fmt.Sprintf("read slot %q", s.cfg.Slot), err)
	}
	return row, true, nil
}

// checkSlot refuses a slot that cannot serve.
func (s *Stream) checkSlot(row slotRow, database string) error {
	switch {
	case row.kind != "logical" || row.plugin != "pgoutput":
		return &state.Error{State: state.SlotWrongPlugin,
			Reason: fmt.Sprintf("slot %q is a %s slot with plugin %q", s.cfg.Slot, row.kind, row.plugin),
			Hint:   "the relay needs a logical slot with plugin pgoutput: choose another postgres.slot, or drop this one if nothing uses it"}
	case row.database != database:
		return &state.Error{State: state.SlotWrongPlugin,
			Reason: fmt.Sprintf("slot %q belongs to database %q, the relay is connected to %q", s.cfg.Slot, row.database, database),
			Hint:   "slot names are unique in the whole server: choose another postgres.slot, or correct the database in postgres.url"}
	case row.walStatus == "lost":
		return s.slotLost("wal_status is lost")
	}
	return nil
}

func (s *Stream) slotLost(seen string) error {
	return &state.Error{State: state.SlotLost,
		Reason: fmt.Sprintf("slot %q has lost WAL that it needs: %s", s.cfg.Slot, seen),
		Hint:   "events committed since the last confirmed position are not in the stream any more. " + hintRecover + ". Raise max_slot_wal_keep_size so that it does not happen again"}
}

func (s *Stream) slotMissing() error {
	return &state.Error{State: state.SlotMissing,
		Reason: fmt.Sprintf("replication slot %q does not exist", s.cfg.Slot),
		Hint:   "for a new relay relay migrate up makes publication and slot (so does relay run --ensure). If this relay has run before, " + hintRecover}
}

// checkPublication refuses a publication that does not bring every insert of the table, whole.
func (s *Stream) checkPublication(ctx context.Context, db DB, version int) error {
	fail := func(reason, hint string) error {
		return &state.Error{State: state.PublicationMismatch, Reason: fmt.Sprintf("publication %q ", s.cfg.Publication) + reason, Hint: hint}
	}
	pub := pgx.Identifier{s.cfg.Publication}.Sanitize()
	var all, inserts, viaRoot bool
	err := db.QueryRow(ctx, `select puballtables, pubinsert, pubviaroot from pg_publication where pubname = $1`, s.cfg.Publication).
		Scan(&all, &inserts, &viaRoot)
	if errors.Is(err, pgx.ErrNoRows) {
		return &state.Error{State: state.PublicationMissing,
			Reason: fmt.Sprintf("publication %q does not exist", s.cfg.Publication),
			Hint:   "relay migrate up makes it. If the slot is older than the publication, the slot must be made anew too: what older WAL gives does not follow a publication made later"}
	}
	if err != nil {
		return s.serverError("read publication", err)
	}
	if all {
		return fail("is FOR ALL TABLES", fmt.Sprintf("every table's rows would be sent to the relay. Make one for the outbox alone: CREATE PUBLICATION ... FOR TABLE %s WITH (publish = 'insert')", s.cfg.mappings()[0].Table))
	}
	if !inserts {
		return fail("does not publish inserts", fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert');", pub))
	}
	for _, m := range s.cfg.mappings() {
		if err := s.checkPublished(ctx, db, version, m, viaRoot, fail); err != nil {
			return err
		}
	}
	return nil
}
