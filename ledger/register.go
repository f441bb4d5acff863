package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
)

// Registration counts what RegisterBatch did.
type Registration struct {
	Inserted int // new rows, which ClaimDue returns when they are due
	Known    int // rows that existed, in whatever state
	Expired  int // recipients refused because the event is older than the horizon
}

// RegisterBatch makes pending rows for many recipients of an event, chunk a statement (0: 1000, at most 10000), for Run to deliver.
// On the ledger's own pool each chunk is a transaction; in a caller's all are part of it. WithContent gives Run what
// to send, WithNotBefore says from when on. Errors: as Reserve.
func (l *Ledger) RegisterBatch(ctx context.Context, db DBTX, ev Event, recipients iter.Seq[string], chunk int, opts ...Option) (Registration, error) {
	o := collectOptions(opts)
	const query = `SELECT inserted, known, expired
FROM ledger.register_batch($1::text, $2::text, $3::text::text[], $4::text, $5::text::timestamptz,
  not_before => $6::text::timestamptz, payload_hash => $7::text)`
	var sum Registration
	err := inChunks(recipients, chunk, func(list []string) error {
		if err := validateAll(ev, list); err != nil {
			return err
		}
		n, err := withContent(ctx, l, db, ev, o, func(db DBTX) (n Registration, err error) {
			return n, db.QueryRow(ctx, query, ev.Tenant, ev.EventKey, textArray(list), ev.Channel, stamp(ev.OccurredAt),
				stamp(o.notBefore), optional(o.hash)).Scan(&n.Inserted, &n.Known, &n.Expired)
		})
		if err != nil {
			return fmt.Errorf("register %d deliveries: %w", len(list), err)
		}
		o.content = nil // the first chunk has written it
		l.count(ev.Channel, Registered, n.Inserted, false)
		l.count(ev.Channel, Known, n.Known, false)
		l.count(ev.Channel, Expired, n.Expired, false)
		sum.Inserted += n.Inserted
		sum.Known += n.Known
		sum.Expired += n.Expired
		return nil
	})
	return sum, err
}

// Remember stores what a retry needs of an event, and reports whether it was new. Do it in the transaction that
// makes the event's rows; WithContent does. ev.Channel is not used. Errors: as Reserve.
func (l *Ledger) Remember(ctx context.Context, db DBTX, ev Event, c Content) (bool, error) {
	if err := checkText("event_key", ev.EventKey, 1, maxEventKey); err != nil {
		return false, err
	}
	var isNew bool
	err := l.call(ctx, db, func(db DBTX) (err error) {
		isNew, err = remember(ctx, db, ev, c)
		return err
	})
	return isNew, err
}

func remember(ctx context.Context, db DBTX, ev Event, c Content) (isNew bool, err error) {
	const query = `SELECT ledger.remember($1::text, $2::text, $3::text, $4::bytea, $5::text::jsonb, $6::text::timestamptz, $7::text)`
	var payload, headers any
	if c.Payload != nil {
		payload = c.Payload
	}
	if len(c.Headers) > 0 {
		text, err := json.Marshal(c.Headers)
		if err != nil {
			return false, fmt.Errorf("marshal headers: %w", err)
		}
		headers = string(text)
	}
	err = db.QueryRow(ctx, query, ev.Tenant, ev.EventKey, c.Type, payload, headers, stamp(ev.OccurredAt), optional(c.Source)).Scan(&isNew)
	if err != nil {
		return false, fmt.Errorf("remember event: %w", err)
	}
	return isNew, nil
}
