package cdc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// Archive is the rows of the outbox tables as a source of events that were published: those whose transactions
// relay_state.safe_xid vouches for, less what outbox.backlog lists and what a dead letter waits for. It has a connection
// of its own, takes no lock that a writer would wait for, and each of its statements is a transaction by itself. It is
// for one goroutine.
type Archive struct {
	s      *Stream
	db     *pgx.Conn
	tables map[string]*rowTable
}

// ErrNotVouched is returned when nothing tells which rows are published.
var ErrNotVouched = errors.New("cdc: it is not known which rows are published")

// ErrTooSlow is returned when reading the tables took longer than a statement may.
var ErrTooSlow = errors.New("cdc: reading the table took too long")

// archiveTimeout bounds a statement that may read a whole table. It is how long vacuum may have to wait for it.
const archiveTimeout = 10 * time.Minute

// OpenArchive connects. Errors of it and of the methods name a state where they mean one.
func (s *Stream) OpenArchive(ctx context.Context) (*Archive, error) {
	cfg, err := s.connSettings()
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["statement_timeout"] = fmt.Sprint(archiveTimeout.Milliseconds())
	cfg.RuntimeParams["lock_timeout"] = fmt.Sprint(s.cfg.QueryTimeout.Milliseconds())
	cfg.RuntimeParams["application_name"] = "relay " + s.cfg.Slot + " archive"
	db, err := s.dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	a := &Archive{s: s, db: db}
	if a.tables, err = s.rowTables(ctx, db); err != nil {
		a.Close(ctx)
		return nil, err
	}
	return a, nil
}

// Close closes the connection.
func (a *Archive) Close(ctx context.Context) { closeConn(ctx, a.db.PgConn()) }

// SafeXID is the transaction ID below which everything is published. ErrNotVouched is returned where there is none.
func (a *Archive) SafeXID(ctx context.Context) (uint64, error) {
	rec, found, err := a.s.store.Load(ctx, a.db, a.s.cfg.Slot)
	if err != nil {
		return 0, a.fail("read relay_state", err)
	}
	if !found {
		return 0, fmt.Errorf("%w: no relay has ever streamed from slot %q", ErrNotVouched, a.s.cfg.Slot)
	}
	here, err := a.s.systemIdentifier(ctx, a.db)
	if err != nil {
		return 0, err
	}
	if rec.Phase == PhaseCreating {
		return 0, fmt.Errorf("%w: slot %q is being made", ErrNotVouched, a.s.cfg.Slot)
	}
	sc, ok, err := a.s.safeScope(ctx, a.db, rec, here)
	switch {
	case err != nil:
		return 0, err
	case rec.SystemIdentifier != here:
		return 0, fmt.Errorf("%w: relay_state of slot %q is of server %s, this is server %s", ErrNotVouched, a.s.cfg.Slot, rec.SystemIdentifier, here)
	case !ok:
		return 0, fmt.Errorf("%w: safe_xid of slot %q in relay_state is not set, or too old; it is written while the relay streams", ErrNotVouched, a.s.cfg.Slot)
	}
	return sc.xid, nil
}

// published is the condition that a row was published and that nothing else is going to publish it.
func (a *Archive) published(t *rowTable, below uint64, p *params) string {
	slot, source := p.add(a.s.cfg.Slot), p.add(t.table.String())
	return fmt.Sprintf(`%s
		and not exists (select from outbox.backlog b where b.slot = %s::text and b.source_table = %s::text and b.event_id = t.%s::text)
		and not exists (select from outbox.dead_letters l where l.slot = %[2]s::text and l.source_table = %[3]s::text
			and l.event_id = %[5]s::text || t.%[4]s::text and l.state in ('parked', 'held', 'requeued'))`,
		t.vouched(below, p), slot, source, t.id, p.add(t.prefix))
}

// Kind is a number of events that have what routes look at in common.
type Kind struct {
	Table         string
	AggregateType string // empty: the table has no such column
	EventType     string // the same
	Events        int64
}

