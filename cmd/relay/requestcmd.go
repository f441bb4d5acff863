package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// request is a row of outbox.requests as a command sees it.
type request struct {
	ID       int64           `json:"id"`
	Kind     string          `json:"kind"`
	State    string          `json:"state"`
	Progress json.RawMessage `json:"progress"`
}

// submitRequest asks the relay of a slot for something and returns the number of the request.
func submitRequest(ctx context.Context, db *pgx.Conn, slot, kind string, args any, actor, reason string) (int64, error) {
	text, err := json.Marshal(args)
	if err != nil {
		return 0, fmt.Errorf("write request: %w", err)
	}
	var id int64
	err = db.QueryRow(ctx, `insert into outbox.requests (slot, kind, args, actor, reason) values ($1, $2, $3::text::jsonb, $4, $5) returning id`,
		slot, kind, string(text), actor, reason).Scan(&id)
	if err != nil {
		return 0, tableError("write request", err)
	}
	return id, nil
}

// readRequest reads a request as it stands.
func readRequest(ctx context.Context, db *pgx.Conn, id int64) (r request, err error) {
	var progress string
	err = db.QueryRow(ctx, `select id, kind, state, progress::text from outbox.requests where id = $1`, id).Scan(&r.ID, &r.Kind, &r.State, &progress)
	r.Progress = json.RawMessage(progress)
	return r, tableError("read request", err)
}

const (
	awaitInterval = 300 * time.Millisecond
	// awaitRelay is how long a request may be pending until the person who waits is told that no relay takes it.
	awaitRelay = 5 * time.Second
)

// awaitRequest waits until a request is over and shows meanwhile what changes. It returns an error when it has failed,
// or when no relay runs that would carry it out: the request stays, and the next relay does.
func awaitRequest(ctx context.Context, db *pgx.Conn, id int64, out io.Writer, describe func(json.RawMessage) string) error {
	began, said := time.Now(), ""
	tick := time.NewTicker(awaitInterval)
	defer tick.Stop()
	for {
		r, err := readRequest(ctx, db, id)
		if err != nil {
			return err
		}
		if text := describe(r.Progress); r.State != "pending" && text != "" && text != said {
			fmt.Fprintf(out, "request %d: %s\n", id, printable(text))
			said = text
		}
		switch r.State {
		case "done":
			return nil
		case "failed":
			var p struct{ Error string }
			_ = json.Unmarshal(r.Progress, &p)
			return fmt.Errorf("request %d failed: %s", id, p.Error)
		case "pending":
			if time.Since(began) > awaitRelay && !relayHolds(ctx, db, id) {
				return &hintError{
					err:  fmt.Errorf("request %d waits: no relay holds the slot, so nobody carries it out", id),
					hint: "start relay run; it takes the request up",
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// relayHolds reports whether a relay holds the slot that a request is for.
func relayHolds(ctx context.Context, db *pgx.Conn, id int64) (active bool) {
	err := db.QueryRow(ctx, `select coalesce(bool_or(s.active), false) from outbox.requests r join pg_replication_slots s on s.slot_name = r.slot where r.id = $1`, id).Scan(&active)
	return err != nil || active // not known: keep waiting
}

// tableError adds what to do to an error of the tables that commands use.
func tableError(doing string, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		return nil
	}
	hint := ""
	switch pg.Code {
	case "42P01", "3F000", "42703":
		hint = "run relay migrate up on this database"
	case "42501":
		hint = "relay migrate print --roles shows the rights of an operator"
	}
	return &hintError{err: fmt.Errorf("%s: %s (%s)", doing, pg.Message, pg.Code), hint: hint}
}
