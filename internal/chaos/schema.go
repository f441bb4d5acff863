package chaos

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// schemaSQL is the workload's side of the database. What a transaction locks are rows of chaos.aggregates.
const schemaSQL = `
CREATE SCHEMA chaos;
CREATE TABLE chaos.aggregates (id text PRIMARY KEY, version bigint NOT NULL DEFAULT 0);
CREATE TABLE chaos.entries (event_id uuid PRIMARY KEY, aggregate text NOT NULL);
CREATE TABLE chaos.truth (
	event_id  uuid PRIMARY KEY,
	aggregate text NOT NULL,
	version   bigint NOT NULL,
	key       text NOT NULL,
	value     text NOT NULL,
	headers   jsonb NOT NULL,
	xid       xid8 NOT NULL DEFAULT pg_current_xact_id(),
	UNIQUE (aggregate, version)
);`

// Prepare makes the workload's tables in a database that has the outbox already.
func Prepare(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	if _, err := conn.Exec(ctx, schemaSQL); err != nil {
		return fmt.Errorf("make workload tables: %w", err)
	}
	var ids []string
	for i := range cfg.Aggregates {
		ids = append(ids, sharedAggregate(i))
	}
	for i := range cfg.Writers {
		ids = append(ids, privateAggregate(i))
	}
	if _, err := conn.Exec(ctx, `INSERT INTO chaos.aggregates (id) SELECT unnest($1::text[])`, ids); err != nil {
		return fmt.Errorf("make aggregates: %w", err)
	}
	return nil
}

// Noise writes at least megabytes MiB of WAL, into a table of its own that is none of the relay's business.
func Noise(ctx context.Context, conn *pgx.Conn, megabytes int) error {
	// A filler that does not compress: 32 hexadecimal digits of a hash, again and again hashed.
	const sql = `INSERT INTO public.noise (filler)
		SELECT (SELECT string_agg(md5(n::text || m::text), '') FROM generate_series(1, 30) m) FROM generate_series(1, $1::int) n`
	if _, err := conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS public.noise (filler text)`); err != nil {
		return fmt.Errorf("make noise table: %w", err)
	}
	const rowsPerMegabyte = 1060
	for range megabytes {
		if _, err := conn.Exec(ctx, sql, rowsPerMegabyte); err != nil {
			return fmt.Errorf("write noise: %w", err)
		}
	}
	return nil
}

func sharedAggregate(i int) string  { return fmt.Sprintf("shared-%03d", i) }
func privateAggregate(i int) string { return fmt.Sprintf("writer-%03d", i) }
