package outbox_test

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/outboxrelay/relay/outbox"
)

// drivers are those that WriteSQL's documentation names.
func drivers() map[string]func(tb testing.TB, url string) *sql.DB {
	list := map[string]func(testing.TB, string) *sql.DB{}
	for _, mode := range execModes {
		list["pgx "+mode.String()] = func(tb testing.TB, url string) *sql.DB {
			cfg, err := pgx.ParseConfig(url)
			if err != nil {
				tb.Fatal(err)
			}
			cfg.DefaultQueryExecMode = mode
			return stdlib.OpenDB(*cfg)
		}
	}
	for name, option := range map[string]string{"pq": "no", "pq binary": "yes"} {
		list[name] = func(tb testing.TB, url string) *sql.DB {
			dsn, err := pq.ParseURL(url)
			if err != nil {
				tb.Fatal(err)
			}
			connector, err := pq.NewConnector(dsn + " binary_parameters=" + option)
			if err != nil {
				tb.Fatal(err)
			}
			return sql.OpenDB(connector)
		}
	}
	return list
}

func TestWriteSQL(t *testing.T) {
	t.Parallel()
	for name, open := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newOutbox(t)
			db := open(t, url)
			defer db.Close()
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			events, want := awkward()
			ids, err := outbox.WriteSQL(t.Context(), tx, events...)
			if err != nil {
				t.Fatal(err)
			}
			if len(ids) != len(events) || ids[0] != events[0].ID {
				t.Errorf("returned IDs %v", ids)
			}
			if ids, err := outbox.WriteSQL(t.Context(), tx); err != nil || len(ids) != 0 {
				t.Errorf("no events: %v, %v", ids, err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			conn := connect(t, url)
			if diff := cmp.Diff(want, storedEvents(t, conn)); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}

			if _, err := outbox.WriteSQL(t.Context(), tx, placed()); !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("after the commit: got %v, want ErrNoTransaction", err)
			}
			if _, err := outbox.WriteSQL(t.Context(), nil, placed()); !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("without a transaction: got %v, want ErrNoTransaction", err)
			}

			tx, err = db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := outbox.WriteSQL(t.Context(), tx, outbox.Event{}); len(problems(err)) != 4 {
				t.Errorf("an empty event: %v", err)
			}
			if _, err := outbox.WriteSQL(t.Context(), tx, placed(), events[1]); !errors.Is(err, outbox.ErrDuplicateID) {
				t.Errorf("an ID of the table: got %v, want ErrDuplicateID", err)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}

			exec1(t, conn, "CREATE UNIQUE INDEX own ON outbox.events (event_key) WHERE event_key LIKE 'own%'")
			tx, err = db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			own := outbox.Event{ID: uuid.New(), EventKey: "own", AggregateType: "t", AggregateID: "i", EventType: "e"}
			if _, err := outbox.WriteSQL(t.Context(), tx, own); err != nil {
				t.Fatal(err)
			}
			own.ID = uuid.New()
			if _, err := outbox.WriteSQL(t.Context(), tx, own); err == nil || errors.Is(err, outbox.ErrDuplicateID) {
				t.Errorf("another unique index: %v", err)
			}
		})
	}
}
