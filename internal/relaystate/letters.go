package relaystate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// Letters keeps a session's dead letters in outbox.dead_letters. It implements sink.DeadLetters.
type Letters struct {
	db     *conn
	slot   string
	owner  string
	source string // of the positions
	from   outbox.Position
	listed bool // the session publishes a list; from is of no use then
	tables []Origin
}

// Origin says what the IDs of events from a table begin with, as its mapping has it.
type Origin struct {
	Source string // the table, as the list names it
	Prefix string
}

var _ sink.DeadLetters = (*Letters)(nil)

// Session says whose letters they are.
type Session struct {
	Slot        string
	Owner       string     // token of the session
	Source      string     // of its positions
	Incarnation uint32     // of its positions
	Resume      outbox.LSN // where the stream was resumed; 0: what is listed in outbox.backlog is published
	Origins     []Origin   // of the tables
}

// NewLetters returns the letters of a session. connect gives the settings of a connection; it is called for each. It
// opens nothing.
func NewLetters(s Session, connect func() (*pgx.ConnConfig, error)) *Letters {
	return &Letters{
		db: newConn(s.Slot, connect), slot: s.Slot, owner: s.Owner, source: s.Source, listed: s.Resume == 0, tables: s.Origins,
		from: outbox.Position{Incarnation: s.Incarnation, LSN: s.Resume},
	}
}

// Close ends the connection. Later calls fail.
func (l *Letters) Close(ctx context.Context) { l.db.close(ctx) }

func (l *Letters) text(p outbox.Position) string {
	return string(outbox.AppendPosition(nil, l.source, p))
}

func (l *Letters) origins() (sources, prefixes []string) {
	sources, prefixes = []string{}, []string{}
	for _, o := range l.tables {
		sources, prefixes = append(sources, o.Source), append(prefixes, o.Prefix)
	}
	return sources, prefixes
}

// Settled implements sink.DeadLetters. A letter of an earlier incarnation counts where its event is listed again.
func (l *Letters) Settled(ctx context.Context, after outbox.Position, most int) (out []sink.Settled, err error) {
	end := outbox.Position{Incarnation: l.from.Incarnation, LSN: ^outbox.LSN(0), Ordinal: ^uint32(0)}
	from, behind := l.from, ">="
	if after.Compare(from) >= 0 {
		from, behind = after, ">"
	}
	sql, args := `
		select position, source_table, event_id from outbox.dead_letters
		where slot = $1 and position collate "C" `+behind+` $2 and position collate "C" <= $3
		order by position collate "C" limit $4`, []any{l.slot, l.text(from), l.text(end), most}
	if l.listed {
		sources, prefixes := l.origins()
		sql, args = `
			select b.ordinal::text, d.source_table, d.event_id
			from outbox.backlog b
			join unnest($3::text[], $4::text[]) as o (source, prefix) on o.source = b.source_table
			join outbox.dead_letters d on d.slot = b.slot and d.source_table = b.source_table and d.event_id = o.prefix || b.event_id
			where b.slot = $1 and b.ordinal > $2
			order by b.ordinal limit $5`, []any{l.slot, int64(after.Ordinal), sources, prefixes, most}
	}
	err = l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		out = nil
		rows, err := db.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var x sink.Settled
			var at string
			if err := rows.Scan(&at, &x.Source, &x.EventID); err != nil {
				return err
			}
			if l.listed {
				x.Position.Incarnation = l.from.Incarnation
				if _, err := fmt.Sscan(at, &x.Position.Ordinal); err != nil {
					return fmt.Errorf("read ordinal %q: %w", at, err)
				}
			} else if _, x.Position, err = outbox.ParsePosition(at); err != nil {
				return err
			}
			out = append(out, x)
		}
		return rows.Err()
	})
	return out, wrap("read dead letters", err)
}

