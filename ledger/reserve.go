package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"
)

// Reserve asks for the right to deliver key, once. Only Result.Outcome Reserved grants it; every other outcome says
// why not, and is no error. In a caller's transaction the reservation exists once that commits; keep such a
// transaction short, for others who want the key wait for its end.
//
// Errors: *KeyError; the driver's, wrapped. SQLSTATE 22023 names a channel without settings or a value out of range.
func (l *Ledger) Reserve(ctx context.Context, db DBTX, key Key, opts ...Option) (Result, error) {
	if err := key.Validate(); err != nil {
		return Result{}, err
	}
	o := collectOptions(opts)
	res, err := withContent(ctx, l, db, key.event(), o, func(db DBTX) (Result, error) { return l.reserve(ctx, db, key, o) })
	if err != nil {
		return Result{}, fmt.Errorf("reserve delivery: %w", err)
	}
	l.count(key.Channel, res.Outcome, 1, false)
	return res, nil
}

func (l *Ledger) reserve(ctx context.Context, db DBTX, key Key, o options) (Result, error) {
	const query = `SELECT outcome, coalesce(id, 0), coalesce(fence, 0), coalesce(attempt, 0), coalesce(lease_ms, 0),
  coalesce(provider_key, ''), coalesce(retry_after_ms, 0), result::text, coalesce(takeover, false)
FROM ledger.reserve($1::text, $2::text, $3::text, $4::text, $5::text, $6::text::timestamptz,
  lease => $7::text::interval, payload_hash => $8::text)`
	res := Result{Reservation: Reservation{Key: key}}
	var leaseMS, retryMS int64
	var value *string
	asked := time.Now()
	err := db.QueryRow(ctx, query, key.Tenant, key.EventKey, key.Recipient, key.Channel, l.cfg.Worker,
		stamp(key.OccurredAt), interval(o.lease), optional(o.hash)).
		Scan(&res.Outcome, &res.ID, &res.Fence, &res.Attempt, &leaseMS, &res.ProviderKey, &retryMS, &value, &res.takeover)
	if err != nil {
		return Result{}, err
	}
	if res.Outcome == Reserved {
		l.grant(&res.Reservation, asked, leaseMS)
	}
	res.RetryAfter = time.Duration(retryMS) * time.Millisecond
	if value != nil {
		res.Value = json.RawMessage(*value)
	}
	return res, nil
}

// withContent runs fn, after remembering the event in the same transaction if the options say so.
func withContent[T any](ctx context.Context, l *Ledger, db DBTX, ev Event, o options, fn func(DBTX) (T, error)) (T, error) {
	var v T
	run := func(db DBTX) (err error) {
		if o.content != nil {
			if _, err := remember(ctx, db, ev, *o.content); err != nil {
				return err
			}
		}
		v, err = fn(db)
		return err
	}
	if db == nil && o.content != nil {
		return v, l.inTx(ctx, run)
	}
	return v, l.call(ctx, db, run)
}

func (k Key) event() Event {
	return Event{Tenant: k.Tenant, EventKey: k.EventKey, Channel: k.Channel, OccurredAt: k.OccurredAt}
}

const (
	defaultChunk = 1000  // where the caller names none
	maxChunk     = 10000 // what the functions take
)

// ReserveBatch asks for the deliveries of one event to many recipients, chunk of them a transaction (0: 1000, at most 10000), and
// calls fn with each chunk's answers after its commit: one for each distinct recipient, in no promised order. Memory
// and leases are bounded by the chunk, so fn handles one before the next is asked for. An error of fn ends the batch
// and is returned as it is; what was reserved and not finished is taken over when its lease ends. Run again, the
// batch continues: what was delivered answers AlreadyDelivered.
//
// Errors besides: as Reserve.
func (l *Ledger) ReserveBatch(ctx context.Context, ev Event, recipients iter.Seq[string], chunk int, fn func([]Result) error, opts ...Option) error {
	o := collectOptions(opts)
	return inChunks(recipients, chunk, func(list []string) error {
		results, err := l.reserveChunk(ctx, ev, list, o)
		if err != nil {
			return err
		}
		o.content = nil // the first chunk has committed it
		return fn(results)
	})
}

func (l *Ledger) reserveChunk(ctx context.Context, ev Event, recipients []string, o options) ([]Result, error) {
	if err := validateAll(ev, recipients); err != nil {
		return nil, err
	}
	const query = `SELECT recipient, outcome, coalesce(id, 0), coalesce(fence, 0), coalesce(attempt, 0), coalesce(lease_ms, 0),
  coalesce(provider_key, '')
FROM ledger.reserve_batch($1::text, $2::text, $3::text::text[], $4::text, $5::text, $6::text::timestamptz,
  lease => $7::text::interval, payload_hash => $8::text)`
	results, err := withContent(ctx, l, nil, ev, o, func(db DBTX) ([]Result, error) {
		asked := time.Now()
		return collect(ctx, db, func(row Row) (Result, error) {
			res := Result{Reservation: Reservation{Key: ev.Key("")}}
			var leaseMS int64
			err := row.Scan(&res.Key.Recipient, &res.Outcome, &res.ID, &res.Fence, &res.Attempt, &leaseMS, &res.ProviderKey)
			if err == nil && res.Outcome == Reserved {
				l.grant(&res.Reservation, asked, leaseMS)
			}
			return res, err
		}, query, ev.Tenant, ev.EventKey, textArray(recipients), ev.Channel, l.cfg.Worker, stamp(ev.OccurredAt),
			interval(o.lease), optional(o.hash))
	})
	if err != nil {
		return nil, fmt.Errorf("reserve %d deliveries: %w", len(recipients), err)
	}
	l.countAll(ev.Channel, results)
	return results, nil
}

// inChunks calls fn with size recipients at a time.
func inChunks(recipients iter.Seq[string], size int, fn func([]string) error) error {
	if size <= 0 {
		size = defaultChunk
	}
	size = min(size, maxChunk)
	list := make([]string, 0, size)
	for r := range recipients {
		if list = append(list, r); len(list) == size {
			if err := fn(list); err != nil {
				return err
			}
			list = list[:0]
		}
	}
	if len(list) == 0 {
		return nil
	}
	return fn(list)
}

func validateAll(ev Event, recipients []string) error {
	if err := ev.Key("").Validate(); err != nil {
		return err
	}
	for i, r := range recipients {
		if err := checkText("recipient", r, 0, maxRecipient); err != nil {
			return fmt.Errorf("recipient %d: %w", i, err)
		}
	}
	return nil
}

func (l *Ledger) countAll(channel string, results []Result) {
	counts := map[Outcome]int{}
	for _, r := range results {
		counts[r.Outcome]++
	}
	for o, n := range counts {
		l.count(channel, o, n, false)
	}
}