// Selection is what criteria select.
type Selection struct {
	Events, Bytes  int64     // Bytes are of the values
	Oldest, Newest time.Time // zero: there are none, or the tables do not know
	Kinds          []Kind    // most frequent first; at most 20 a table
	First, Last    []outbox.Committed

	Withheld int64 // where Events is 0: events that the criteria select, and that are not published yet or wait as dead letters
}

// Survey counts what the criteria select among the rows of transactions below below, and reads the first and the last
// few. It returns a *CriteriaError where they cannot be applied.
func (a *Archive) Survey(ctx context.Context, c Criteria, below uint64, samples int) (sel Selection, err error) {
	tables, err := c.tablesOf(a.tables)
	if err != nil {
		return sel, err
	}
	for _, t := range tables {
		if err := a.count(ctx, t, &c, below, &sel); err != nil {
			return sel, err
		}
	}
	if sel.Events == 0 {
		return sel, a.countWithheld(ctx, tables, &c, below, &sel)
	}
	for _, t := range tables {
		if len(sel.First) < samples {
			found, err := a.sample(ctx, t, &c, below, samples-len(sel.First), false)
			if err != nil {
				return sel, err
			}
			sel.First = append(sel.First, found...)
		}
	}
	for _, t := range slices.Backward(tables) {
		if len(sel.Last) < samples {
			found, err := a.sample(ctx, t, &c, below, samples-len(sel.Last), true)
			if err != nil {
				return sel, err
			}
			sel.Last = append(found, sel.Last...)
		}
	}
	return sel, nil
}

func (a *Archive) count(ctx context.Context, t *rowTable, c *Criteria, below uint64, sel *Selection) error {
	var p params
	column := func(f Field) string {
		if t.fields[f] == "" {
			return "''"
		}
		return "coalesce(t." + t.fields[f] + "::text, '')"
	}
	sizes := []string{"0"}
	for _, f := range []Field{FieldPayload, FieldPayloadBytes} {
		if name := t.fields[f]; name != "" && t.bytea(name) {
			sizes = append(sizes, "coalesce(octet_length(t."+name+"), 0)")
		} else if name != "" {
			sizes = append(sizes, "coalesce(octet_length(t."+name+"::text), 0)")
		}
	}
	rows, err := a.db.Query(ctx, fmt.Sprintf(`
		select kind, type, count(*), coalesce(sum(size), 0)::bigint, min(at) filter (where isfinite(at)), max(at) filter (where isfinite(at))
		from (select %s as kind, %s as type, %s as size, %s as at from %s t where %s and %s) r group by kind, type order by 3 desc, 1, 2`,
		column(FieldAggregateType), column(FieldEventType), strings.Join(sizes, " + "), t.order(), t.table,
		c.where(t, below, &p), a.published(t, below, &p)), p...)
	if err != nil {
		return a.fail("count rows of "+t.table.String(), err)
	}
	k := Kind{Table: t.table.String()}
	var size int64
	var oldest, newest *time.Time
	shown := 0
	_, err = pgx.ForEachRow(rows, []any{&k.AggregateType, &k.EventType, &k.Events, &size, &oldest, &newest}, func() error {
		part := census{rows: k.Events}
		if oldest != nil && newest != nil {
			part.oldest, part.newest = *oldest, *newest
		}
		all := census{sel.Events, sel.Oldest, sel.Newest}
		all.add(part)
		sel.Events, sel.Oldest, sel.Newest, sel.Bytes = all.rows, all.oldest, all.newest, sel.Bytes+size
		if shown++; shown <= 20 {
			sel.Kinds = append(sel.Kinds, k)
		}
		return nil
	})
	return a.fail("count rows of "+t.table.String(), err)
}

