package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
)

// RecordOutcome is what became of a record.
type RecordOutcome string

// The outcomes.
const (
	RecordRegistered RecordOutcome = "registered" // its deliveries are in the ledger, new or known
	RecordIgnored    RecordOutcome = "ignored"    // nobody is to be told, and a policy says that this is well
	RecordParked     RecordOutcome = "parked"     // it cannot be handled, and is kept for a person
)

// RecordOutcomes lists them.
func RecordOutcomes() []RecordOutcome {
	return []RecordOutcome{RecordRegistered, RecordIgnored, RecordParked}
}

// registrar makes deliveries of events known to the ledger.
type registrar struct {
	rules  *Rules
	app    *database
	ledger *ledger.Ledger
	pool   *pgxpool.Pool // the ledger's
	chunk  int
	count  *counters
}

// record handles one record: when it returns nil, what is to be delivered is committed, or the record is parked, and
// its offset may be committed. An error says that nothing is known; the same record is tried again.
func (g *registrar) record(ctx context.Context, rec *Record) (RecordOutcome, error) {
	e, err := rec.event()
	if err == nil && len(g.rules.byType(e.Type)) == 0 {
		if g.rules.UnknownTypes == Ignore {
			return RecordIgnored, nil
		}
		err = &RecordError{ClassUnknownType, fmt.Sprintf("no rule names event type %q", e.Type)}
	}
	if err == nil {
		_, err = g.event(ctx, &e)
	}
	bad, isBad := errors.AsType[*RecordError](err)
	switch {
	case err == nil:
		return RecordRegistered, nil
	case !isBad:
		return "", err
	case bad.Class == ClassForeign && g.rules.ForeignRecords == Ignore:
		return RecordIgnored, nil
	}
	if err := g.park(ctx, rec, bad); err != nil {
		return "", err
	}
	g.count.parked(bad.Class)
	return RecordParked, nil
}

// event registers the deliveries of e, by every rule of its type. Recipients come in chunks, each a transaction, so
// that a crash in the middle costs nothing but reading again. A *RecordError says that e itself is at fault.
func (g *registrar) event(ctx context.Context, e *Event) (ledger.Registration, error) {
	var sum ledger.Registration
	if err := e.prepare(); err != nil {
		return sum, err
	}
	known, err := g.remember(ctx, e)
	if err != nil {
		return sum, err
	}
	if known != e.Type {
		return sum, &RecordError{ClassKeyReused, fmt.Sprintf("its event key names an event of type %q", known)}
	}
	var bad error
	for _, r := range g.rules.byType(e.Type) {
		n, err := g.rule(ctx, r, e)
		sum.Inserted += n.Inserted
		sum.Known += n.Known
		sum.Expired += n.Expired
		if _, isBad := errors.AsType[*RecordError](err); err != nil && !isBad {
			return sum, err
		}
		bad = errors.Join(bad, err) // the other rules' recipients are not to suffer
	}
	return sum, bad
}

// remember keeps what later attempts need, and returns the type that the event key was first used with.
func (g *registrar) remember(ctx context.Context, e *Event) (eventType string, err error) {
	ev := ledger.Event{Tenant: e.Tenant, EventKey: e.Key, OccurredAt: e.OccurredAt}
	isNew, err := g.ledger.Remember(ctx, nil, ev, e.content())
	if err != nil || isNew {
		return e.Type, refusedEvent(err)
	}
	var known *string
	if err := g.pool.QueryRow(ctx, "SELECT ledger.remembered_type($1::text, $2::text)", describe, e.Tenant, e.Key).Scan(&known); err != nil {
		return "", fmt.Errorf("look up event key: %w", err)
	}
	if known == nil { // purged in between: the next try remembers it anew
		return "", errors.New("look up event key: it is gone")
	}
	return *known, nil
}

// refusedEvent makes the ledger's refusal of an argument the event's fault.
func refusedEvent(err error) error {
	if _, ok := errors.AsType[*ledger.KeyError](err); ok || refused(err) {
		return &RecordError{ClassKeyInvalid, "the ledger refuses the event: " + err.Error()}
	}
	return err
}

func (g *registrar) rule(ctx context.Context, r *Rule, e *Event) (sum ledger.Registration, err error) {
	at, err := r.notBefore(e)
	if err != nil {
		return sum, err
	}
	var opts []ledger.Option
	if !at.IsZero() {
		opts = append(opts, ledger.WithNotBefore(at))
	}
	invalid, err := g.app.recipients(ctx, r, e, g.chunk, func(list []string) error {
		// A channel before the one that follows it: what follows looks for its predecessor.
		for _, c := range r.Channels {
			ev := ledger.Event{Tenant: e.Tenant, EventKey: e.Key, Channel: c.Name, OccurredAt: e.OccurredAt}
			n, err := g.ledger.RegisterBatch(ctx, nil, ev, slices.Values(list), g.chunk, opts...)
			if err != nil {
				return err
			}
			g.count.registered(c.Name, n)
			sum.Inserted += n.Inserted
			sum.Known += n.Known
			sum.Expired += n.Expired
		}
		return nil
	})
	switch {
	case isQuery(err) && refused(err):
		return sum, &RecordError{ClassQuery, safeText(err)}
	case err != nil:
		return sum, err
	case invalid > 0:
		return sum, &RecordError{ClassRecipients, fmt.Sprintf("rule %q: %d recipients are NULL, empty or longer than 255 characters", r.Name, invalid)}
	}
	return sum, nil
}

// park keeps the record.
func (g *registrar) park(ctx context.Context, rec *Record, why *RecordError) error {
	headers := map[string]string{}
	for name, value := range rec.headers() {
		headers[storable(name)] = storable(value)
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return fmt.Errorf("park record: %w", err)
	}
	_, err = g.pool.Exec(ctx, `SELECT ledger.park_record($1::text, $2::integer, $3::bigint, $4::text, $5::text, $6::bytea, $7::bytea, $8::text::jsonb)`,
		describe, rec.Topic, rec.Partition, rec.Offset, string(why.Class), storable(why.Reason), rec.Key, rec.Value, string(text))
	if err != nil {
		return fmt.Errorf("park record: %w", err)
	}
	return nil
}

// isQuery reports whether err is that of a rule's query, and not of the ledger.
func isQuery(err error) bool {
	_, ok := errors.AsType[*QueryError](err)
	return ok
}

// safeText is an error's text without what it may quote of the data.
func safeText(err error) string {
	if q, ok := errors.AsType[*QueryError](err); ok {
		return q.SafeText()
	}
	return err.Error()
}
