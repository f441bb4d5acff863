package relaystate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/state"
)

// queryTimeout bounds each statement, and each attempt to connect.
const queryTimeout = 10 * time.Second

// conn is a connection that is made when it is needed, and made anew when it broke. Its users take turns.
type conn struct {
	slot     string
	settings func() (*pgx.ConnConfig, error)
	closed   atomic.Bool
	turn     chan *pgx.Conn // holds the one connection, nil when there is none; whoever has it may use it
}

func newConn(slot string, settings func() (*pgx.ConnConfig, error)) *conn {
	c := &conn{slot: slot, settings: settings, turn: make(chan *pgx.Conn, 1)}
	c.turn <- nil
	return c
}

var errClosed = errors.New("relaystate: closed")

// run hands the connection to do. After an error that is not the server's answer the connection is given up.
func (c *conn) run(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	var db *pgx.Conn
	select {
	case db = <-c.turn:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { c.turn <- db }()
	if c.closed.Load() {
		return errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if db == nil {
		var err error
		if db, err = c.connect(ctx); err != nil {
			return err
		}
	}
	err := do(ctx, db)
	if err != nil && db.IsClosed() {
		db = nil
	}
	return err
}

// connect opens a session with the parameters that every connection of the relay has: what it writes is durable when it
// says so, and no schema of users can put its own functions in the way.
func (c *conn) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := c.settings()
	if err != nil {
		return nil, &state.Error{State: state.ConfigInvalid, Reason: err.Error()}
	}
	cfg = cfg.Copy()
	for k, v := range map[string]string{
		"search_path": "pg_catalog", "row_security": "off", "synchronous_commit": "on", "timezone": "UTC", "datestyle": "ISO",
		"client_encoding": "UTF8", "standard_conforming_strings": "on", "statement_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "lock_timeout": "0",
	} {
		cfg.RuntimeParams[k] = v
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "relay " + c.slot + " dead letters"
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler in transaction mode may stand between
	return pgx.ConnectConfig(ctx, cfg)
}

// close ends the connection when whoever has it is done.
func (c *conn) close(ctx context.Context) {
	c.closed.Store(true)
	db := <-c.turn
	c.turn <- nil
	if db != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = db.Close(ctx)
	}
}

// databaseError names the state that an error means. Nothing of a statement's values is in it.
func databaseError(doing string, err error) error {
	if state.Of(err) != nil || errors.Is(err, context.Canceled) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return &state.Error{State: state.DatabaseUnreachable, Reason: doing + ": PostgreSQL cannot be reached", Hint: "look at the database and at the network between; the relay keeps trying"}
	}
	seen := fmt.Sprintf("%s: %s (%s)", doing, pg.Message, pg.Code)
	switch pg.Code {
	case "42501", "28000", "28P01":
		return &state.Error{State: state.PermissionDenied, Reason: seen, Hint: "relay migrate print --roles shows the grants that the relay's role needs"}
	case "42P01", "42703", "3F000":
		return &state.Error{State: state.TableMismatch, Reason: seen, Hint: "run relay migrate up on this database"}
	}
	return &state.Error{State: state.DatabaseUnreachable, Reason: seen, Hint: "look at the database; the relay keeps trying"}
}
