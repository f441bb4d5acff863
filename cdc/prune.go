package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Retention says which rows of a table may go.
type Retention struct {
	Table string        // schema.table
	Age   time.Duration // rows whose event's time is older
}

// Pruned is what a look at a number of rows came to.
type Pruned struct {
	Seen, Gone int64
}

// Pruner deletes rows that nothing needs any more: those older than the retention whose transactions every slot's
// relay has published, less what outbox.backlog lists, what a dead letter waits for, and all of them while a replay is
// asked for. It walks each table in the order of its IDs, a window of rows at a time, each a transaction of its own that
// sees a bounded number of rows whatever the table's size. It is for one goroutine.
type Pruner struct {
	a     *Archive
	batch int
	table *rowTable
	age   time.Duration

	horizon uint64
	slot    string    // whose horizon it is
	now     time.Time // of the database, when the walk began
	at      string    // ID up to which rows were looked at; empty: the beginning
	begun   bool
}

// windowRows is how many rows are looked at for each that may be deleted at once.
const windowRows = 5

// ErrPruneHeld is returned when no row may go at the moment; what wraps it says why.
var ErrPruneHeld = errors.New("cdc: nothing can be pruned now")

// Pruner begins a walk. batch is how many rows are deleted at once at most. A *CriteriaError is returned for a table
// that is not read or does not know the time of its events.
func (a *Archive) Pruner(ctx context.Context, r Retention, batch int) (*Pruner, error) {
	named, err := ParseTable(r.Table)
	if err != nil {
		return nil, &CriteriaError{err.Error()}
	}
	t := a.tables[named.String()]
	switch {
	case t == nil:
		return nil, &CriteriaError{fmt.Sprintf("table %s is not one that this relay reads", named)}
	case t.at == "":
		return nil, &CriteriaError{fmt.Sprintf("table %s has no column with the event's time", named)}
	}
	p := &Pruner{a: a, batch: max(1, batch), table: t, age: r.Age}
	if p.horizon, p.slot, err = a.pruneHorizon(ctx); err != nil {
		return nil, err
	}
	err = a.db.QueryRow(ctx, `select clock_timestamp()`).Scan(&p.now)
	return p, a.fail("read the time", err)
}

// pruneHorizon is the transaction ID below which every relay that has a record here has published everything. One that
// has lost its slot needs the rows for its recovery, so each of them has a say. slot is the one that is furthest back.
func (a *Archive) pruneHorizon(ctx context.Context) (xid uint64, slot string, err error) {
	here, err := a.s.systemIdentifier(ctx, a.db)
	if err != nil {
		return 0, "", err
	}
	rows, err := a.db.Query(ctx, `select slot from outbox.relay_state order by slot`)
	if err != nil {
		return 0, "", a.fail("read relay_state", err)
	}
	var slots []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return 0, "", a.fail("read relay_state", err)
		}
		slots = append(slots, name)
	}
	if err := rows.Err(); err != nil {
		return 0, "", a.fail("read relay_state", err)
	}
	for _, name := range slots {
		rec, found, err := a.s.store.Load(ctx, a.db, name)
		if err != nil {
			return 0, "", a.fail("read relay_state", err)
		}
		if !found {
			continue
		}
		sc, ok, err := a.s.safeScope(ctx, a.db, rec, here)
		switch {
		case err != nil:
			return 0, "", err
		case rec.SystemIdentifier != here:
			return 0, "", fmt.Errorf("%w: relay_state of slot %q is of another server, so its safe_xid says nothing", ErrPruneHeld, name)
		case rec.Phase == PhaseCreating:
			return 0, "", fmt.Errorf("%w: slot %q is being made", ErrPruneHeld, name)
		case !ok:
			return 0, "", fmt.Errorf("%w: relay_state of slot %q does not tell what is published", ErrPruneHeld, name)
		}
		if xid == 0 || sc.xid < xid {
			xid, slot = sc.xid, name
		}
	}
	var replay int64
	err = a.db.QueryRow(ctx, `select coalesce(min(id), 0) from outbox.requests where kind = 'replay' and state in ('pending', 'running')`).Scan(&replay)
	if err != nil {
		return 0, "", a.fail("read requests", err)
	}
	if replay != 0 {
		return 0, "", fmt.Errorf("%w: request %d, a replay, is not over", ErrPruneHeld, replay)
	}
	if xid == 0 {
		return 0, "", fmt.Errorf("%w: no relay has ever streamed from this database", ErrPruneHeld)
	}
	return xid, slot, nil
}

