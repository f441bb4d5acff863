package cdc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// PruneRequests deletes requests to the slot's relay that have been over for longer than age, and returns how many.
func (a *Archive) PruneRequests(ctx context.Context, age time.Duration) (int64, error) {
	tag, err := a.db.Exec(ctx, `
		delete from outbox.requests
		where slot = $1 and state in ('done', 'failed') and updated_at < clock_timestamp() - make_interval(secs => $2)`, a.s.cfg.Slot, age.Seconds())
	return tag.RowsAffected(), a.fail("delete requests", err)
}

// PruneLetters deletes the slot's dead letters that have been published or discarded for longer than age, and returns
// how many. A letter keeps the stream and a recovery from publishing its event, so one stays while the event may come
// again: while it is not confirmed, is in outbox.backlog, or its row is there.
func (a *Archive) PruneLetters(ctx context.Context, age time.Duration, batch int) (gone int64, err error) {
	rec, found, err := a.s.store.Load(ctx, a.db, a.s.cfg.Slot)
	if err != nil || !found {
		return 0, a.fail("read relay_state", err)
	}
	var database string
	if err := a.db.QueryRow(ctx, `select current_database()`).Scan(&database); err != nil {
		return 0, a.fail("read database", err)
	}
	confirmed := string(outbox.AppendPosition(nil, SourceOf(rec.SystemIdentifier, database, a.s.cfg.Slot),
		outbox.Position{Incarnation: rec.Incarnation, LSN: rec.Confirmed}))
	for last := int64(0); ; {
		letters, err := a.settledLetters(ctx, age, confirmed, last, max(1, batch))
		if err != nil || len(letters) == 0 {
			return gone, err
		}
		last = letters[len(letters)-1].id
		ids, err := a.withoutRow(ctx, letters)
		if err != nil {
			return gone, err
		}
		tag, err := a.db.Exec(ctx, `delete from outbox.dead_letters where id = any($1) and state in ('published', 'discarded')`, ids)
		if err != nil {
			return gone, a.fail("delete dead letters", err)
		}
		gone += tag.RowsAffected()
	}
}

type settledLetter struct {
	id              int64
	source, eventID string
}

// settledLetters returns letters, behind one, that the stream will not bring again.
func (a *Archive) settledLetters(ctx context.Context, age time.Duration, confirmed string, after int64, most int) ([]settledLetter, error) {
	rows, err := a.db.Query(ctx, `
		select l.id, l.source_table, l.event_id from outbox.dead_letters l
		where l.slot = $1 and l.id > $2 and l.state in ('published', 'discarded') and l.updated_at < clock_timestamp() - make_interval(secs => $3)
			and (left(l.position, 16) <> left($4, 16) or l.position collate "C" < $4)
			and not exists (select from outbox.backlog b where b.slot = l.slot)
		order by l.id limit $5`, a.s.cfg.Slot, after, age.Seconds(), confirmed, most)
	if err != nil {
		return nil, a.fail("read dead letters", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l settledLetter, err error) {
		err = row.Scan(&l.id, &l.source, &l.eventID)
		return l, err
	})
	return list, a.fail("read dead letters", err)
}

// withoutRow returns the numbers of those letters that have no row any more. Of a table that is not read nobody knows.
func (a *Archive) withoutRow(ctx context.Context, letters []settledLetter) ([]int64, error) {
	out := []int64{}
	events := map[string][]string{}
	for _, l := range letters {
		events[l.source] = append(events[l.source], l.eventID)
	}
	rowed := map[[2]string]bool{}
	for source, ids := range events {
		t := a.tables[source]
		if t == nil {
			continue
		}
		values, castable := t.rowIDs(ids)
		cond := fmt.Sprintf("t.%s::text = any($2::text[])", t.id)
		if castable {
			cond = fmt.Sprintf("t.%s = any($2::text[]::%s[])", t.id, t.idType)
		}
		rows, err := a.db.Query(ctx, fmt.Sprintf(`select $1::text || t.%s::text from %s t where %s`, t.id, t.table, cond), t.prefix, values)
		if err != nil {
			return nil, a.fail("read rows of "+t.table.String(), err)
		}
		var id string
		if _, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			rowed[[2]string{source, id}] = true
			return nil
		}); err != nil {
			return nil, a.fail("read rows of "+t.table.String(), err)
		}
	}
	for _, l := range letters {
		message := strings.HasPrefix(l.source, "message ")
		if (message || a.tables[l.source] != nil) && !rowed[[2]string{l.source, l.eventID}] {
			out = append(out, l.id)
		}
	}
	return out, nil
}
