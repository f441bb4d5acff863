package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/ledger"
)

// Reconciliation counts what Reconcile found for a rule.
type Reconciliation struct {
	Rule   string
	Events int // that should have been notified by now
	ledger.Registration
	Refused int // events that cannot be handled; the first of them is in the error
}

// Reconcile goes through what the discovery queries of the rules find and registers what the ledger does not know:
// the way out when events were lost before they reached the outbox, or were never written. The event keys must be
// those of the events, so a second run, or a run beside the consumer, adds nothing. The deliveries are made by whoever
// runs.
//
// Rules without a discovery query are left out. Errors: *QueryError; of the ledger; *RecordError for refused events,
// when all are through.
func (w *Worker) Reconcile(ctx context.Context) ([]Reconciliation, error) {
	if err := w.configure(ctx); err != nil {
		return nil, err
	}
	var list []Reconciliation
	var refused error
	for _, r := range w.rules.Rules {
		if r.Discover == nil {
			continue
		}
		sum := Reconciliation{Rule: r.Name}
		err := w.app.discover(ctx, r, func(e *Event) error {
			sum.Events++
			n, err := w.reg.event(ctx, e)
			sum.Inserted += n.Inserted
			sum.Known += n.Known
			sum.Expired += n.Expired
			if _, isBad := errors.AsType[*RecordError](err); isBad {
				if sum.Refused++; sum.Refused == 1 {
					refused = errors.Join(refused, fmt.Errorf("rule %q: %w", r.Name, err))
				}
				return nil
			}
			return err
		})
		list = append(list, sum)
		if err != nil {
			return list, err
		}
	}
	return list, refused
}

// discover calls f with each event that a rule's discovery query finds, as they arrive.
func (d *database) discover(ctx context.Context, r *Rule, f func(*Event) error) error {
	q := r.Discover
	return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, q.text, q.arguments(nil)...)
		if err != nil {
			return q.fail(err)
		}
		defer rows.Close()
		for rows.Next() {
			e, err := scanEvent(rows, r.EventType)
			if err != nil {
				return q.fail(err)
			}
			if err := f(e); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return q.fail(err)
		}
		return nil
	})
}

// discoveryColumns are the columns of a discovery query, by name. The first two must be there.
func discoveryColumns() []string {
	return []string{"event_key", "occurred_at", "tenant", "aggregate_type", "aggregate_id", "payload"}
}

// scanEvent reads a row of a discovery query.
func scanEvent(rows pgx.Rows, eventType string) (*Event, error) {
	e := &Event{Type: eventType, Source: "reconcile"}
	texts := map[string]*string{"event_key": &e.Key, "tenant": &e.Tenant, "aggregate_type": &e.AggregateType, "aggregate_id": &e.AggregateID}
	raw := rows.RawValues()
	types := rows.Conn().TypeMap()
	for i, field := range rows.FieldDescriptions() {
		var err error
		switch to := texts[field.Name]; {
		case raw[i] == nil:
		case field.Name == "occurred_at":
			err = types.Scan(field.DataTypeOID, field.Format, raw[i], &e.OccurredAt)
		case field.Name == "payload":
			err = types.Scan(field.DataTypeOID, field.Format, raw[i], &e.Payload)
		case to != nil:
			err = types.Scan(field.DataTypeOID, field.Format, raw[i], to)
		}
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", field.Name, errors.New("has a type that does not fit"))
		}
	}
	if e.Key == "" || e.OccurredAt.Equal(time.Time{}) {
		return nil, errors.New("returned a row without event_key or occurred_at")
	}
	e.Headers = map[string]string{headerEventKey: e.Key, headerEventType: e.Type, headerAggregateType: e.AggregateType}
	return e, nil
}
