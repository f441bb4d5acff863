package cdc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// Examination looks at what a session depends on, with a session's own checks, and takes nothing: the slot, the owner
// token and every row stay as they are. Its connection is read only, and the server ends each statement after
// Config.QueryTimeout. It is for one goroutine.
type Examination struct {
	s  *Stream
	db *pgx.Conn
	sv server
}

// Examine connects. Errors of it and of the Examination's methods name a state where they mean one: see package state.
func (s *Stream) Examine(ctx context.Context) (*Examination, error) {
	cfg, err := s.connSettings()
	if err != nil {
		return nil, err
	}
	// The setting is shown as the role has it, and does not matter to who writes nothing.
	delete(cfg.RuntimeParams, "synchronous_commit")
	cfg.RuntimeParams["default_transaction_read_only"] = "on"
	cfg.RuntimeParams["statement_timeout"] = fmt.Sprint(s.cfg.QueryTimeout.Milliseconds())
	cfg.RuntimeParams["application_name"] = "relay " + s.cfg.Slot + " doctor"
	db, err := s.dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Examination{s: s, db: db}, nil
}

// Close closes the connection.
func (x *Examination) Close(ctx context.Context) { closeConn(ctx, x.db.PgConn()) }

// DB is the connection, for what else there is to look at.
func (x *Examination) DB() DB { return x.db }

// Server is what a server says of itself and of the role.
type Server struct {
	Version       int           // server_version_num
	SenderTimeout time.Duration // wal_sender_timeout, 0: off
	Database      string
	Role          string

	// What a session refuses; nil: it is as it must be.
	VersionError, WALLevelError, PrimaryError, ReplicationError error
}

// Server reads the server's settings.
func (x *Examination) Server(ctx context.Context) (Server, error) {
	sv, err := x.s.loadServer(ctx, x.db)
	if err != nil {
		return Server{}, err
	}
	x.sv = sv
	return Server{
		Version: sv.version, SenderTimeout: sv.senderTimeout, Database: sv.database, Role: sv.role,
		VersionError: sv.checkVersion(), WALLevelError: sv.checkWALLevel(), PrimaryError: sv.checkPrimary(), ReplicationError: sv.checkReplication(),
	}, nil
}

// IdentifySystem opens a replication connection, asks who the server is, and closes it: proof that the role, pg_hba.conf
// and what stands between let replication through. It takes a walsender for that moment and no slot.
func (x *Examination) IdentifySystem(ctx context.Context) (systemIdentifier string, timeline int32, err error) {
	repl, _, err := x.s.connectReplication(ctx)
	if err != nil {
		return "", 0, err
	}
	defer closeConn(ctx, repl)
	id, err := pglogrepl.IdentifySystem(ctx, repl)
	return id.SystemID, id.Timeline, x.s.serverError("identify system", err)
}

// Tables returns the mapped tables.
func (x *Examination) Tables() []Mapping { return slices.Clone(x.s.cfg.mappings()) }

// MappedTable is a table as the catalog has it, as far as its mapping is concerned.
type MappedTable struct {
	Table   Table
	Columns []string          // that are read and exist
	Missing []string          // that are read, do not exist, and need not
	Xact    string            // column with the transaction's ID, which tells what may be missing after a gap; empty: none
	Fields  map[Field]string  // column of each field
	Types   map[string]string // of each column of Columns
}

// Table looks at a mapped table. The error is that of a table which cannot make events.
func (x *Examination) Table(ctx context.Context, m Mapping) (MappedTable, error) {
	t := MappedTable{Table: m.Table, Fields: map[Field]string{}, Types: map[string]string{}}
	have, err := x.s.loadColumns(ctx, x.db, m.Table)
	if err != nil {
		return t, err
	}
	for _, name := range m.names() {
		if c, ok := have[name]; ok {
			t.Columns, t.Types[name] = append(t.Columns, name), c.typ
		} else {
			t.Missing = append(t.Missing, name)
		}
	}
	for _, spec := range m.columns() {
		if _, ok := have[spec.name]; ok {
			t.Fields[spec.field] = spec.name
		}
	}
	if have["xact_id"].typ == "xid8" {
		t.Xact = "xact_id"
	}
	return t, m.check(have)
}

// Publication returns the error of a publication that does not bring every insert of the tables, whole. Server must have
// been called.
func (x *Examination) Publication(ctx context.Context) error {
	return x.s.checkPublication(ctx, x.db, x.sv.version)
}

