package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/outbox"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			cfg, err := pgx.ParseConfig(newOutbox(t))
			if err != nil {
				t.Fatal(err)
			}
			cfg.DefaultQueryExecMode = mode
			cfg.RuntimeParams["datestyle"] = "German, DMY"
			cfg.RuntimeParams["timezone"] = "Asia/Kathmandu"
			cfg.RuntimeParams["bytea_output"] = "hex"
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close(context.Background()) })

			events, want := awkward()
			tx := begin(t, conn)
			ids, err := outbox.Write(t.Context(), tx, events...)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, id := range ids {
				if id != events[i].ID {
					t.Errorf("event %d: returned ID %s, want %s", i, id, events[i].ID)
				}
			}
			exec1(t, conn, "SET datestyle = 'ISO'")
			if diff := cmp.Diff(want, storedEvents(t, conn)); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWrite_defaults(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	tx := begin(t, conn)
	events := []outbox.Event{placed(), placed(), placed()}
	ids, err := outbox.Write(t.Context(), tx, events...)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		if id.Version() != 7 || (i > 0 && id.String() <= ids[i-1].String()) {
			t.Errorf("ID %d is %s after %v", i, id, ids[:i])
		}
		if events[i].ID != uuid.Nil {
			t.Errorf("event %d was changed", i)
		}
	}
	var match, own, start int
	if err := tx.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE id = ANY ($1::text[]::uuid[])),
count(*) FILTER (WHERE xact_id = pg_current_xact_id()), count(*) FILTER (WHERE occurred_at = now()) FROM outbox.events`,
		[]string{ids[0].String(), ids[1].String(), ids[2].String()}).Scan(&match, &own, &start); err != nil {
		t.Fatal(err)
	}
	if match != 3 || own != 3 || start != 3 {
		t.Errorf("of 3 rows %d have a returned ID, %d this transaction's xact_id, %d its start as occurred_at", match, own, start)
	}
}

func TestWrite_manyInOrder(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	const n = 10_000 // more parameters than a statement may have, were each value one
	events := make([]outbox.Event, n)
	for i := range events {
		events[i] = placed()
		events[i].ID = uuid.New() // version 4: the ids have no order
		events[i].AggregateID = fmt.Sprint(i)
	}
	tx := begin(t, conn)
	if _, err := outbox.Write(t.Context(), tx, events...); err != nil {
		t.Fatal(err)
	}
	for i, row := range storedEvents(t, tx) {
		if row.AggregateID != fmt.Sprint(i) {
			t.Fatalf("row %d is event %s", i, row.AggregateID)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := rowCount(t, conn); got != n {
		t.Errorf("%d rows, want %d", got, n)
	}
}

func TestWrite_rollback(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	tx := begin(t, conn)
	if _, err := outbox.Write(t.Context(), tx, placed()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rowCount(t, conn); n != 0 {
		t.Errorf("%d rows after rollback", n)
	}

	tx = begin(t, conn)
	kept, lost := placed(), placed()
	kept.EventKey, lost.EventKey = "kept", "lost"
	if _, err := outbox.Write(t.Context(), tx, kept); err != nil {
		t.Fatal(err)
	}
	savepoint, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.Write(t.Context(), savepoint, lost); err != nil {
		t.Fatal(err)
	}
	if err := savepoint.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rows := storedEvents(t, conn); len(rows) != 1 || rows[0].EventKey != "kept" {
		t.Errorf("rows %+v, want the one written outside the savepoint", rows)
	}
}

// pretender is a pgx.Tx that opens no transaction, as wrappers round a pool have been seen to be.
type pretender struct {
	pgx.Tx
	conn *pgx.Conn
}

func (p pretender) Conn() *pgx.Conn { return p.conn }
func (p pretender) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return p.conn.Exec(ctx, sql, args...)
}

func TestWrite_noTransaction(t *testing.T) {
	t.Parallel()
	url := newOutbox(t)
	conn := connect(t, url)
	done := begin(t, conn)
	if err := done.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	byText := begin(t, connect(t, url))
	if _, err := byText.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	pooled, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := pooled.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	nested := begin(t, connect(t, url))
	defer nested.Rollback(t.Context())
	savepoint, err := nested.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := savepoint.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	for name, tx := range map[string]pgx.Tx{
		"nil": nil, "committed": done, "committed by text": byText, "pretender": pretender{conn: conn}, "pooled": pooled, "released savepoint": savepoint,
	} {
		if _, err := outbox.Write(t.Context(), tx, placed()); !errors.Is(err, outbox.ErrNoTransaction) {
			t.Errorf("%s: got %v, want ErrNoTransaction", name, err)
		}
	}
	if n := rowCount(t, conn); n != 0 {
		t.Errorf("%d rows were written outside a transaction", n)
	}
}

func TestWrite_duplicateID(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	first := placed()
	first.ID = uuid.MustParse("0190b5a2-7c3e-7abc-9def-0123456789ab")
	tx := begin(t, conn)

	_, err := outbox.Write(t.Context(), tx, first, placed(), first)
	if !errors.Is(err, outbox.ErrDuplicateID) || !strings.Contains(err.Error(), "event 2") || !strings.Contains(err.Error(), first.ID.String()) {
		t.Errorf("twice in one call: %v", err)
	}
	if _, err := outbox.Write(t.Context(), tx, first); err != nil { // nothing was sent, so the transaction lives
		t.Fatal(err)
	}
	_, err = outbox.Write(t.Context(), tx, first)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "23505" || !errors.Is(err, outbox.ErrDuplicateID) ||
		!strings.Contains(err.Error(), first.ID.String()) {
		t.Errorf("in the table: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	// A unique index of the user's own is not about IDs.
	exec1(t, conn, "CREATE UNIQUE INDEX own ON outbox.events (event_key)")
	tx = begin(t, conn)
	defer tx.Rollback(t.Context())
	if _, err := outbox.Write(t.Context(), tx, placed(), placed()); err == nil || errors.Is(err, outbox.ErrDuplicateID) {
		t.Errorf("another unique index: %v", err)
	}
}

func TestWrite_invalid(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	tx := begin(t, conn)
	bad := placed()
	bad.EventKey, bad.Topic = "", "__x"
	worse := placed()
	worse.Payload = []byte("{")
	_, err := outbox.Write(t.Context(), tx, placed(), bad, worse)
	want := []outbox.FieldError{
		{Field: "event_key", Problem: outbox.Empty, Limit: 255, Unit: "characters"},
		{Field: "topic", Problem: outbox.BadName},
		{Field: "payload", Problem: outbox.NotJSON},
	}
	if diff := cmp.Diff(want, problems(err)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	if !strings.Contains(err.Error(), "event 1: ") || !strings.Contains(err.Error(), "event 2: ") {
		t.Errorf("which events? %v", err)
	}
	if _, err := outbox.Write(t.Context(), tx, placed()); err != nil {
		t.Errorf("the transaction did not live on: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rowCount(t, conn); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestWrite_cancelled(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	tx := begin(t, conn)
	defer tx.Rollback(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := outbox.Write(ctx, tx, placed()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestWrite_concurrently(t *testing.T) {
	t.Parallel()
	url := newOutbox(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const writers, calls = 4, 25
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range calls {
				errs[w] = errors.Join(errs[w], pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := outbox.Write(t.Context(), tx, placed(), placed())
					return err
				}))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := rowCount(t, connect(t, url)); n != 2*writers*calls {
		t.Errorf("%d rows, want %d", n, 2*writers*calls)
	}
}