func (a *Archive) countWithheld(ctx context.Context, tables []*rowTable, c *Criteria, below uint64, sel *Selection) error {
	for _, t := range tables {
		var p params
		var n int64
		if err := a.db.QueryRow(ctx, fmt.Sprintf(`select count(*) from %s t where %s`, t.table, c.where(t, below, &p)), p...).Scan(&n); err != nil {
			return a.fail("count rows of "+t.table.String(), err)
		}
		sel.Withheld += n
	}
	return nil
}

// bytea reports whether a quoted column is of type bytea.
func (t *rowTable) bytea(quoted string) bool {
	i := slices.Index(t.columns, quoted)
	return i >= 0 && t.layout.columns[i].oid == oidBytea
}

// sample reads the first events, or the last ones.
func (a *Archive) sample(ctx context.Context, t *rowTable, c *Criteria, below uint64, most int, last bool) ([]outbox.Committed, error) {
	marks, err := a.marks(ctx, t, c, below, Mark{}, most, last)
	if err != nil {
		return nil, err
	}
	if last {
		slices.Reverse(marks)
	}
	ids := make([]string, len(marks))
	for i, m := range marks {
		ids[i] = m.ID
	}
	into := newChunk()
	err = t.fetch(ctx, a.db.PgConn(), ids, func(_ int, tuple []byte) (bool, error) {
		if tuple == nil || !into.fits(len(tuple)) {
			return true, nil
		}
		return true, into.add(t.layout, insert{columns: len(t.columns), tuple: tuple}, outbox.Position{})
	})
	return into.events, a.fail("read rows of "+t.table.String(), err)
}

// Mark is a place in the order in which events are replayed: everything up to it is done. The zero value is the
// beginning.
type Mark struct {
	Table string `json:"table,omitempty"`
	Order string `json:"order,omitempty"` // transaction ID or time, as text
	ID    string `json:"id,omitempty"`    // as it stands in the table
}

// replayOrder is by what the rows of a table are replayed, and its type: the transaction's ID where it is kept, else
// the event's time, else what xmin tells of the transaction.
func (t *rowTable) replayOrder(below uint64, p *params) (expr, typ string) {
	switch {
	case t.xact:
		return "t.xact_id", "xid8"
	case t.at != "":
		return "coalesce(" + t.order() + ", '-infinity'::timestamptz)", "timestamptz"
	}
	return t.xid(below, p), "bigint"
}

// marks returns the places of the next rows behind after, or of the last ones, from the end.
func (a *Archive) marks(ctx context.Context, t *rowTable, c *Criteria, below uint64, after Mark, most int, last bool) ([]Mark, error) {
	var p params
	order, typ := t.replayOrder(below, &p)
	direction, behind := "asc", "true"
	if last {
		direction = "desc"
	}
	if after.Table != "" {
		behind = fmt.Sprintf("(r.at, r.id) > (%s::text::%s, %s::text::%s)", p.add(after.Order), typ, p.add(after.ID), t.idType)
	}
	// With r., for without it the order is that of the texts, which have the same names.
	rows, err := a.db.Query(ctx, fmt.Sprintf(`
		select r.at::text, r.id::text from (select %[1]s as at, t.%[2]s as id from %[3]s t where %[4]s and %[5]s) r
		where %[6]s order by r.at %[7]s, r.id %[7]s limit %[8]d`,
		order, t.id, t.table, c.where(t, below, &p), a.published(t, below, &p), behind, direction, most), p...)
	if err != nil {
		return nil, a.fail("read rows of "+t.table.String(), err)
	}
	m := Mark{Table: t.table.String()}
	var out []Mark
	_, err = pgx.ForEachRow(rows, []any{&m.Order, &m.ID}, func() error {
		out = append(out, m)
		return nil
	})
	return out, a.fail("read rows of "+t.table.String(), err)
}

func (a *Archive) fail(doing string, err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" {
		return fmt.Errorf("%w: %s (%s)", ErrTooSlow, doing, pg.Message)
	}
	return a.s.serverError(doing, err)
}
