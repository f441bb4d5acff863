package relaystate_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
	"github.com/outboxrelay/relay/outbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func setup(t *testing.T) (relaystate.Store, *pgx.Conn, func() *pgx.Conn) {
	t.Helper()
	db := testenv.NewDatabase(t)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), cfg, migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	connect := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		return conn
	}
	return relaystate.Store{}, connect(), connect
}

func TestStore_Owner(t *testing.T) {
	s, db, _ := setup(t)
	ctx := t.Context()
	if _, found, err := s.Load(ctx, db, "a"); found || err != nil {
		t.Fatalf("a record before there is one: %v, %v", found, err)
	}
	want := cdc.Record{SystemIdentifier: "7", Timeline: 1, Incarnation: 1, Phase: cdc.PhaseStreaming, Confirmed: 100}
	if err := s.Adopt(ctx, db, "a", want); err != nil {
		t.Fatal(err)
	}
	if err := s.Adopt(ctx, db, "a", cdc.Record{SystemIdentifier: "8", Phase: cdc.PhaseStreaming, Incarnation: 1, Confirmed: 1}); err != nil {
		t.Fatal(err)
	}
	if got, found, err := s.Load(ctx, db, "a"); !found || err != nil || got != want {
		t.Fatalf("got %+v, %v, %v, want %+v", got, found, err, want)
	}
	if _, err := s.Acquire(ctx, db, "a", "first", 2); err != nil {
		t.Fatal(err)
	}
	if err := s.Confirm(ctx, db, "a", "first", 200, 0, 0); err != nil {
		t.Fatal(err)
	}
	rec, err := s.Acquire(ctx, db, "a", "second", 3)
	if err != nil || rec.Confirmed != 200 || rec.Timeline != 3 {
		t.Fatalf("acquired %+v, %v", rec, err)
	}
	if err := s.Confirm(ctx, db, "a", "first", 300, 0, 0); !errors.Is(err, cdc.ErrNotOwner) {
		t.Errorf("an owner that was overtaken confirmed: %v", err)
	}
	if rec, _, _ := s.Load(ctx, db, "a"); rec.Confirmed != 200 {
		t.Errorf("confirmed %v after an overtaken owner's write", rec.Confirmed)
	}
	if _, err := s.Acquire(ctx, db, "b", "first", 1); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("acquired what is not there: %v", err)
	}
}

func TestStore_ConfirmNeverFalls(t *testing.T) {
	s, db, _ := setup(t)
	ctx := t.Context()
	if err := s.Put(ctx, db, "a", cdc.Record{SystemIdentifier: "7", Incarnation: 1, Phase: cdc.PhaseStreaming, Confirmed: 100}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(ctx, db, "a", "me", 1); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		lsn     outbox.LSN
		safe    uint64
		wantLSN outbox.LSN
		want    string
	}{{200, 50, 200, "50"}, {150, 40, 200, "50"}, {300, 0, 300, "50"}, {300, 60, 300, "60"}} {
		if err := s.Confirm(ctx, db, "a", "me", step.lsn, step.safe, 0); err != nil {
			t.Fatal(err)
		}
		var safe string
		if err := db.QueryRow(ctx, `select safe_xid::text from outbox.relay_state`).Scan(&safe); err != nil {
			t.Fatal(err)
		}
		rec, _, _ := s.Load(ctx, db, "a")
		if rec.Confirmed != step.wantLSN || safe != step.want {
			t.Errorf("after %v, %d: %v, %s", step.lsn, step.safe, rec.Confirmed, safe)
		}
	}
}

// TestStore_Horizon: a transaction that is open when the horizon is taken is not below it.
func TestStore_Horizon(t *testing.T) {
	s, db, connect := setup(t)
	ctx := t.Context()
	tx, err := connect().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	var open uint64
	if err := tx.QueryRow(ctx, `select pg_current_xact_id()::text::bigint`).Scan(&open); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(ctx, `create table later (id int)`); err != nil { // a younger one commits
		t.Fatal(err)
	}
	h, err := s.Horizon(ctx, db)
	if err != nil || h.XID > open || h.LSN == 0 {
		t.Errorf("horizon %+v with transaction %d open, %v", h, open, err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if h, err = s.Horizon(ctx, db); err != nil || h.XID <= open {
		t.Errorf("horizon %+v after transaction %d, %v", h, open, err)
	}
}
