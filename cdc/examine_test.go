package cdc_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// What looks cannot write, and finds what a session would refuse.
func TestExamine(t *testing.T) {
	t.Parallel()
	b := setup(t, testenv.NewDatabase(t))
	stream, err := cdc.NewStream(b.cfg, store, nil, cdc.Listener{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, err := stream.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close(t.Context())
	if _, err := x.Server(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = x.DB().Exec(t.Context(), `delete from outbox.relay_state`)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "25006" {
		t.Errorf("a write: got %v, want that the transaction is read only", err)
	}
	st, err := x.Standing(t.Context())
	if err != nil || !st.SlotFound || !st.RecordFound || st.Active || st.Confirmed == 0 || st.Record.Confirmed < st.Confirmed {
		t.Errorf("got %+v, error %v", st, err)
	}
	if _, err := b.app.Exec(t.Context(), `delete from outbox.relay_state`); err != nil {
		t.Fatal(err)
	}
	// A slot that nobody served is not adopted by looking at it.
	if st, err = x.Standing(t.Context()); err != nil || st.RecordFound {
		t.Errorf("got %+v, error %v", st, err)
	}
	if st, err = x.Standing(t.Context()); err != nil || st.RecordFound {
		t.Errorf("the second time: %+v, error %v", st, err)
	}
	if _, err := b.app.Exec(t.Context(), `select pg_drop_replication_slot($1)`, b.cfg.Slot); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Standing(t.Context()); state.Of(err) == nil || state.Of(err).State != state.SlotMissing {
		t.Errorf("without a slot: %v", err)
	}
}
