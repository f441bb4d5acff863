package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// writeRates measures what an event costs the application that writes it.
func writeRates(ctx context.Context, b *bench) error {
	if err := b.startPostgres(ctx); err != nil {
		return err
	}
	d := &dataset{name: "bench_write", k: 1, keys: b.opt.keys, payload: b.opt.payload, partitions: b.opt.partitions}
	if err := b.prepare(ctx, d); err != nil {
		return err
	}
	rep, err := b.newReport(ctx)
	if err != nil {
		return err
	}
	event := func(n int) outbox.Event {
		return outbox.Event{
			EventKey: fmt.Sprint("order-placed:", n), AggregateType: "order", AggregateID: string(appendKey(nil, n, d.keys)),
			EventType: "OrderPlaced", Payload: appendPayload(nil, n, d.payload),
		}
	}
	rep.Rates, err = b.compareRates(ctx, d.name, []contender{
		{name: "bare", table: "outbox.events", do: func(ctx context.Context, conn *pgx.Conn, first, k int) error {
			return bareInsert(ctx, conn, first, k, event)
		}},
		{name: "write", table: "outbox.events", do: func(ctx context.Context, conn *pgx.Conn, first, k int) error {
			events := make([]outbox.Event, k)
			for i := range events {
				events[i] = event(first + i)
			}
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := outbox.Write(ctx, tx, events...)
				return err
			})
		}},
		{name: "publish", table: "outbox.events", do: func(ctx context.Context, conn *pgx.Conn, first, k int) error {
			var batch pgx.Batch
			for i := range k {
				e := event(first + i)
				batch.Queue("select outbox.publish(event_key => $1, aggregate_type => $2, aggregate_id => $3, event_type => $4, payload => $5::text::json)",
					e.EventKey, e.AggregateType, e.AggregateID, e.EventType, string(e.Payload))
			}
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return tx.SendBatch(ctx, &batch).Close() })
		}},
	})
	if err != nil {
		return err
	}
	return b.publish(rep)
}

// bareInsert is what one would write by hand: a statement of one row, or, for several, one statement over arrays.
func bareInsert(ctx context.Context, conn *pgx.Conn, first, k int, event func(int) outbox.Event) error {
	if k == 1 {
		e := event(first)
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload)
				values ($1, $2, $3, $4, $5::text::json)`, e.EventKey, e.AggregateType, e.AggregateID, e.EventType, string(e.Payload))
			return err
		})
	}
	var columns [5][]string
	for i := range k {
		e := event(first + i)
		for j, v := range []string{e.EventKey, e.AggregateType, e.AggregateID, e.EventType, string(e.Payload)} {
			columns[j] = append(columns[j], v)
		}
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload)
			select k, t, a, e, p::json from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) u (k, t, a, e, p)`,
			columns[0], columns[1], columns[2], columns[3], columns[4])
		return err
	})
}
