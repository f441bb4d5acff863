package cdc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// scope says which rows of the outbox tables are meant. Exactly one of its fields is set.
type scope struct {
	xid   uint64    // of transactions not below it
	since time.Time // whose event's time is not before it
	all   bool
}

func (sc scope) String() string {
	switch {
	case sc.all:
		return "all"
	case sc.xid != 0:
		return fmt.Sprintf("xact_id >= %d", sc.xid)
	}
	return "occurred_at >= " + sc.since.UTC().Format(time.RFC3339Nano)
}

// where is the scope as a condition on a row t of the table, with its one parameter, a text, as $1.
func (sc scope) where(t *rowTable) (cond, param string, err error) {
	switch {
	case sc.all:
		return "$1::text is not null", "all", nil
	case sc.xid != 0 && t.xact:
		return "t.xact_id >= $1::text::xid8", fmt.Sprint(sc.xid), nil
	case sc.xid != 0:
		// The row's own xmin. An update raises it, which takes in more rows, never fewer.
		return "age(t.xmin) <= age($1::text::xid8::xid)", fmt.Sprint(sc.xid), nil
	case t.at == "":
		return "", "", &state.Error{State: state.ConfigInvalid,
			Reason: fmt.Sprintf("table %s has no column with the event's time", t.table), Hint: "take all rows instead"}
	}
	return "t." + t.at + " >= $1::text::timestamptz", sc.since.UTC().Format(time.RFC3339Nano), nil
}

// census counts events.
type census struct {
	rows           int64
	oldest, newest time.Time // zero: there are none, or the table does not know
}

func (c *census) add(d census) {
	c.rows += d.rows
	if !d.oldest.IsZero() && (c.oldest.IsZero() || d.oldest.Before(c.oldest)) {
		c.oldest = d.oldest
	}
	if d.newest.After(c.newest) {
		c.newest = d.newest
	}
}

// count counts the rows of a scope.
func (s *Stream) count(ctx context.Context, db DB, tables map[string]*rowTable, sc scope) (total census, err error) {
	for _, t := range tables {
		cond, param, err := sc.where(t)
		if err != nil {
			return total, err
		}
		var c census
		var oldest, newest *time.Time
		// A time outside of what Go's own can hold, infinity included, is no help to anybody.
		err = db.QueryRow(ctx, fmt.Sprintf(`
			select count(*), min(at) filter (where isfinite(at)), max(at) filter (where isfinite(at))
			from (select %s as at from %s t where %s) r`, t.order(), t.table, cond), param).Scan(&c.rows, &oldest, &newest)
		if err != nil {
			return total, s.serverError("count rows of "+t.table.String(), err)
		}
		if oldest != nil && newest != nil {
			c.oldest, c.newest = *oldest, *newest
		}
		total.add(c)
	}
	return total, nil
}

// countTypes counts the rows of a scope by aggregate type: the most frequent ones.
func (s *Stream) countTypes(ctx context.Context, db DB, tables map[string]*rowTable, sc scope) (all []TypeCount, err error) {
	const most = 20
	for _, t := range sorted(tables) {
		cond, param, err := sc.where(t)
		if err != nil {
			return nil, err
		}
		kind := "$2"
		if t.kind != "" {
			kind = "coalesce(t." + t.kind + "::text, $2)"
		}
		rows, err := db.Query(ctx, fmt.Sprintf(`select %s::text, count(*) from %s t where %s group by 1 order by 2 desc, 1 limit %d`,
			kind, t.table, cond, most), param, t.table.String())
		if err != nil {
			return nil, s.serverError("count rows of "+t.table.String(), err)
		}
		counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[TypeCount])
		if err != nil {
			return nil, s.serverError("count rows of "+t.table.String(), err)
		}
		all = append(all, counts...)
	}
	slices.SortStableFunc(all, func(a, b TypeCount) int { return cmp.Compare(b.Events, a.Events) })
	return all[:min(len(all), most)], nil
}

// list appends the rows of a scope that are not listed yet to outbox.backlog, by time and ID, and returns how many
// there are in the list. db is a transaction in the snapshot of the slot.
func (s *Stream) list(ctx context.Context, db DB, sc scope) (listed int64, err error) {
	tables, err := s.rowTables(ctx, db)
	if err != nil {
		return 0, err
	}
	var parts []string
	args := []any{s.cfg.Slot}
	for _, t := range sorted(tables) {
		cond, param, err := sc.where(t)
		if err != nil {
			return 0, err
		}
		args = append(args, t.table.String(), param)
		source := fmt.Sprintf("$%d::text", len(args)-1)
		parts = append(parts, fmt.Sprintf(`
			select %[1]s as source, t.%[2]s::text as id, row_number() over (order by %[3]s, t.%[2]s) as n, %[3]s as at
			from %[4]s t where %[5]s`, source, t.id, t.order(), t.table, strings.Replace(cond, "$1", fmt.Sprintf("$%d", len(args)), 1)))
	}
	_, err = db.Exec(ctx, fmt.Sprintf(`
		insert into outbox.backlog (slot, ordinal, source_table, event_id)
		select $1, (select coalesce(max(ordinal), 0) from outbox.backlog where slot = $1) + row_number() over (order by at, source, n), source, id
		from (%s) r
		where not exists (select from outbox.backlog b where b.slot = $1 and b.source_table = r.source and b.event_id = r.id)`,
		strings.Join(parts, " union all ")), args...)
	if err != nil {
		return 0, s.serverError("list rows that the slot does not bring", err)
	}
	if err := db.QueryRow(ctx, `select count(*) from outbox.backlog where slot = $1`, s.cfg.Slot).Scan(&listed); err != nil {
		return 0, s.serverError("count listed rows", err)
	}
	return listed, nil
}

// sorted returns the tables in the order of their names.
func sorted(tables map[string]*rowTable) []*rowTable {
	out := make([]*rowTable, 0, len(tables))
	for _, t := range tables {
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b *rowTable) int { return strings.Compare(a.table.String(), b.table.String()) })
	return out
}

// entry is a line of the list.
type entry struct {
	ordinal uint32
	source  string
	id      string
}

// listed reads the list from behind an ordinal on.
func (s *Stream) listed(ctx context.Context, db DB, after uint32, most int) ([]entry, error) {
	rows, err := db.Query(ctx, `
		select ordinal, source_table, event_id from outbox.backlog
		where slot = $1 and ordinal > $2 order by ordinal limit $3`, s.cfg.Slot, int64(after), most)
	if err != nil {
		return nil, s.serverError("read backlog", err)
	}
	var out []entry
	var e entry
	var ordinal int64
	if _, err := pgx.ForEachRow(rows, []any{&ordinal, &e.source, &e.id}, func() error {
		e.ordinal = uint32(ordinal)
		out = append(out, e)
		return nil
	}); err != nil {
		return nil, s.serverError("read backlog", err)
	}
	return out, nil
}

// backlogPosition is the position of a listed event.
func backlogPosition(incarnation, ordinal uint32) outbox.Position {
	return outbox.Position{Incarnation: incarnation, Ordinal: ordinal}
}
