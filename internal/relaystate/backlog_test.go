package relaystate_test

import (
	"errors"
	"testing"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestStore_Hold: while the owner holds the slot in a transaction, nobody acquires it; one that was overtaken can
// neither hold it nor end its backlog.
func TestStore_Hold(t *testing.T) {
	s, db, connect := setup(t)
	ctx := t.Context()
	want := cdc.Record{SystemIdentifier: "7", Timeline: 1, Incarnation: 3, Phase: cdc.PhaseBacklog, Confirmed: 100, SafeXID: 1 << 40}
	if err := s.Put(ctx, db, "a", want); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.Load(ctx, db, "a"); err != nil || got != want {
		t.Fatalf("got %+v, %v, want %+v", got, err, want)
	}
	if _, err := s.Acquire(ctx, db, "a", "first", 1); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Hold(ctx, tx, "a", "first"); err != nil {
		t.Fatal(err)
	}
	look, other, acquired := connect(), connect(), make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, other, "a", "second", 1)
		acquired <- err
	}()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		var waits bool
		if err := look.QueryRow(ctx, `select count(*) > 0 from pg_locks where pid = $1 and not granted`, other.PgConn().PID()).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-acquired:
			t.Fatalf("the slot was acquired while it was held: %v", err)
		default:
		}
		return waits, "the other owner does not wait"
	})
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-acquired; err != nil {
		t.Fatal(err)
	}
	if err := s.Hold(ctx, db, "a", "first"); !errors.Is(err, cdc.ErrNotOwner) {
		t.Errorf("an owner that was overtaken holds the slot: %v", err)
	}
	if err := s.EndBacklog(ctx, db, "a", "first"); !errors.Is(err, cdc.ErrNotOwner) {
		t.Errorf("an owner that was overtaken ended the backlog: %v", err)
	}
	if err := s.EndBacklog(ctx, db, "a", "second"); err != nil {
		t.Fatal(err)
	}
	want.Phase = cdc.PhaseStreaming
	if got, _, err := s.Load(ctx, db, "a"); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
