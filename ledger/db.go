package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// DBTX runs statements on a pool, a connection or a transaction. Pgx and SQL make one. QueryRow's Scan returns an
// error that is sql.ErrNoRows to errors.Is when there is no row, whichever it came from. Rows must be closed.
type DBTX interface {
	Exec(ctx context.Context, query string, args ...any) (changed int64, err error)
	Query(ctx context.Context, query string, args ...any) (Rows, error)
	QueryRow(ctx context.Context, query string, args ...any) Row

	kind() kind
	// transact runs fn in a new READ COMMITTED transaction and commits it unless fn fails. Only of a pool.
	transact(ctx context.Context, fn func(DBTX) error) error
	// write writes events to the outbox. Only of a transaction.
	write(ctx context.Context, events []outbox.Event) error
}

// Rows is what both drivers have in common.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close()
}

// Row is the only row of a result.
type Row interface{ Scan(dest ...any) error }

type kind int

const (
	single kind = iota // a connection
	pool
	transaction
)

// PgxQuerier is implemented by *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn and pgx.Tx.
type PgxQuerier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// SQLQuerier is implemented by *sql.DB, *sql.Conn and *sql.Tx.
type SQLQuerier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Pgx adapts what pgx has. Every default_query_exec_mode works.
func Pgx(x PgxQuerier) DBTX { return pgxDB{x} }

// SQL adapts what database/sql has. It sends only text, numbers and bytes, so it does not depend on the driver.
func SQL(x SQLQuerier) DBTX { return sqlDB{x} }

// Write writes events to the outbox in the transaction tx, see outbox.Write. Errors: ErrNoTransaction and those of
// outbox.Write.
func Write(ctx context.Context, tx DBTX, events ...outbox.Event) error {
	if !inTransaction(tx) {
		return ErrNoTransaction
	}
	return tx.write(ctx, events)
}

func inTransaction(db DBTX) bool {
	if db == nil || db.kind() != transaction {
		return false
	}
	if p, ok := db.(pgxDB); ok {
		if c := p.PgxQuerier.(pgx.Tx).Conn(); c != nil && c.PgConn().TxStatus() == 'I' {
			return false
		}
	}
	return true
}

type pgxDB struct{ PgxQuerier }

func (p pgxDB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := p.PgxQuerier.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (p pgxDB) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	return p.PgxQuerier.Query(ctx, query, args...)
}

func (p pgxDB) QueryRow(ctx context.Context, query string, args ...any) Row {
	return p.PgxQuerier.QueryRow(ctx, query, args...)
}

type pgxBeginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

func (p pgxDB) kind() kind {
	switch x := p.PgxQuerier.(type) {
	case pgx.Tx:
		return transaction
	case interface{ Conn() *pgx.Conn }: // a connection taken from a pool
		return single
	case *pgx.Conn:
		return single
	case pgxBeginner:
		_ = x
		return pool
	}
	return single
}

func (p pgxDB) transact(ctx context.Context, fn func(DBTX) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	return pgx.BeginTxFunc(ctx, p.PgxQuerier.(pgxBeginner), opts, func(tx pgx.Tx) error { return fn(Pgx(tx)) })
}

func (p pgxDB) write(ctx context.Context, events []outbox.Event) error {
	_, err := outbox.Write(ctx, p.PgxQuerier.(pgx.Tx), events...)
	return err
}

type sqlDB struct{ SQLQuerier }

func (s sqlDB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	res, err := s.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (s sqlDB) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := s.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return sqlRows{rows}, nil
}

func (s sqlDB) QueryRow(ctx context.Context, query string, args ...any) Row {
	return s.QueryRowContext(ctx, query, args...)
}

// sqlRows forgets what Close returns: Err has said it before.
type sqlRows struct{ *sql.Rows }

func (r sqlRows) Close() { _ = r.Rows.Close() }

type sqlBeginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

func (s sqlDB) kind() kind {
	switch s.SQLQuerier.(type) {
	case *sql.Tx:
		return transaction
	case *sql.Conn:
		return single
	case sqlBeginner:
		return pool
	}
	return single
}

func (s sqlDB) transact(ctx context.Context, fn func(DBTX) error) (err error) {
	tx, err := s.SQLQuerier.(sqlBeginner).BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if rollback := tx.Rollback(); err == nil && rollback != nil && !errors.Is(rollback, sql.ErrTxDone) {
			err = rollback
		}
	}()
	if err := fn(SQL(tx)); err != nil {
		return err
	}
	return tx.Commit()
}

func (s sqlDB) write(ctx context.Context, events []outbox.Event) error {
	_, err := outbox.WriteSQL(ctx, s.SQLQuerier.(*sql.Tx), events...)
	return err
}

// collect runs a query and scans every row.
func collect[T any](ctx context.Context, db DBTX, scan func(Row) (T, error), query string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, rows.Err()
}
