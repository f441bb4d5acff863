package deliver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
)

// database is the application's, in which the rules' queries run.
type database struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of a query about one recipient
	same    bool          // the ledger is in it too
}

// describe is how queries travel: prepared by the server, so that each parameter has the type of its place, and
// without a name, so that a pooler may stand between.
const describe = pgx.QueryExecModeCacheDescribe

// arguments puts the mode before a query's values.
func (q *Query) arguments(values map[string]any) []any {
	return append([]any{describe}, q.args(values)...)
}

// recipients calls f with the recipients of e, chunk at a time, as they arrive. invalid counts those that are no
// recipients. It runs in a transaction that can change nothing.
func (d *database) recipients(ctx context.Context, r *Rule, e *Event, chunk int, f func([]string) error) (invalid int, err error) {
	err = pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if r.MaxRecipients > 0 {
			if err := d.count(ctx, tx, r, e); err != nil {
				return err
			}
		}
		invalid, err = streamRecipients(ctx, tx, r.Recipients, e, chunk, f)
		return err
	})
	return invalid, err
}

func streamRecipients(ctx context.Context, tx pgx.Tx, q *Query, e *Event, chunk int, f func([]string) error) (invalid int, err error) {
	rows, err := tx.Query(ctx, q.text, q.arguments(e.params())...)
	if err != nil {
		return 0, q.fail(err)
	}
	defer rows.Close()
	list := make([]string, 0, chunk)
	for rows.Next() {
		if n := len(rows.FieldDescriptions()); n != 1 {
			return invalid, q.fail(fmt.Errorf("returns %d columns, want one: the recipient", n))
		}
		var to *string
		if err := rows.Scan(&to); err != nil {
			return invalid, q.fail(err)
		}
		if to == nil || *to == "" || (ledger.Key{EventKey: "-", Channel: "-", Recipient: *to}).Validate() != nil {
			invalid++
			continue
		}
		if list = append(list, *to); len(list) == chunk {
			if err := f(list); err != nil {
				return invalid, err
			}
			list = list[:0]
		}
	}
	if err := rows.Err(); err != nil {
		return invalid, q.fail(err)
	}
	if len(list) > 0 {
		return invalid, f(list)
	}
	return invalid, nil
}

// count refuses an event with more recipients than the rule allows, before any is registered.
func (d *database) count(ctx context.Context, tx pgx.Tx, r *Rule, e *Event) error {
	q := *r.Recipients
	q.line = 0 // positions are not those of the file
	q.text = fmt.Sprintf("SELECT count(*) FROM (SELECT FROM (%s\n) AS recipients LIMIT %d) AS counted", q.text, r.MaxRecipients+1)
	var n int
	if err := tx.QueryRow(ctx, q.text, q.arguments(e.params())...).Scan(&n); err != nil {
		return q.fail(err)
	}
	if n > r.MaxRecipients {
		return &RecordError{ClassTooMany, fmt.Sprintf("rule %q: more than %d recipients", r.Name, r.MaxRecipients)}
	}
	return nil
}

// verdict is the answer of a rule's eligibility query.
type verdict struct {
	ok     bool
	reason string
	data   map[string]any // further columns
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// reasonMissing is the reason that says that a business row is not there, which may be because it is not visible yet.
const reasonMissing = "missing"

// eligible asks whether a recipient may have e. Anything but one row of a boolean and a reason is an error: nobody
// knows, and nothing is sent. ledger.ErrMissing: the business row is not there.
func (d *database) eligible(ctx context.Context, db querier, r *Rule, e *Event, recipient, channel string) (verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	q := r.Eligible
	// As text, which is how PostgreSQL writes a number or a time: templates show what psql would.
	args := append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, q.arguments(withRecipient(e.params(), recipient, channel))...)
	rows, err := db.Query(ctx, q.text, args...)
	if err != nil {
		return verdict{}, q.fail(err)
	}
	defer rows.Close()
	var v verdict
	n := 0
	for ; rows.Next(); n++ {
		if n > 0 {
			continue
		}
		if v, err = scanVerdict(rows); err != nil {
			return verdict{}, q.fail(err)
		}
	}
	switch err := rows.Err(); {
	case err != nil:
		return verdict{}, q.fail(err)
	case n != 1:
		return verdict{}, q.fail(fmt.Errorf("returned %d rows, want exactly one", n))
	case !v.ok && v.reason == reasonMissing:
		return verdict{}, ledger.ErrMissing
	}
	return v, nil
}

func scanVerdict(rows pgx.Rows) (verdict, error) {
	fields := rows.FieldDescriptions()
	if err := verdictColumns(fields); err != nil {
		return verdict{}, err
	}
	raw := rows.RawValues()
	if raw[0] == nil {
		return verdict{}, errors.New("the boolean is NULL")
	}
	v := verdict{ok: string(raw[0]) == "t", reason: string(raw[1]), data: map[string]any{}}
	if !v.ok && v.reason == "" {
		v.reason = "not eligible"
	}
	for i, f := range fields[2:] {
		value, err := column(f.DataTypeOID, raw[2+i])
		if err != nil {
			return verdict{}, fmt.Errorf("column %q: %w", f.Name, err)
		}
		v.data[f.Name] = value
	}
	return v, nil
}

// column makes a template's value of a column in text form: booleans and JSON are what they are, all else is text, and
// NULL is empty.
func column(oid uint32, text []byte) (any, error) {
	switch {
	case text == nil:
		return "", nil
	case oid == pgtype.BoolOID:
		return string(text) == "t", nil
	case oid == pgtype.JSONOID || oid == pgtype.JSONBOID:
		return parseJSON(text)
	}
	return string(text), nil
}

// verdictColumns checks what an eligibility query returns.
func verdictColumns(fields []pgconn.FieldDescription) error {
	texts := map[uint32]bool{pgtype.TextOID: true, pgtype.VarcharOID: true, pgtype.BPCharOID: true, pgtype.NameOID: true, pgtype.UnknownOID: true}
	switch {
	case len(fields) < 2:
		return fmt.Errorf("returns %d columns, want a boolean and a reason, and further ones for templates", len(fields))
	case fields[0].DataTypeOID != pgtype.BoolOID:
		return errors.New("its first column is not boolean")
	case !texts[fields[1].DataTypeOID]:
		return errors.New("its second column, the reason, is not text")
	}
	return nil
}

// refused reports whether a query's error is the event's own fault: its values are none that the query takes. Names
// and rights are the rules' fault, and everything else may be gone in a moment.
func refused(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pg.Code) != 5 {
		return false
	}
	switch pg.Code[:2] {
	case "21", "22", "23", "P0": // cardinality, data, constraint, raised by a function
		return true
	}
	return false
}
