package ledger

import (
	"context"
	"fmt"
	"time"
)

// Verdict is what a probe or an operator found out about an uncertain effect.
type Verdict string

// The verdicts.
const (
	// VerdictUnknown settles nothing: the row stays uncertain and is asked about again after the lease.
	VerdictUnknown Verdict = ""
	// VerdictDelivered: it happened.
	VerdictDelivered Verdict = "delivered"
	// VerdictNotSent: it did not happen, and will not; the row is tried again. A provider that has not seen a
	// request yet may see it later: answer this only when the request cannot still be on its way.
	VerdictNotSent Verdict = "failed"
	// VerdictDead: it did not happen and shall not.
	VerdictDead Verdict = "dead"
)

// Resolve settles an uncertain row for actor, a person or a program. The outcome is Delivered, Failed or Dead as the
// verdict says, or Fenced: somebody else has claimed or settled it meanwhile.
func (l *Ledger) Resolve(ctx context.Context, r Reservation, v Verdict, actor, note string) (Outcome, error) {
	return l.answer(ctx, nil, r, "resolve", `SELECT ledger.resolve($1::bigint, $2::bigint, $3::text, $4::text, $5::text)`,
		string(v), actor, reasonText(note))
}

// Redrive opens a row again that is dead, skipped or uncertain, for an operator who says why. With resend it takes a
// delivered, dead or uncertain one and makes a new generation of it: another provider key, so that the provider sends
// once more. Outcomes: Redriven, Refused, Gone.
func (l *Ledger) Redrive(ctx context.Context, id int64, actor, reason string, resend bool) (Outcome, error) {
	var outcome Outcome
	err := l.call(ctx, nil, func(db DBTX) error {
		return db.QueryRow(ctx, `SELECT ledger.redrive($1::bigint, $2::text, $3::text, $4::boolean)`,
			id, actor, reasonText(reason), resend).Scan(&outcome)
	})
	if err != nil {
		return "", fmt.Errorf("redrive dispatch %d: %w", id, err)
	}
	return outcome, nil
}

// Swept counts what Sweep moved.
type Swept struct{ ToUncertain, ToDead, ToSkipped int }

// Sweep moves at most n rows on which no attempt will be made to the state that says so: whose holder vanished
// after it began, whose attempts are used up, whose predecessor was skipped or died. Reserve and ClaimDue do the same
// to the rows they meet; Sweep is for those that nobody asks for.
func (l *Ledger) Sweep(ctx context.Context, n int) (Swept, error) {
	var s Swept
	err := l.call(ctx, nil, func(db DBTX) error {
		return db.QueryRow(ctx, `SELECT to_uncertain, to_dead, to_skipped FROM ledger.sweep($1::int)`, n).
			Scan(&s.ToUncertain, &s.ToDead, &s.ToSkipped)
	})
	if err != nil {
		return Swept{}, fmt.Errorf("sweep: %w", err)
	}
	return s, nil
}

// Purge removes at most n rows that have been settled for longer than their channel's retention, and returns how
// many. Call it again while it returns n.
func (l *Ledger) Purge(ctx context.Context, n int) (int, error) {
	var purged int
	err := l.call(ctx, nil, func(db DBTX) error {
		return db.QueryRow(ctx, `SELECT ledger.purge($1::int)`, n).Scan(&purged)
	})
	if err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	return purged, nil
}

// Delivery is the state of one delivery.
type Delivery struct {
	ID, Fence          int64
	Recipient, Channel string
	State              State
	Attempts           int
	Reason             string    // why it is in this state; may be empty
	DoneAt             time.Time // zero: not settled
}

// Status lists the deliveries of an event, for operators and for clients that reconnect.
func (l *Ledger) Status(ctx context.Context, tenant, eventKey string) ([]Delivery, error) {
	const query = `SELECT id, fence, recipient, channel, state, attempts, coalesce(reason, ''), done_at
FROM ledger.status($1::text, $2::text)`
	var list []Delivery
	err := l.call(ctx, nil, func(db DBTX) (err error) {
		list, err = collect(ctx, db, func(row Row) (d Delivery, err error) {
			var done *time.Time
			err = row.Scan(&d.ID, &d.Fence, &d.Recipient, &d.Channel, &d.State, &d.Attempts, &d.Reason, &done)
			if done != nil {
				d.DoneAt = *done
			}
			return d, err
		}, query, tenant, eventKey)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return list, nil
}

// StateCount says how many rows of a channel are in a state.
type StateCount struct {
	Channel string
	State   State
	N       int64
	Oldest  time.Time // of the rows' times that matter in this state: due, reserved or settled; zero: none
}

// States counts the ledger's rows, for gauges.
func (l *Ledger) States(ctx context.Context) ([]StateCount, error) {
	var list []StateCount
	err := l.call(ctx, nil, func(db DBTX) (err error) {
		list, err = collect(ctx, db, func(row Row) (c StateCount, err error) {
			var oldest *time.Time
			err = row.Scan(&c.Channel, &c.State, &c.N, &oldest)
			if oldest != nil {
				c.Oldest = *oldest
			}
			return c, err
		}, `SELECT channel, state, n, oldest FROM ledger.stats()`)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count states: %w", err)
	}
	return list, nil
}