// Holds implements sink.DeadLetters. Where the events of a list are published, what stands there before the first letter
// of a key was published before it, so that is where the key is held from.
func (l *Letters) Holds(ctx context.Context, most int) (out []sink.Hold, err error) {
	sources, prefixes := l.origins()
	err = l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		rows, err := db.Query(ctx, `
			select d.topic, coalesce(d.partition, -1), d.partition_key, min(d.position collate "C"), min(b.ordinal)
			from outbox.dead_letters d
			left join unnest($3::text[], $4::text[]) as o (source, prefix) on o.source = d.source_table
			left join outbox.backlog b on $5 and b.slot = d.slot and b.source_table = d.source_table and o.prefix || b.event_id = d.event_id
			where d.slot = $1 and d.state in ('parked', 'held', 'requeued') and d.holds and d.topic is not null
			group by 1, 2, 3 limit $2`, l.slot, most, sources, prefixes, l.listed)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (h sink.Hold, err error) {
			var ordinal *int64
			err = row.Scan(&h.Topic, &h.Partition, &h.Key, &h.From, &ordinal)
			if ordinal != nil {
				h.From = l.text(outbox.Position{Incarnation: l.from.Incarnation, Ordinal: uint32(*ordinal)})
			}
			return h, err
		})
		return err
	})
	return out, wrap("read held keys", err)
}

// Park implements sink.DeadLetters: one statement, however many they are.
func (l *Letters) Park(ctx context.Context, letters []*sink.Letter) error {
	var c columns
	for _, x := range letters {
		c.add(x)
	}
	return wrap("write dead letters", l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		return owned(db.QueryRow(ctx, `
			with owned as (
				select 1 from outbox.relay_state where slot = $1 and owner = $2 for share
			), added as (
				insert into outbox.dead_letters (slot, source_table, event_id, position, topic, partition, partition_key, value, is_null,
					headers, event_key, event_type, occurred_at, class, reason, attempts, state, holds, actor, note)
				select $1, x.source_table, x.event_id, x.position, x.topic, x.partition, x.partition_key, x.value, x.is_null,
					x.headers::jsonb, x.event_key, x.event_type, x.occurred_at, x.class, x.reason, x.attempts, x.state, x.holds, x.actor, x.note
				from owned, unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::bytea[], $9::bytea[], $10::bool[],
					$11::text[], $12::text[], $13::text[], $14::timestamptz[], $15::text[], $16::text[], $17::int[], $18::text[], $19::bool[], $20::text[], $21::text[])
					with ordinality as x (source_table, event_id, position, topic, partition, partition_key, value, is_null,
						headers, event_key, event_type, occurred_at, class, reason, attempts, state, holds, actor, note, n)
				order by x.n
				on conflict (slot, source_table, event_id) do nothing
			)
			select count(*) from owned`,
			l.slot, l.owner, c.source, c.id, c.position, c.topic, c.partition, c.key, c.value, c.null, c.headers, c.eventKey,
			c.eventType, c.occurred, c.class, c.reason, c.attempts, c.state, c.holds, c.actor, c.note))
	}))
}

// Change implements sink.DeadLetters.
func (l *Letters) Change(ctx context.Context, changes []sink.Change) error {
	var ids []int64
	var state, class, reason, actor, note []*string
	for _, c := range changes {
		ids = append(ids, c.ID)
		state, class, reason = append(state, orNull(string(c.State))), append(class, orNull(c.Class)), append(reason, orNull(c.Reason))
		actor, note = append(actor, orNull(c.Actor)), append(note, orNull(c.Note))
	}
	return wrap("change dead letters", l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		return owned(db.QueryRow(ctx, `
			with owned as (
				select 1 from outbox.relay_state where slot = $1 and owner = $2 for share
			), changed as (
				update outbox.dead_letters d set
					state = coalesce(x.state, d.state), class = coalesce(x.class, d.class), reason = coalesce(x.reason, d.reason),
					attempts = d.attempts + (x.class is not null)::int,
					actor = coalesce(x.actor, d.actor), note = coalesce(x.note, d.note), updated_at = clock_timestamp()
				from owned, unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) as x (id, state, class, reason, actor, note)
				where d.id = x.id and d.slot = $1
			)
			select count(*) from owned`, l.slot, l.owner, ids, state, class, reason, actor, note))
	}))
}

// owned reads how many owners a write found.
func owned(row pgx.Row) error {
	var n int
	if err := row.Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return sink.ErrNotOwner
	}
	return nil
}

func wrap(doing string, err error) error {
	if err == nil || errors.Is(err, sink.ErrNotOwner) {
		return err
	}
	return databaseError(doing, err)
}
