package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// BeginEffect asks, right before an effect, whether it may start, and stamps the row. Only Begun says yes; by then
// the stamp is committed. From there on the row is uncertain if nothing more is heard of it. It runs on the ledger's
// pool and in no caller's transaction, which could still roll back. The lease must have Config.MinLeft left.
//
// AlreadyBegun is a no: another call with this reservation may have started the effect.
func (l *Ledger) BeginEffect(ctx context.Context, r Reservation) (Outcome, error) {
	minLeft := l.cfg.MinLeft
	if r.lease > 0 {
		minLeft = min(minLeft, r.lease/2)
	}
	// Not interval: there NULL is not the default, and zero is a fair value.
	return l.answer(ctx, nil, r, "begin effect", `SELECT ledger.begin_effect($1::bigint, $2::bigint, $3::text::interval)`,
		span(minLeft))
}

// Renew extends the lease and returns the reservation with its new deadline. The outcome is Renewed, or says why the
// reservation is returned as it was: HoldCap, LeaseOver, Fenced or Gone. lease 0 is the channel's.
func (l *Ledger) Renew(ctx context.Context, r Reservation, lease time.Duration) (Reservation, Outcome, error) {
	const query = `SELECT outcome, coalesce(lease_ms, 0) FROM ledger.renew($1::bigint, $2::bigint, $3::text::interval)`
	var outcome Outcome
	renewed := r
	err := l.call(ctx, nil, func(db DBTX) error {
		var leaseMS int64
		asked := time.Now()
		if err := db.QueryRow(ctx, query, r.ID, r.Fence, interval(lease)).Scan(&outcome, &leaseMS); err != nil {
			return err
		}
		if outcome == Renewed {
			l.grant(&renewed, asked, leaseMS)
		}
		return nil
	})
	if err != nil {
		return r, "", fmt.Errorf("renew lease of dispatch %d: %w", r.ID, err)
	}
	l.count(r.Key.Channel, outcome, 1, false)
	return renewed, outcome, nil
}

// Complete records that the effect happened, with the provider's reference and a JSON value of the caller's, both
// optional. A success is a fact, so it is taken after the lease's end too if that can still prevent a second one:
// LateAccepted. Fenced means that another holder has begun its effect, so it may happen twice. NotBegun: the channel
// is guarded, and BeginEffect was not asked.
//
// On a channel whose effect is a row of the same database, call it in the transaction that writes the row, and
// write it only when the answer is Delivered or LateAccepted.
func (l *Ledger) Complete(ctx context.Context, db DBTX, r Reservation, ref string, value json.RawMessage) (Outcome, error) {
	return l.answer(ctx, db, r, "complete", `SELECT ledger.complete($1::bigint, $2::bigint, $3::text, $4::text::jsonb)`,
		optional(ref), document(value))
}

// Fail records that the effect failed. The outcome is Failed, Dead or Uncertain, as kind, the attempts left and the
// channel's policy decide; Fenced: somebody else has the row, and nothing changed. after 0 is the channel's backoff.
func (l *Ledger) Fail(ctx context.Context, r Reservation, kind Kind, reason string, after time.Duration) (Outcome, error) {
	return l.answer(ctx, nil, r, "fail", `SELECT ledger.fail($1::bigint, $2::bigint, $3::text, $4::text, $5::text::interval)`,
		string(kind), reasonText(reason), interval(after))
}

// Skip records that the recipient is not eligible, which is final. It is for a reservation whose effect has not
// begun. On a channel whose effect is a row of the same database, call it in the transaction that checked.
func (l *Ledger) Skip(ctx context.Context, db DBTX, r Reservation, reason string) (Outcome, error) {
	return l.answer(ctx, db, r, "skip", `SELECT ledger.skip($1::bigint, $2::bigint, $3::text)`, reasonText(reason))
}

// Release gives back a reservation whose effect has not begun, as if the attempt had not been made.
func (l *Ledger) Release(ctx context.Context, r Reservation) (Outcome, error) {
	return l.answer(ctx, nil, r, "release", `SELECT ledger.release($1::bigint, $2::bigint)`)
}

// answer asks one of the functions that take id and fence and return an outcome.
func (l *Ledger) answer(ctx context.Context, db DBTX, r Reservation, verb, query string, args ...any) (Outcome, error) {
	var outcome Outcome
	err := l.call(ctx, db, func(db DBTX) error {
		return db.QueryRow(ctx, query, append([]any{r.ID, r.Fence}, args...)...).Scan(&outcome)
	})
	if err != nil {
		return "", fmt.Errorf("%s dispatch %d: %w", verb, r.ID, err)
	}
	l.count(r.Key.Channel, outcome, 1, verb == "complete")
	return outcome, nil
}

// Completion is one success for CompleteBatch.
type Completion struct {
	Reservation Reservation
	Ref         string // the provider's reference; may be empty
}

// CompleteBatch is Complete for many reservations in one statement. The outcomes are in the order of list.
func (l *Ledger) CompleteBatch(ctx context.Context, db DBTX, list []Completion) ([]Outcome, error) {
	ids, fences, refs := make([]int64, len(list)), make([]int64, len(list)), make([]string, len(list))
	for i, c := range list {
		ids[i], fences[i], refs[i] = c.Reservation.ID, c.Reservation.Fence, c.Ref
	}
	type answer struct {
		id      int64
		outcome Outcome
	}
	// An empty reference is none; array elements travel as text and cannot say NULL.
	const query = `SELECT id, outcome FROM ledger.complete_batch($1::text::bigint[], $2::text::bigint[],
  ARRAY(SELECT nullif(r, '') FROM unnest($3::text::text[]) WITH ORDINALITY AS u (r, n) ORDER BY n))`
	var answers []answer
	err := l.call(ctx, db, func(db DBTX) (err error) {
		answers, err = collect(ctx, db, func(row Row) (a answer, err error) {
			return a, row.Scan(&a.id, &a.outcome)
		}, query, intArray(ids), intArray(fences), textArray(refs))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("complete %d dispatches: %w", len(list), err)
	}
	byID := make(map[int64]Outcome, len(answers))
	for _, a := range answers {
		byID[a.id] = a.outcome
	}
	outcomes := make([]Outcome, len(list))
	for i, c := range list {
		outcomes[i] = byID[c.Reservation.ID]
		l.count(c.Reservation.Key.Channel, outcomes[i], 1, true)
	}
	return outcomes, nil
}
