package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// writeEvents is a way to get events into the outbox.
type writeEvents func(context.Context, pgx.Tx, []outbox.Event) error

// way picks one of the ways that applications have.
func (w *writer) way() writeEvents {
	switch w.rng.IntN(4) {
	case 0:
		return publishEvents
	case 1:
		return copyEvents
	}
	return func(ctx context.Context, tx pgx.Tx, events []outbox.Event) error {
		_, err := outbox.Write(ctx, tx, events...)
		return err
	}
}

// change makes one event for each aggregate named, in this order: business row, outbox row and truth.
func (w *writer) change(ctx context.Context, tx pgx.Tx, aggregates []string, write writeEvents) error {
	versions, err := lock(ctx, tx, aggregates)
	if err != nil {
		return err
	}
	events := make([]outbox.Event, len(aggregates))
	facts := make([]Fact, len(aggregates))
	ids := make([]string, len(aggregates))
	for i, aggregate := range aggregates {
		versions[aggregate]++
		events[i] = event(w.rng, aggregate, versions[aggregate])
		facts[i] = factOf(&events[i], versions[aggregate])
		ids[i] = facts[i].EventID
	}
	if _, err := tx.Exec(ctx, `INSERT INTO chaos.entries SELECT id::uuid, aggregate FROM unnest($1::text[], $2::text[]) AS e (id, aggregate)`, ids, aggregates); err != nil {
		return fmt.Errorf("write entries: %w", err)
	}
	if err := write(ctx, tx, events); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	if err := writeFacts(ctx, tx, facts); err != nil {
		return err
	}
	return setVersions(ctx, tx, versions)
}

// lock takes the aggregates' locks, always in the order of their names, and returns their versions.
func lock(ctx context.Context, tx pgx.Tx, aggregates []string) (map[string]int64, error) {
	rows, err := tx.Query(ctx, `SELECT id, version FROM chaos.aggregates WHERE id = ANY($1) ORDER BY id FOR UPDATE`, aggregates)
	if err != nil {
		return nil, fmt.Errorf("lock aggregates: %w", err)
	}
	versions := map[string]int64{}
	var id string
	var version int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &version}, func() error {
		versions[id] = version
		return nil
	}); err != nil {
		return nil, fmt.Errorf("lock aggregates: %w", err)
	}
	for _, a := range aggregates {
		if _, ok := versions[a]; !ok {
			return nil, fmt.Errorf("lock aggregates: there is no %q", a)
		}
	}
	return versions, nil
}

func setVersions(ctx context.Context, tx pgx.Tx, versions map[string]int64) error {
	ids := slices.Sorted(maps.Keys(versions))
	values := make([]int64, len(ids))
	for i, id := range ids {
		values[i] = versions[id]
	}
	_, err := tx.Exec(ctx, `
		UPDATE chaos.aggregates a SET version = n.version
		FROM unnest($1::text[], $2::bigint[]) AS n (id, version) WHERE a.id = n.id`, ids, values)
	if err != nil {
		return fmt.Errorf("write versions: %w", err)
	}
	return nil
}

// publishEvents calls the SQL function once an event.
func publishEvents(ctx context.Context, tx pgx.Tx, events []outbox.Event) error {
	batch := &pgx.Batch{}
	for i := range events {
		e := &events[i]
		batch.Queue(`
			SELECT outbox.publish(event_key => $1, aggregate_type => $2, aggregate_id => $3, event_type => $4, payload => $5::text::json,
				payload_bytes => $6, headers => $7, tenant => $8, occurred_at => $9, id => $10::text::uuid)`,
			e.EventKey, e.AggregateType, e.AggregateID, e.EventType, jsonOrNull(e), e.PayloadBytes, headersOrNull(e), e.Tenant, e.OccurredAt, e.ID.String())
	}
	return tx.SendBatch(ctx, batch).Close()
}

// copyEvents uses COPY, which writes many rows as one WAL record.
func copyEvents(ctx context.Context, tx pgx.Tx, events []outbox.Event) error {
	columns := []string{"id", "tenant", "event_key", "aggregate_type", "aggregate_id", "event_type", "payload", "payload_bytes", "headers", "occurred_at"}
	n, err := tx.CopyFrom(ctx, pgx.Identifier{"outbox", "events"}, columns, pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
		e := &events[i]
		return []any{[16]byte(e.ID), e.Tenant, e.EventKey, e.AggregateType, e.AggregateID, e.EventType, jsonOrNull(e), e.PayloadBytes, headersOrNull(e), e.OccurredAt}, nil
	}))
	if err == nil && n != int64(len(events)) {
		err = errors.New("COPY took not all rows")
	}
	return err
}

// jsonOrNull keeps a nil payload from becoming the JSON text null.
func jsonOrNull(e *outbox.Event) any {
	if e.Payload == nil {
		return nil
	}
	return string(e.Payload)
}

func headersOrNull(e *outbox.Event) any {
	if e.Headers == nil {
		return nil
	}
	return e.Headers
}
