package ledger

import (
	"context"
	"fmt"
)

// Once makes an effect that is a row of the ledger's own database exactly once: in the caller's transaction it
// settles key and, only if the answer is Delivered, calls fn, which writes the guarded row in the same transaction.
// Both stand or neither does. After an error of fn, returned as it is, the caller rolls back. Nothing but database
// work belongs in fn.
//
// With WithSkip it records that the recipient is not eligible, answers Skipped and does not call fn. Check
// eligibility in the same transaction, with the business row locked.
//
// Errors besides fn's: ErrNoTransaction; as Reserve.
func (l *Ledger) Once(ctx context.Context, tx DBTX, key Key, fn func(DBTX) error, opts ...Option) (Outcome, error) {
	if !inTransaction(tx) {
		return "", ErrNoTransaction
	}
	if err := key.Validate(); err != nil {
		return "", err
	}
	o := collectOptions(opts)
	if o.content != nil {
		if _, err := remember(ctx, tx, key.event(), *o.content); err != nil {
			return "", err
		}
	}
	const query = `SELECT ledger.once($1::text, $2::text, $3::text, $4::text, $5::text::timestamptz,
  payload_hash => $6::text, skip_reason => $7::text)`
	var outcome Outcome
	err := tx.QueryRow(ctx, query, key.Tenant, key.EventKey, key.Recipient, key.Channel, stamp(key.OccurredAt),
		optional(o.hash), optional(o.skip)).Scan(&outcome)
	if err != nil {
		return "", fmt.Errorf("settle delivery: %w", err)
	}
	l.count(key.Channel, outcome, 1, false)
	if outcome == Delivered {
		return outcome, fn(tx)
	}
	return outcome, nil
}

// OnceBatch is Once for many recipients of an event: it returns the outcome of each distinct one. The caller writes
// the guarded rows of those that are Delivered, and of no other, in the same transaction. It fails instead of
// answering Busy.
func (l *Ledger) OnceBatch(ctx context.Context, tx DBTX, ev Event, recipients []string, opts ...Option) (map[string]Outcome, error) {
	if !inTransaction(tx) {
		return nil, ErrNoTransaction
	}
	if err := validateAll(ev, recipients); err != nil {
		return nil, err
	}
	o := collectOptions(opts)
	if o.content != nil {
		if _, err := remember(ctx, tx, ev, *o.content); err != nil {
			return nil, err
		}
	}
	const query = `SELECT recipient, outcome
FROM ledger.once_batch($1::text, $2::text, $3::text::text[], $4::text, $5::text::timestamptz, payload_hash => $6::text)`
	results, err := collect(ctx, tx, func(row Row) (r Result, err error) {
		return r, row.Scan(&r.Key.Recipient, &r.Outcome)
	}, query, ev.Tenant, ev.EventKey, textArray(recipients), ev.Channel, stamp(ev.OccurredAt), optional(o.hash))
	if err != nil {
		return nil, fmt.Errorf("settle %d deliveries: %w", len(recipients), err)
	}
	outcomes := make(map[string]Outcome, len(results))
	for _, r := range results {
		outcomes[r.Key.Recipient] = r.Outcome
	}
	l.countAll(ev.Channel, results)
	return outcomes, nil
}