// Standing is a slot and its record.
type Standing struct {
	SlotFound   bool
	Active      bool
	PID         int32 // of the walsender
	Confirmed   outbox.LSN
	Retained    int64  // bytes of WAL that the server keeps for it
	WALStatus   string // reserved, extended, unreserved, lost
	RecordFound bool
	Record      Record
}

// Standing holds the slot against its record, as a session does before it streams. The error is what a session would
// refuse, with what lies in the gap where there is one. Server must have been called.
func (x *Examination) Standing(ctx context.Context) (st Standing, err error) {
	s := x.s
	// The slot first, as in acquire: a relay that confirms in between must not look like a slot that was moved.
	row, found, err := s.loadSlot(ctx, x.db)
	if err != nil {
		return st, err
	}
	st = Standing{SlotFound: found, Active: row.active, PID: row.activePID, Confirmed: row.confirmed, Retained: row.retained, WALStatus: row.walStatus}
	if st.Record, st.RecordFound, err = s.store.Load(ctx, x.db, s.cfg.Slot); err != nil {
		return st, s.serverError("read relay_state", err)
	}
	if err := s.checkHistory(ctx, x.db); err != nil {
		return st, s.withGap(ctx, err)
	}
	if !found {
		if st.RecordFound && st.Record.Phase == PhaseCreating && st.Record.Confirmed != 0 {
			return st, s.withGap(ctx, s.recoveryUnfinished())
		}
		return st, s.withGap(ctx, s.slotMissing())
	}
	if err := s.checkSlot(row, x.sv.database); err != nil {
		return st, s.withGap(ctx, err)
	}
	if !st.RecordFound {
		return st, s.checkAdoption(ctx, x.db)
	}
	return st, s.withGap(ctx, s.checkRecord(row, st.Record, st.Record.SystemIdentifier))
}

// Backlog returns the error of rows that a slot made now would not bring, while nothing says what becomes of them.
func (x *Examination) Backlog(ctx context.Context) error {
	if x.s.cfg.Backlog != BacklogRefuse {
		return nil
	}
	return x.s.refuseRows(ctx, x.db, "are older than the slot to be made", "say backlog: publish to publish them before everything else, or backlog: skip to leave them unpublished")
}

// Distinct returns events that have only those of their parts which the names stand for, fields or further columns, and
// their topic column: one for each combination that is found in from, at most a number of them. from is the table as
// it stands in a FROM clause.
func (x *Examination) Distinct(ctx context.Context, m Mapping, t MappedTable, names []string, from string, most int) ([]outbox.Committed, error) {
	var columns []string
	var fill []func(*outbox.Committed, []byte)
	add := func(column string, f func(*outbox.Committed, []byte)) {
		columns, fill = append(columns, pgx.Identifier{column}.Sanitize()+"::text"), append(fill, f)
	}
	if c, ok := t.Fields[FieldTopic]; ok {
		add(c, FieldTopic.set)
	}
	for _, name := range names {
		if f := fieldNamed(name); f != fieldNone {
			if c, ok := t.Fields[f]; ok {
				add(c, f.set)
			}
		} else if i := slices.Index(m.Extra, name); i >= 0 && t.Types[name] != "" {
			add(name, func(e *outbox.Committed, v []byte) { e.Extra[i] = outbox.Extra{Value: v, Kind: outbox.KindText} })
		}
	}
	if len(columns) == 0 {
		columns = []string{"null::text"}
		fill = append(fill, func(*outbox.Committed, []byte) {})
	}
	rows, err := x.db.Query(ctx, fmt.Sprintf(`select distinct %s from %s limit %d`, strings.Join(columns, ", "), from, most))
	if err != nil {
		return nil, x.s.serverError("read table "+m.Table.String(), err)
	}
	defer rows.Close()
	var events []outbox.Committed
	for rows.Next() {
		values := make([]*string, len(columns))
		to := make([]any, len(columns))
		for i := range values {
			to[i] = &values[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, x.s.serverError("read table "+m.Table.String(), err)
		}
		e := outbox.Committed{Route: m.Route, Extra: make([]outbox.Extra, len(m.Extra))}
		for i, v := range values {
			if v != nil {
				fill[i](&e, []byte(*v))
			}
		}
		events = append(events, e)
	}
	return events, x.s.serverError("read table "+m.Table.String(), rows.Err())
}

// fieldNamed finds a field that routes may use.
func fieldNamed(name string) Field {
	switch name {
	case "aggregate_type":
		return FieldAggregateType
	case "aggregate_id":
		return FieldAggregateID
	case "event_type":
		return FieldEventType
	case "event_key":
		return FieldEventKey
	case "tenant":
		return FieldTenant
	}
	return fieldNone
}
