package relaystate

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/sink"
)

// Requests reads and writes outbox.requests for a session, over the connection of its letters. It implements
// requests.Store.
type Requests struct {
	db          *conn
	slot, owner string
}

var _ requests.Store = (*Requests)(nil)

// Requests returns the requests to the session's relay.
func (l *Letters) Requests() *Requests { return &Requests{db: l.db, slot: l.slot, owner: l.owner} }

// Open implements requests.Store.
func (q *Requests) Open(ctx context.Context) (out []requests.Request, err error) {
	err = q.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		rows, err := db.Query(ctx, `
			select distinct on (kind) id, kind, args::text, progress::text, actor, reason from outbox.requests
			where slot = $1 and state in ('pending', 'running') order by kind, id`, q.slot)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r requests.Request, err error) {
			var args, progress string
			err = row.Scan(&r.ID, &r.Kind, &args, &progress, &r.Actor, &r.Reason)
			r.Args, r.Progress = json.RawMessage(args), json.RawMessage(progress)
			return r, err
		})
		return err
	})
	return out, wrap("read requests", err)
}

// Report implements requests.Store.
func (q *Requests) Report(ctx context.Context, id int64, progress any) error {
	return q.write(ctx, id, "running", progress, "")
}

// Finish implements requests.Store.
func (q *Requests) Finish(ctx context.Context, id int64, progress any, failure string) error {
	state := "done"
	if failure != "" {
		state = "failed"
	}
	return q.write(ctx, id, state, progress, failure)
}

// write changes nothing of a request that somebody has called off.
func (q *Requests) write(ctx context.Context, id int64, state string, progress any, failure string) error {
	text, err := json.Marshal(progress)
	if err != nil {
		return fmt.Errorf("write progress of request %d: %w", id, err)
	}
	if progress == nil {
		text = []byte("{}")
	}
	return wrap("write requests", q.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		return owned(db.QueryRow(ctx, `
			with owned as (
				select 1 from outbox.relay_state where slot = $1 and owner = $2 for share
			), written as (
				update outbox.requests r set state = $4, updated_at = clock_timestamp(),
					progress = $5::text::jsonb || case when $6 = '' then '{}'::jsonb else jsonb_build_object('error', $6::text) end
				from owned where r.id = $3 and r.slot = $1 and r.state in ('pending', 'running')
			)
			select count(*) from owned`, q.slot, q.owner, id, state, string(text), failure))
	}))
}

// Known reports whether an event has a letter, whatever its state.
func (l *Letters) Known(ctx context.Context, eventID string) (known bool, err error) {
	err = l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		return db.QueryRow(ctx, `select exists (select from outbox.dead_letters where slot = $1 and event_id = $2)`, l.slot, eventID).Scan(&known)
	})
	return known, wrap("read dead letters", err)
}

// Counts returns how many letters there are, by state.
func (l *Letters) Counts(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for _, s := range []sink.LetterState{sink.Parked, sink.Held, sink.Requeued, sink.Published, sink.Discarded} {
		out[string(s)] = 0
	}
	err := l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		rows, err := db.Query(ctx, `
			select state, count(*) from outbox.dead_letters
			where slot = $1 group by state`, l.slot)
		if err != nil {
			return err
		}
		var name string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error {
			out[name] = n
			return nil
		})
		return err
	})
	return out, wrap("count dead letters", err)
}
