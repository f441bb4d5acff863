// Package relaystate reads and writes outbox.relay_state: what a relay must still know after it has died, one row
// a slot. It implements cdc.Store.
//
// Guarantee: a position is in confirmed_lsn before the server hears of it, so that a slot found ahead of its row
// proves that somebody else moved or remade it. Each write after Acquire is conditional on the owner token; a
// relay that was paused while another took over changes no row and learns so from cdc.ErrNotOwner.
package relaystate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/outbox"
)

// Store is stateless and safe for concurrent use.
type Store struct{}

var _ cdc.Store = Store{}

// Load implements cdc.Store.
func (Store) Load(ctx context.Context, db cdc.DB, slot string) (cdc.Record, bool, error) {
	rec, err := scan(db.QueryRow(ctx, `
		select system_identifier, timeline, incarnation, phase, confirmed_lsn::text, safe_xid::text::bigint,
			publication::text, publication_xid::text::bigint
		from outbox.relay_state where slot = $1`, slot))
	if errors.Is(err, pgx.ErrNoRows) {
		return cdc.Record{}, false, nil
	}
	if err != nil {
		return cdc.Record{}, false, fmt.Errorf("read relay_state of slot %q: %w", slot, err)
	}
	return rec, true, nil
}

// Put implements cdc.Store.
func (Store) Put(ctx context.Context, db cdc.DB, slot string, rec cdc.Record) error {
	_, err := db.Exec(ctx, `
		insert into outbox.relay_state as s (slot, system_identifier, timeline, incarnation, phase, confirmed_lsn, safe_xid, publication, publication_xid)
		values ($1, $2, $3, $4, $5, $6::text::pg_lsn, $7::text::xid8, $8::text::jsonb, $9::text::xid8)
		on conflict (slot) do update set
			system_identifier = excluded.system_identifier, timeline = excluded.timeline,
			incarnation = excluded.incarnation, phase = excluded.phase, confirmed_lsn = excluded.confirmed_lsn,
			safe_xid = excluded.safe_xid, publication = excluded.publication, publication_xid = excluded.publication_xid,
			owner = null, updated_at = clock_timestamp()`,
		slot, rec.SystemIdentifier, rec.Timeline, int64(rec.Incarnation), string(rec.Phase), lsnOrNull(rec.Confirmed), xidOrNull(rec.SafeXID),
		jsonOrNull(rec.Publication), xidOrNull(rec.PublicationXID))
	if err != nil {
		return fmt.Errorf("write relay_state of slot %q: %w", slot, err)
	}
	return nil
}

// Adopt implements cdc.Store.
func (Store) Adopt(ctx context.Context, db cdc.DB, slot string, rec cdc.Record) error {
	_, err := db.Exec(ctx, `
		insert into outbox.relay_state (slot, system_identifier, timeline, incarnation, phase, confirmed_lsn)
		values ($1, $2, $3, $4, $5, $6::text::pg_lsn)
		on conflict (slot) do nothing`,
		slot, rec.SystemIdentifier, rec.Timeline, int64(rec.Incarnation), string(rec.Phase), lsnOrNull(rec.Confirmed))
	if err != nil {
		return fmt.Errorf("write relay_state of slot %q: %w", slot, err)
	}
	return nil
}

// Acquire implements cdc.Store.
func (Store) Acquire(ctx context.Context, db cdc.DB, slot, owner string, timeline int32) (cdc.Record, error) {
	rec, err := scan(db.QueryRow(ctx, `
		update outbox.relay_state set owner = $2, timeline = $3, updated_at = clock_timestamp()
		where slot = $1
		returning system_identifier, timeline, incarnation, phase, confirmed_lsn::text, safe_xid::text::bigint,
			publication::text, publication_xid::text::bigint`, slot, owner, timeline))
	if err != nil {
		return cdc.Record{}, fmt.Errorf("acquire relay_state of slot %q: %w", slot, err)
	}
	return rec, nil
}

