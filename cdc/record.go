package cdc

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// record loads the slot's record and holds it against the server. A slot without one is adopted.
func (s *Stream) record(ctx context.Context, db *pgx.Conn, id pglogrepl.IdentifySystemResult) (Record, error) {
	row, found, err := s.loadSlot(ctx, db)
	if err != nil {
		return Record{}, err
	}
	if !found {
		return Record{}, s.slotMissing()
	}
	rec, found, err := s.store.Load(ctx, db, s.cfg.Slot)
	if err != nil {
		return rec, s.serverError("read relay_state", err)
	}
	if found {
		return rec, s.checkRecord(row, rec, id.SystemID)
	}
	if err := s.checkAdoption(ctx, db); err != nil {
		return rec, err
	}
	rec = Record{SystemIdentifier: id.SystemID, Timeline: id.Timeline, Incarnation: 1, Phase: PhaseStreaming, Confirmed: row.confirmed}
	if err := s.store.Adopt(ctx, db, s.cfg.Slot, rec); err != nil {
		return rec, s.serverError("adopt slot", err)
	}
	if s.listener.Adopted != nil {
		s.listener.Adopted(rec.Confirmed)
	}
	return rec, nil
}

// checkAdoption refuses a slot without a record where rows are that it may not bring.
func (s *Stream) checkAdoption(ctx context.Context, db DB) error {
	if s.cfg.Backlog == BacklogSkip {
		return nil
	}
	return s.refuseRows(ctx, db, fmt.Sprintf("slot %q, made by somebody else, may not bring", s.cfg.Slot),
		"say backlog: skip to leave what the slot does not bring unpublished. To publish it, drop the slot and say backlog: publish: the relay then makes a slot of its own")
}

// checkRecord refuses a slot that does not go on where its record stands.
func (s *Stream) checkRecord(row slotRow, rec Record, systemIdentifier string) error {
	switch {
	case rec.Phase == PhaseCreating && rec.Confirmed != 0:
		return s.recoveryUnfinished()
	case rec.Phase == PhaseCreating:
		return &state.Error{State: state.SlotMissing,
			Reason: fmt.Sprintf("slot %q was not made to its end", s.cfg.Slot),
			Hint:   "relay migrate up (or relay run --ensure) drops it and makes it anew"}
	case rec.SystemIdentifier != systemIdentifier:
		return s.historyChanged(rec.SystemIdentifier, systemIdentifier)
	case row.confirmed > rec.Confirmed:
		return s.slotRecreated(row.confirmed, rec.Confirmed)
	}
	return nil
}

func (s *Stream) slotRecreated(slot, confirmed outbox.LSN) error {
	return &state.Error{State: state.SlotRecreated,
		Reason: fmt.Sprintf("slot %q stands at %s, the relay has confirmed %s: events committed between the two are not in the stream", s.cfg.Slot, slot, confirmed),
		Hint:   "somebody moved the slot, or dropped and made it anew, or a promoted standby had a newer slot than relay_state. " + hintRecover}
}
