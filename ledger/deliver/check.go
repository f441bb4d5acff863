package deliver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/ledger"
)

// Check has the application's database prepare and plan every query of the rules, and looks at what each returns: that
// finds names that are not there, types that do not fit and rights that are missing. It runs none and changes nothing.
// Errors: *QueryError, all of them, joined; the driver's.
func (w *Worker) Check(ctx context.Context) error {
	conn, err := w.app.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var errs []error
	for _, r := range w.rules.Rules {
		for _, c := range []struct {
			query   *Query
			columns func([]pgconn.FieldDescription) error
		}{
			{r.Recipients, recipientColumns}, {r.Eligible, verdictColumns}, {r.Discover, discoverColumns},
		} {
			if c.query == nil {
				continue
			}
			if err := c.query.check(ctx, conn.Conn(), c.columns); err != nil {
				errs = append(errs, c.query.fail(err))
			}
			if conn.Conn().IsClosed() {
				return errors.Join(errs...)
			}
		}
	}
	return errors.Join(errs...)
}

// check plans the query with NULLs for its parameters: rights are looked at only then.
func (q *Query) check(ctx context.Context, conn *pgx.Conn, columns func([]pgconn.FieldDescription) error) (err error) {
	const name = "relay_deliver_check"
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		// What is prepared outlives a transaction that is rolled back. It is dropped while the session is ours: behind a
		// pooler it may be another's afterwards.
		if cleaning := errors.Join(conn.Deallocate(ctx, name), tx.Rollback(ctx)); err == nil {
			err = cleaning
		}
	}()
	prepared, err := conn.PgConn().Prepare(ctx, name, q.text, nil)
	if err != nil {
		return err
	}
	if err := columns(prepared.Fields); err != nil {
		return err
	}
	plan := "EXPLAIN EXECUTE " + name
	if n := len(q.names); n > 0 {
		plan += "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
	}
	_, err = conn.PgConn().Exec(ctx, plan).ReadAll()
	return err
}

func recipientColumns(fields []pgconn.FieldDescription) error {
	if len(fields) != 1 {
		return fmt.Errorf("returns %d columns, want one: the recipient, as text such as user:42", len(fields))
	}
	const text, varchar, unknown = 25, 1043, 705
	if !slices.Contains([]uint32{text, varchar, unknown}, fields[0].DataTypeOID) {
		return errors.New("its column is not text: write 'user:' || id")
	}
	return nil
}

func discoverColumns(fields []pgconn.FieldDescription) error {
	var names []string
	for _, f := range fields {
		if !slices.Contains(discoveryColumns(), f.Name) {
			return fmt.Errorf("returns a column %q: %s", f.Name, suggest(f.Name, discoveryColumns(), "it may return event_key, occurred_at, tenant, aggregate_type, aggregate_id and payload"))
		}
		names = append(names, f.Name)
	}
	for _, need := range discoveryColumns()[:2] {
		if !slices.Contains(names, need) {
			return fmt.Errorf("returns no column %s", need)
		}
	}
	return nil
}

// Explanation is what a rule would do with an event for one recipient, now.
type Explanation struct {
	Rule      string             `json:"rule"`
	Recipient string             `json:"recipient"`
	Eligible  bool               `json:"eligible"`
	Reason    string             `json:"reason,omitempty"` // why not, or what went wrong
	Channels  []ChannelRendering `json:"channels,omitempty"`
}

// ChannelRendering is what would be sent on a channel.
type ChannelRendering struct {
	Channel string            `json:"channel"`
	Fields  map[string]string `json:"fields,omitempty"`
	Error   string            `json:"error,omitempty"`
}

// Explain calls f with what the rules would do with e, recipient by recipient, until f returns false. Nothing is sent,
// and everything the queries do is rolled back. Errors: *RecordError, *QueryError; the driver's.
func (w *Worker) Explain(ctx context.Context, e *Event, f func(Explanation) bool) error {
	if err := e.prepare(); err != nil {
		return err
	}
	rules := w.rules.byType(e.Type)
	if len(rules) == 0 {
		return &RecordError{ClassUnknownType, fmt.Sprintf("no rule names event type %q", e.Type)}
	}
	for _, r := range rules {
		if _, err := r.notBefore(e); err != nil {
			return err
		}
		err := w.explainRule(ctx, r, e, f)
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errEnough ends a stream of recipients.
var errEnough = errors.New("enough")

func (w *Worker) explainRule(ctx context.Context, r *Rule, e *Event, f func(Explanation) bool) error {
	invalid, err := w.app.recipients(ctx, r, e, 20, func(list []string) error {
		for _, to := range list {
			x := w.explainOne(ctx, r, e, to)
			if !f(x) {
				return errEnough
			}
		}
		return nil
	})
	if err == nil && invalid > 0 {
		err = &RecordError{ClassRecipients, fmt.Sprintf("rule %q: %d recipients are NULL, empty or longer than 255 characters", r.Name, invalid)}
	}
	return err
}

func (w *Worker) explainOne(ctx context.Context, r *Rule, e *Event, recipient string) Explanation {
	x := Explanation{Rule: r.Name, Recipient: recipient}
	var v verdict
	// A channel's name is a parameter too; the first stands for all.
	err := rolledBack(ctx, w.app, func(tx pgx.Tx) (err error) {
		v, err = w.app.eligible(ctx, tx, r, e, recipient, r.Channels[0].Name)
		return err
	})
	switch {
	case errors.Is(err, ledger.ErrMissing):
		x.Reason = fmt.Sprintf("missing: tried again until the event is %v old, then skipped", w.cfg.Grace)
		return x
	case err != nil:
		x.Reason = "failed, and tried again: " + err.Error()
		return x
	case !v.ok:
		x.Reason = v.reason
		return x
	}
	x.Eligible, x.Reason = true, v.reason
	for _, c := range r.Channels {
		rendering := ChannelRendering{Channel: c.Name}
		if rendering.Fields, err = c.render(e.view(recipient, v.data)); err != nil {
			rendering.Error = err.Error()
		}
		x.Channels = append(x.Channels, rendering)
	}
	return x
}

// rolledBack runs f in a transaction that does not stand.
func rolledBack(ctx context.Context, d *database, f func(pgx.Tx) error) error {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return err
	}
	err = f(tx)
	return errors.Join(err, tx.Rollback(ctx))
}