// Confirm implements cdc.Store.
func (Store) Confirm(ctx context.Context, db cdc.DB, slot, owner string, lsn outbox.LSN, safeXID, publicationXID uint64) error {
	tag, err := db.Exec(ctx, `
		update outbox.relay_state set
			confirmed_lsn = greatest(confirmed_lsn, $3::text::pg_lsn),
			safe_xid = greatest(safe_xid, $4::text::xid8),
			publication_xid = greatest(publication_xid, $5::text::xid8),
			updated_at = clock_timestamp()
		where slot = $1 and owner = $2`, slot, owner, lsn.String(), xidOrNull(safeXID), xidOrNull(publicationXID))
	if err != nil {
		return fmt.Errorf("confirm %s for slot %q: %w", lsn, slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("confirm %s for slot %q: %w", lsn, slot, cdc.ErrNotOwner)
	}
	return nil
}

// NotePublication implements cdc.Store.
func (Store) NotePublication(ctx context.Context, db cdc.DB, slot, owner, publication string, xid uint64) error {
	tag, err := db.Exec(ctx, `
		update outbox.relay_state set publication = $3::text::jsonb, publication_xid = $4::text::xid8, updated_at = clock_timestamp()
		where slot = $1 and owner = $2`, slot, owner, publication, xidOrNull(xid))
	if err != nil {
		return fmt.Errorf("write publication of slot %q: %w", slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("write publication of slot %q: %w", slot, cdc.ErrNotOwner)
	}
	return nil
}

// Hold implements cdc.Store. The lock that it takes is one that Acquire waits for.
func (Store) Hold(ctx context.Context, db cdc.DB, slot, owner string) error {
	var held bool
	err := db.QueryRow(ctx, `select true from outbox.relay_state where slot = $1 and owner = $2 for share`, slot, owner).Scan(&held)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("hold slot %q: %w", slot, cdc.ErrNotOwner)
	case err != nil:
		return fmt.Errorf("hold slot %q: %w", slot, err)
	}
	return nil
}

// EndBacklog implements cdc.Store.
func (Store) EndBacklog(ctx context.Context, db cdc.DB, slot, owner string) error {
	tag, err := db.Exec(ctx, `
		update outbox.relay_state set phase = 'streaming', updated_at = clock_timestamp()
		where slot = $1 and owner = $2 and phase = 'backlog'`, slot, owner)
	if err != nil {
		return fmt.Errorf("end backlog of slot %q: %w", slot, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("end backlog of slot %q: %w", slot, cdc.ErrNotOwner)
	}
	return nil
}

// Horizon implements cdc.Store. The order of the two statements is what makes it true: a transaction below the
// snapshot's xmin has written its commit record before the snapshot was taken, so before the WAL position that is
// read afterwards.
func (Store) Horizon(ctx context.Context, db cdc.DB) (h cdc.Horizon, err error) {
	if err := db.QueryRow(ctx, `select pg_snapshot_xmin(pg_current_snapshot())::text::bigint`).Scan(&h.XID); err != nil {
		return h, fmt.Errorf("read snapshot: %w", err)
	}
	if err := db.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&h.LSN); err != nil {
		return h, fmt.Errorf("read WAL position: %w", err)
	}
	return h, nil
}

func scan(row pgx.Row) (rec cdc.Record, err error) {
	var incarnation int64
	var phase string
	var safe, publicationXID *int64
	var publication *string
	err = row.Scan(&rec.SystemIdentifier, &rec.Timeline, &incarnation, &phase, &rec.Confirmed, &safe, &publication, &publicationXID)
	rec.Incarnation, rec.Phase = uint32(incarnation), cdc.Phase(phase)
	if safe != nil {
		rec.SafeXID = uint64(*safe)
	}
	if publication != nil {
		rec.Publication = *publication
	}
	if publicationXID != nil {
		rec.PublicationXID = uint64(*publicationXID)
	}
	return rec, err
}

func lsnOrNull(l outbox.LSN) any {
	if l == 0 {
		return nil
	}
	return l.String()
}

func xidOrNull(x uint64) any {
	if x == 0 {
		return nil
	}
	return fmt.Sprint(x)
}

func jsonOrNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
