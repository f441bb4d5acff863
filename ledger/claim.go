package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// ClaimDue reserves at most n rows of the channels that are due: registered ones, retries, and those whose holder
// has let its lease end before it began the effect. Rows on which nothing can be done but to change their state
// (dead, uncertain, skipped) are changed and not returned. Take no more than can be worked on at once, for every
// lease runs from the call.
func (l *Ledger) ClaimDue(ctx context.Context, channels []string, n int, opts ...Option) ([]Reservation, error) {
	o := collectOptions(opts)
	const query = `SELECT id, fence, attempt, tenant, event_key, recipient, channel, provider_key, lease_ms,
  coalesce(event_type, ''), payload, headers::text, occurred_at, takeover
FROM ledger.claim_due($1::text, $2::text::text[], $3::int, lease => $4::text::interval)`
	var list []Reservation
	err := l.call(ctx, nil, func(db DBTX) (err error) {
		asked := time.Now()
		list, err = collect(ctx, db, func(row Row) (r Reservation, err error) {
			var leaseMS int64
			var headers *string
			var occurredAt *time.Time
			if err := row.Scan(&r.ID, &r.Fence, &r.Attempt, &r.Key.Tenant, &r.Key.EventKey, &r.Key.Recipient, &r.Key.Channel,
				&r.ProviderKey, &leaseMS, &r.Content.Type, &r.Content.Payload, &headers, &occurredAt,
				&r.takeover); err != nil {
				return r, err
			}
			l.grant(&r, asked, leaseMS)
			if occurredAt != nil {
				r.Key.OccurredAt = *occurredAt
			}
			if headers != nil {
				if err := json.Unmarshal([]byte(*headers), &r.Content.Headers); err != nil {
					return r, fmt.Errorf("headers of dispatch %d: %w", r.ID, err)
				}
			}
			return r, nil
		}, query, l.cfg.Worker, textArray(channels), n, interval(o.lease))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim due dispatches: %w", err)
	}
	for _, r := range list {
		l.count(r.Key.Channel, Reserved, 1, false)
	}
	return list, nil
}

// ClaimUncertain takes at most n uncertain rows of the channels for asking their provider; nobody else gets them
// until the lease ends. Resolve settles each. lease 0 is the channel's.
func (l *Ledger) ClaimUncertain(ctx context.Context, channels []string, n int, lease time.Duration) ([]Reservation, error) {
	const query = `SELECT id, fence, tenant, event_key, recipient, channel, provider_key, coalesce(provider_ref, ''),
  first_effect_at, lease_ms
FROM ledger.claim_uncertain($1::text, $2::text::text[], $3::int, $4::text::interval)`
	var list []Reservation
	err := l.call(ctx, nil, func(db DBTX) (err error) {
		asked := time.Now()
		list, err = collect(ctx, db, func(row Row) (r Reservation, err error) {
			var leaseMS int64
			var begun *time.Time
			err = row.Scan(&r.ID, &r.Fence, &r.Key.Tenant, &r.Key.EventKey, &r.Key.Recipient, &r.Key.Channel,
				&r.ProviderKey, &r.ProviderRef, &begun, &leaseMS)
			if begun != nil {
				r.FirstEffectAt = *begun
			}
			l.grant(&r, asked, leaseMS)
			return r, err
		}, query, l.cfg.Worker, textArray(channels), n, interval(lease))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim uncertain dispatches: %w", err)
	}
	return list, nil
}
