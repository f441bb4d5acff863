package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/outbox"
)

// drivers opens a pool in every way that the package documents.
func drivers() map[string]func(testing.TB, string) ledger.DBTX {
	list := map[string]func(testing.TB, string) ledger.DBTX{
		"pq": func(tb testing.TB, url string) ledger.DBTX {
			dsn, err := pq.ParseURL(url)
			if err != nil {
				tb.Fatal(err)
			}
			connector, err := pq.NewConnector(dsn)
			if err != nil {
				tb.Fatal(err)
			}
			db := sql.OpenDB(connector)
			tb.Cleanup(func() { db.Close() })
			return ledger.SQL(db)
		},
		"stdlib": func(tb testing.TB, url string) ledger.DBTX {
			cfg, err := pgx.ParseConfig(url)
			if err != nil {
				tb.Fatal(err)
			}
			db := stdlib.OpenDB(*cfg)
			tb.Cleanup(func() { db.Close() })
			return ledger.SQL(db)
		},
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		list["pgx "+mode.String()] = func(tb testing.TB, url string) ledger.DBTX {
			cfg, err := pgxpool.ParseConfig(url)
			if err != nil {
				tb.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode = mode
			p, err := pgxpool.NewWithConfig(tb.Context(), cfg)
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(p.Close)
			return ledger.Pgx(p)
		}
	}
	return list
}

// Every call, through every driver.
func TestDrivers(t *testing.T) {
	t.Parallel()
	for name, open := range drivers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			db := open(t, r.url)
			l, err := ledger.New(db, ledger.DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			content := ledger.Content{Type: "T", Payload: []byte("\x00\xff'\\"), Headers: map[string]string{"a": `"b\`}, Source: "s"}
			odd := []string{`a"b`, `c\d`, `{e,f}`, "", "NULL", "é"}
			hash := ledger.WithPayloadHash(ledger.PayloadHash(content.Payload))
			reg, err := l.RegisterBatch(ctx, nil, event("email"), slices.Values(odd), 4, ledger.WithContent(content), hash, ledger.WithNotBefore(time.Now().Add(-time.Second)))
			if err != nil || reg.Inserted != len(odd) {
				t.Fatalf("register: %+v, %v", reg, err)
			}
			due, err := l.ClaimDue(ctx, []string{"email"}, 100, ledger.WithLease(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, d := range due {
				got = append(got, d.Key.Recipient)
				content.Source = ""
				if diff := cmp.Diff(content, d.Content); diff != "" {
					t.Errorf("content (-want +got):\n%s", diff)
				}
			}
			slices.Sort(got)
			slices.Sort(odd)
			if diff := cmp.Diff(odd, got); diff != "" {
				t.Fatalf("recipients (-want +got):\n%s", diff)
			}
			renewed, outcome, err := l.Renew(ctx, due[0], 2*time.Minute)
			if outcome != ledger.Renewed || err != nil || time.Until(renewed.Deadline) < time.Minute {
				t.Errorf("renew: %q, %v, %v", outcome, err, renewed.Deadline)
			}
			want(t, "begin", ledger.Begun)(l.BeginEffect(ctx, renewed))
			want(t, "complete", ledger.Delivered)(l.Complete(ctx, nil, renewed, "ref", []byte(`{"a":[1]}`)))
			want(t, "begin", ledger.Begun)(l.BeginEffect(ctx, due[1]))
			want(t, "fail", ledger.Uncertain)(l.Fail(ctx, due[1], ledger.KindAmbiguous, "x", time.Second))
			want(t, "skip", ledger.Skipped)(l.Skip(ctx, nil, due[2], "y"))
			want(t, "release", ledger.Released)(l.Release(ctx, due[3]))
			want(t, "begin", ledger.Begun)(l.BeginEffect(ctx, due[4]))
			outcomes, err := l.CompleteBatch(ctx, nil, []ledger.Completion{{Reservation: due[4], Ref: `r"`}, {Reservation: due[0]}})
			if diff := cmp.Diff([]ledger.Outcome{"delivered", "already_delivered"}, outcomes); diff != "" || err != nil {
				t.Errorf("complete batch: %v\n%s", err, diff)
			}
			uncertain, err := l.ClaimUncertain(ctx, []string{"email"}, 10, time.Minute)
			if err != nil || len(uncertain) != 1 || uncertain[0].FirstEffectAt.IsZero() {
				t.Fatalf("uncertain: %+v, %v", uncertain, err)
			}
			want(t, "resolve", ledger.Failed)(l.Resolve(ctx, uncertain[0], ledger.VerdictNotSent, "ann", "asked"))
			want(t, "redrive", ledger.Redriven)(l.Redrive(ctx, due[2].ID, "ann", "again", false))
			if _, err := l.Sweep(ctx, 10); err != nil {
				t.Error(err)
			}
			if n, err := l.Purge(ctx, 10); err != nil || n != 0 {
				t.Errorf("purge: %d, %v", n, err)
			}
			if list, err := l.Status(ctx, "", event("email").EventKey); err != nil || len(list) != len(odd) {
				t.Errorf("status: %v, %v", list, err)
			}
			if list, err := l.States(ctx); err != nil || len(list) == 0 {
				t.Errorf("states: %v, %v", list, err)
			}
			if err := l.Check(ctx); err != nil {
				t.Errorf("check: %v", err)
			}
			res, err := l.Reserve(ctx, nil, due[0].Key, hash)
			if err != nil || res.Outcome != ledger.AlreadyDelivered || string(res.Value) != `{"a": [1]}` {
				t.Errorf("reserve: %+v, %v", res, err)
			}
			isNew, err := l.Remember(ctx, nil, ledger.Event{EventKey: "other:1", OccurredAt: time.Now()}, ledger.Content{Type: "T"})
			if !isNew || err != nil {
				t.Errorf("remember: %v, %v", isNew, err)
			}
			n, err := l.Transition(ctx, func(tx ledger.DBTX) (int64, error) {
				outcome, err := l.Once(ctx, tx, keyOn("database"), insertNotification(ctx, keyOn("database")))
				if outcome != ledger.Delivered {
					err = errors.Join(err, fmt.Errorf("once: %q", outcome))
				}
				return 1, err
			}, func(tx ledger.DBTX) error {
				if _, err := l.OnceBatch(ctx, tx, event("database"), users(2)); err != nil {
					return err
				}
				return ledger.Write(ctx, tx, outbox.Event{EventKey: "k", AggregateType: "a", AggregateID: "1", EventType: "E"})
			})
			if n != 1 || err != nil {
				t.Errorf("transition: %d, %v", n, err)
			}
			var none int
			if err := db.QueryRow(ctx, "SELECT 1 WHERE false").Scan(&none); !errors.Is(err, sql.ErrNoRows) {
				t.Errorf("no row: %v", err)
			}
			p := newProvider()
			want(t, "deliver", ledger.Delivered)(l.Deliver(ctx, keyOn("push"), p.handler(), ledger.WithContent(content)))
		})
	}
}

// T20: sessions that default to a stricter isolation are worked with; a caller's transaction of one is refused.
func TestIsolation(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, level := range []string{"repeatable read", "serializable"} {
		cfg, err := pgxpool.ParseConfig(r.url)
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
		p, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		l := newLedger(t, p, nil)
		key := keyOn("email")
		key.Recipient = level
		provider := newProvider()
		want(t, level, ledger.Delivered)(l.Deliver(t.Context(), key, provider.handler()))
		if n := provider.arrived(); n != 1 {
			t.Errorf("%s: %d effects", level, n)
		}
		err = pgx.BeginFunc(t.Context(), p, func(tx pgx.Tx) error {
			_, err := l.Reserve(t.Context(), ledger.Pgx(tx), keyOn("email"))
			return err
		})
		if sqlState(err) != "25000" {
			t.Errorf("%s: a caller's transaction got %v, want 25000", level, err)
		}
	}
}

// A context that has ended is an error and no outcome.
func TestContextEnded(t *testing.T) {
	t.Parallel()
	r := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if outcome, err := r.Deliver(ctx, keyOn("email"), newProvider().handler()); outcome != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("got %q, %v", outcome, err)
	}
}
