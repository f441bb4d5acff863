package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/migrations"
)

// dispatchTable is the ledger's table; bareTable has the same columns, constraints and indexes, and nothing in
// front of it.
const (
	dispatchTable = "ledger.notification_dispatches"
	bareTable     = "bench_dispatches"
)

// ledgerRates measures the ledger next to the INSERT .. ON CONFLICT DO NOTHING that it is at heart.
func ledgerRates(ctx context.Context, b *bench) error {
	if err := b.startPostgres(ctx); err != nil {
		return err
	}
	const database = "bench_ledger"
	if err := b.exec(ctx, "postgres", "create database "+database); err != nil {
		return err
	}
	config, err := pgx.ParseConfig(b.pg.DSN(database, ""))
	if err != nil {
		return fmt.Errorf("parse connection string: %w", err)
	}
	if _, err := migrations.Up(ctx, config, migrations.Ledger()); err != nil {
		return err
	}
	if err := b.exec(ctx, database, "insert into ledger.channels (channel, mode) values ('bench', 'simple')",
		fmt.Sprintf("create table %s (like %s including all)", bareTable, dispatchTable)); err != nil {
		return err
	}
	rep, err := b.newReport(ctx)
	if err != nil {
		return err
	}
	rep.Rates, err = b.compareRates(ctx, database, []contender{
		{name: "bare", table: bareTable, do: bareReserve},
		{name: "ledger", table: dispatchTable, do: reserve("reserved")},
		{name: "duplicate", table: dispatchTable, before: true, do: duplicate},
		{name: "once", table: dispatchTable, do: once},
		{name: "deliver", table: dispatchTable, do: deliver},
	})
	if err != nil {
		return err
	}
	return b.publish(rep)
}

// boundary names the k deliveries from the first on: one event, a recipient each.
func boundary(first, k int) (eventKey string, recipients []string) {
	for i := range k {
		recipients = append(recipients, fmt.Sprint("user:", first+i))
	}
	return fmt.Sprint("order-placed:", first), recipients
}

// bareReserve inserts rows as reserve would, in the order of the key, as whoever fears deadlocks would.
func bareReserve(ctx context.Context, conn *pgx.Conn, first, k int) error {
	key, recipients := boundary(first, k)
	tag, err := conn.Exec(ctx, `insert into `+bareTable+` (state, fence, attempts, max_attempts, event_key, recipient, channel, worker, created_at, held_since, due_at, lease_until)
		select 'reserved', 1, 1, 5, $1, r, 'bench', 'bench', now(), now(), now() + interval '1 minute', now() + interval '1 minute'
		from unnest($2::text[]) r order by r collate "C"
		on conflict do nothing returning id`, key, recipients)
	if err != nil {
		return err
	}
	return expect("insert", int(tag.RowsAffected()), k)
}

const (
	reserveSQL      = "select outcome, id, fence from ledger.reserve('', $1, ($2::text[])[1], 'bench', 'bench', now())"
	reserveBatchSQL = "select outcome, id, fence from ledger.reserve_batch('', $1, $2, 'bench', 'bench', now())"
)

// reservations reserves and returns what the ledger answered.
func reservations(ctx context.Context, q querier, first, k int, want string) (ids, fences []int64, err error) {
	sql := reserveBatchSQL
	if k == 1 {
		sql = reserveSQL
	}
	key, recipients := boundary(first, k)
	rows, err := q.Query(ctx, sql, key, recipients)
	if err != nil {
		return nil, nil, err
	}
	var outcome string
	var id, fence *int64 // null where nothing is handed out
	_, err = pgx.ForEachRow(rows, []any{&outcome, &id, &fence}, func() error {
		if outcome != want {
			return fmt.Errorf("%w: %s, want %s", errOutcome, outcome, want)
		}
		if id != nil && fence != nil {
			ids, fences = append(ids, *id), append(fences, *fence)
		}
		return nil
	})
	return ids, fences, err
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func reserve(want string) func(context.Context, *pgx.Conn, int, int) error {
	return func(ctx context.Context, conn *pgx.Conn, first, k int) error {
		ids, _, err := reservations(ctx, conn, first, k, want)
		if err != nil {
			return err
		}
		return expect("reserve", len(ids), k)
	}
}

// once records deliveries whose effect is a row of the same transaction.
func once(ctx context.Context, conn *pgx.Conn, first, k int) error {
	return onceWith(ctx, conn, first, k, "delivered")
}

// duplicate asks again for what has been delivered: the answer of a replay. The untimed pass before finds nothing
// and delivers.
func duplicate(ctx context.Context, conn *pgx.Conn, first, k int) error {
	return onceWith(ctx, conn, first, k, "delivered", "already_delivered")
}

func onceWith(ctx context.Context, conn *pgx.Conn, first, k int, want ...string) error {
	sql := "select outcome from ledger.once_batch('', $1, $2, 'bench', now())"
	if k == 1 {
		sql = "select ledger.once('', $1, ($2::text[])[1], 'bench', now())"
	}
	key, recipients := boundary(first, k)
	rows, err := conn.Query(ctx, sql, key, recipients)
	if err != nil {
		return err
	}
	outcomes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	n := 0
	for _, got := range outcomes {
		for _, w := range want {
			if got == w {
				n++
			}
		}
	}
	return expect("once", n, k)
}

// deliver reserves and completes, in a transaction each: a whole delivery whose effect costs nothing.
func deliver(ctx context.Context, conn *pgx.Conn, first, k int) error {
	ids, fences, err := reservations(ctx, conn, first, k, "reserved")
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, "select outcome from ledger.complete_batch($1, $2, null)", ids, fences)
	if err != nil {
		return err
	}
	outcomes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	n := 0
	for _, o := range outcomes {
		if o == "delivered" {
			n++
		}
	}
	return expect("complete", n, k)
}