// mayGo is the condition that nothing needs a row. The relays of all slots have a say in it.
func (p *Pruner) mayGo(args *params) string {
	t := p.table
	source := args.add(t.table.String())
	return fmt.Sprintf(`%s < %s::text::timestamptz and %s
			and not exists (select from outbox.requests q where q.kind = 'replay' and q.state in ('pending', 'running'))
			and not exists (select from outbox.backlog b where b.source_table = %s::text and b.event_id = t.%s::text)
			and not exists (select from outbox.dead_letters l where l.source_table = %[4]s::text
				and l.event_id = %[6]s::text || t.%[5]s::text and l.state in ('parked', 'held', 'requeued'))`,
		t.order(), args.add(p.now.Add(-p.age).UTC().Format(time.RFC3339Nano)), t.vouched(p.horizon, args), source, t.id, args.add(t.prefix))
}

// Count returns how many rows may go.
func (p *Pruner) Count(ctx context.Context) (n int64, oldest time.Time, err error) {
	var args params
	var at *time.Time
	err = p.a.db.QueryRow(ctx, fmt.Sprintf(`select count(*), min(%s) filter (where isfinite(%[1]s)) from %s t where %s`,
		p.table.order(), p.table.table, p.mayGo(&args)), args...).Scan(&n, &at)
	if at != nil {
		oldest = *at
	}
	return n, oldest, p.a.fail("count rows of "+p.table.table.String(), err)
}

// Kept returns how many rows are older and must stay, and what vouches for no more: the safe_xid of a slot.
func (p *Pruner) Kept(ctx context.Context) (n int64, safeXID uint64, slot string, err error) {
	var args params
	may := p.mayGo(&args)
	err = p.a.db.QueryRow(ctx, fmt.Sprintf(`select count(*) from %s t where %s < %s::text::timestamptz and not (%s)`,
		p.table.table, p.table.order(), args.add(p.now.Add(-p.age).UTC().Format(time.RFC3339Nano)), may), args...).Scan(&n)
	return n, p.horizon, p.slot, p.a.fail("count rows of "+p.table.table.String(), err)
}

// Next looks at the next window and deletes what may go of it. ok is false at the end of the table.
func (p *Pruner) Next(ctx context.Context) (done Pruned, ok bool, err error) {
	t := p.table
	var args params
	behind := "true"
	if p.begun {
		behind = fmt.Sprintf("t.%s > %s::text::%s", t.id, args.add(p.at), t.idType)
	}
	// By ctid, which finds a row without an index, and by tableoid, for partitions have ctids of their own. No row is
	// locked before it is deleted: that would take the right to update. Who is faster deletes it, and a row that was
	// updated meanwhile is another version with another ctid, which stays for the next walk.
	sql := fmt.Sprintf(`
		with seen as materialized (
			select t.tableoid as part, t.ctid as place, t.%[1]s as id, row_number() over (order by t.%[1]s) as n, %[2]s as may_go
			from %[3]s t where %[4]s order by t.%[1]s limit %[5]d
		), gone as (
			delete from %[3]s t
			where t.ctid = any(array(select place from seen where may_go order by n limit %[6]d))
				and (t.tableoid, t.ctid) in (select part, place from seen where may_go order by n limit %[6]d)
			returning 1
		)
		select (select count(*) from seen), (select count(*) from gone), (select count(*) from seen where may_go),
			coalesce((select id::text from seen order by n desc limit 1), ''),
			coalesce((select id::text from seen where may_go order by n limit 1 offset %[7]d), '')`,
		t.id, p.mayGo(&args), t.table, behind, windowRows*p.batch, p.batch, p.batch-1)
	var may int64
	var last, full string
	if err := p.a.db.QueryRow(ctx, sql, args...).Scan(&done.Seen, &done.Gone, &may, &last, &full); err != nil {
		return done, false, p.a.fail("delete rows of "+t.table.String(), err)
	}
	if may > int64(p.batch) { // the rest of the window comes next
		last = full
	} else if done.Seen < int64(windowRows*p.batch) {
		return done, false, nil
	}
	p.at, p.begun = last, true
	return done, true, nil
}

// Young reports whether the walk has come to IDs of version 7, which lead with the time, that are younger than the
// retention. Of a table that has only such nothing more will go, so the walk may end here; now and then one should go
// on, for other IDs may be behind.
func (p *Pruner) Young() bool {
	if p.table.idType != "uuid" || len(p.at) != 36 || p.at[14] != '7' {
		return false
	}
	var ms int64
	if _, err := fmt.Sscanf(strings.ReplaceAll(p.at[:13], "-", ""), "%x", &ms); err != nil {
		return false
	}
	return time.UnixMilli(ms).After(p.now.Add(-p.age).Add(time.Hour))
}
