package cdc

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// DB runs statements: a connection or a transaction of pgx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Phase says how far the making of a slot has come.
type Phase string

// The phases.
const (
	PhaseCreating  Phase = "creating"  // a slot is being made: one that is found in this phase is not to be trusted
	PhaseBacklog   Phase = "backlog"   // rows older than the slot go first
	PhaseStreaming Phase = "streaming" // the stream is all there is
)

// Record is what must survive of a slot: its row in outbox.relay_state.
type Record struct {
	SystemIdentifier string     // of the server that the positions are of
	Timeline         int32      // of that server, when last seen
	Incarnation      uint32     // how often the slot was made anew
	Phase            Phase      // see the constants
	Confirmed        outbox.LSN // what was promised never to be needed again
	SafeXID          uint64     // every transaction below it is confirmed or what is left of it is listed; 0: not known
	Publication      string     // by which catalog rows the tables were published when last looked at, as JSON; "": not known
	PublicationXID   uint64     // every transaction below it was over while they were published so; 0: not known
}

// Horizon relates transaction ids to the WAL: every transaction below XID that committed did so below LSN.
type Horizon struct {
	XID uint64
	LSN outbox.LSN
}

// Store keeps Records. internal/relaystate implements it on outbox.relay_state. Writes after Acquire name the
// owner and change nothing once somebody else has acquired the slot.
type Store interface {
	// Load reads the record of a slot; found is false when there is none.
	Load(ctx context.Context, db DB, slot string) (rec Record, found bool, err error)
	// Put writes the whole record of a slot that is being made, whatever stood there; no owner, so that the writes
	// of one that was there change nothing any more.
	Put(ctx context.Context, db DB, slot string, rec Record) error
	// Adopt writes the record of a slot that was found without one; a record that is there stays.
	Adopt(ctx context.Context, db DB, slot string, rec Record) error
	// Acquire makes owner the one whose writes count, notes the timeline, and returns the record as it stands.
	Acquire(ctx context.Context, db DB, slot, owner string, timeline int32) (Record, error)
	// Confirm raises the confirmed LSN, and safe_xid and publication_xid where they are not 0. It never lowers any.
	// ErrNotOwner is returned when another owner has acquired the slot.
	Confirm(ctx context.Context, db DB, slot, owner string, lsn outbox.LSN, safeXID, publicationXID uint64) error
	// NotePublication replaces what is known of how the tables are published. Errors are Confirm's.
	NotePublication(ctx context.Context, db DB, slot, owner, publication string, xid uint64) error
	// Hold makes sure that owner still has the slot, and keeps it so until the transaction db is over.
	// ErrNotOwner is returned when another owner has acquired the slot.
	Hold(ctx context.Context, db DB, slot, owner string) error
	// EndBacklog says that nothing is left of the backlog: the phase is streaming. Errors are Hold's.
	EndBacklog(ctx context.Context, db DB, slot, owner string) error
	// Horizon takes the present horizon.
	Horizon(ctx context.Context, db DB) (Horizon, error)
}

// ErrNotOwner is returned by a Store when a write finds that another relay has acquired the slot.
var ErrNotOwner = errors.New("cdc: another relay has acquired the slot")
