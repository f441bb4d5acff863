package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
)

// maker makes single deliveries: it asks whether the recipient may have the event, and lets the channel act.
type maker struct {
	rules  *Rules
	app    *database
	ledger *ledger.Ledger
	pool   *pgxpool.Pool // the ledger's
	grace  time.Duration // see ledger.Config.Grace
}

// noRuleRetry is how long a delivery waits that no rule is there for: another process may have newer rules.
const noRuleRetry = time.Minute

// attempt works on a claimed delivery to its end. When soft ends nothing begins any more, when hard ends what has
// begun is told to stop. The error says why, and is for nobody's log: it may name a recipient.
func (m *maker) attempt(soft, hard context.Context, r ledger.Reservation) (ledger.Outcome, error) {
	rule, channel := m.rules.of(r.Content.Type, r.Key.Channel)
	if rule == nil {
		return m.fail(hard, r, ledger.RetryAfter(noRuleRetry, fmt.Errorf("no rule delivers event type %q on this channel", r.Content.Type)))
	}
	e, err := remembered(r)
	if err != nil {
		return m.fail(hard, r, ledger.Permanent(err))
	}
	setting := m.rules.setting(r.Key.Channel)
	if setting.writer != nil {
		return m.write(soft, hard, r, &e, rule, channel, setting.writer)
	}
	var data map[string]any
	return m.ledger.Attempt(soft, hard, r, ledger.Handler{
		Eligible: func(ctx context.Context, k ledger.Key, _ ledger.DBTX) (bool, string, error) {
			v, err := m.app.eligible(ctx, m.app.pool, rule, &e, k.Recipient, k.Channel)
			data = v.data
			return v.ok, v.reason, safe(m.patient(r, err))
		},
		Effect: func(ctx context.Context, r ledger.Reservation) (string, error) {
			d, err := delivery(r, &e, channel, data)
			if err != nil {
				return "", ledger.Permanent(err)
			}
			return setting.sender.Send(ctx, d)
		},
	})
}

func delivery(r ledger.Reservation, e *Event, channel *RuleChannel, data map[string]any) (Delivery, error) {
	fields, err := channel.render(e.view(r.Key.Recipient, data))
	return Delivery{Key: r.Key, Event: *e, Attempt: r.Attempt, ProviderKey: r.ProviderKey, Fields: fields}, err
}

// write makes a delivery that is a row of the ledger's database: question, record and row are one transaction. Where
// the application's tables are in that database too, the question is asked in it, so what it locks stays as it was
// until the row is there.
func (m *maker) write(soft, hard context.Context, r ledger.Reservation, e *Event, rule *Rule, channel *RuleChannel, w Writer) (ledger.Outcome, error) {
	if soft.Err() != nil {
		outcome, err := m.ledger.Release(context.WithoutCancel(hard), r)
		return outcome, errors.Join(context.Cause(soft), err)
	}
	ctx, cancel := context.WithDeadlineCause(hard, r.Deadline, ledger.ErrLeaseOver)
	defer cancel()
	var outcome ledger.Outcome
	err := pgx.BeginTxFunc(ctx, m.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		outcome, err = m.writeIn(ctx, tx, r, e, rule, channel, w)
		return err
	})
	if err != nil {
		return m.fail(hard, r, err)
	}
	return outcome, nil
}

func (m *maker) writeIn(ctx context.Context, tx pgx.Tx, r ledger.Reservation, e *Event, rule *Rule, channel *RuleChannel, w Writer) (ledger.Outcome, error) {
	var where querier = m.app.pool
	if m.app.same {
		where = tx
	}
	v, err := m.app.eligible(ctx, where, rule, e, r.Key.Recipient, r.Key.Channel)
	if errors.Is(err, ledger.ErrMissing) && time.Since(r.Key.OccurredAt) > m.grace {
		v, err = verdict{reason: reasonMissing}, nil
	}
	if err != nil {
		return "", m.patient(r, err)
	}
	db := ledger.Pgx(tx)
	if !v.ok {
		return m.ledger.Skip(ctx, db, r, v.reason)
	}
	d, err := delivery(r, e, channel, v.data)
	if err != nil {
		return "", ledger.Permanent(err)
	}
	outcome, err := m.ledger.Complete(ctx, db, r, "", nil)
	if err != nil {
		return "", err
	}
	if outcome == ledger.Delivered || outcome == ledger.LateAccepted {
		if err := w.Write(ctx, db, d); err != nil {
			return "", err
		}
	}
	return outcome, nil
}

// patient has a delivery whose business row is missing wait for the end of the grace from its second attempt on: the
// attempts that a channel allows might be used up before.
func (m *maker) patient(r ledger.Reservation, err error) error {
	left := m.grace - time.Since(r.Key.OccurredAt)
	if errors.Is(err, ledger.ErrMissing) && r.Attempt > 1 && left > 0 {
		return ledger.RetryAfter(left+time.Second, err)
	}
	return err
}

// fail records that nothing happened: the transaction, if there was one, is rolled back. What its error is marked
// with counts.
func (m *maker) fail(ctx context.Context, r ledger.Reservation, cause error) (ledger.Outcome, error) {
	kind, after := ledger.Classify(cause)
	if kind == ledger.KindAmbiguous { // a commit whose answer was lost: then the row is delivered, and this is fenced
		kind = ledger.KindRetry
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	outcome, err := m.ledger.Fail(bounded, r, kind, "check eligibility or write: "+safeText(cause), after)
	if err != nil {
		return "", errors.Join(cause, err) // the lease ends, and somebody takes over
	}
	return outcome, cause
}

// safe drops what an error may quote of the data, for the ledger keeps its text.
func safe(err error) error {
	q, ok := errors.AsType[*QueryError](err)
	if !ok || errors.Is(err, ledger.ErrMissing) {
		return err
	}
	return errors.New(q.SafeText())
}
