package cdc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/state"
)

// sessionParameters are set in the startup packet of every connection of the relay. A search path that holds no
// schema of users, and row security off, keep foreign code from running with the relay's rights; synchronous
// commit makes "written before it is said" true; the rest fixes the text forms that are parsed or passed on.
var sessionParameters = map[string]string{
	"search_path":                         "pg_catalog",
	"row_security":                        "off",
	"synchronous_commit":                  "on",
	"timezone":                            "UTC",
	"datestyle":                           "ISO",
	"client_encoding":                     "UTF8",
	"standard_conforming_strings":         "on",
	"statement_timeout":                   "0",
	"idle_in_transaction_session_timeout": "0",
	"lock_timeout":                        "0",
}

// connSettings reads the settings anew and adds what every connection of the relay depends on.
func (s *Stream) connSettings() (*pgx.ConnConfig, error) {
	cfg, err := s.cfg.Connect()
	if err != nil {
		return nil, settingsError(err)
	}
	cfg = cfg.Copy()
	for k, v := range sessionParameters {
		cfg.RuntimeParams[k] = v
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "relay " + s.cfg.Slot
	}
	return cfg, nil
}

// connect opens the control connection: an ordinary session for checks, relay_state and watching the slot.
func (s *Stream) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := s.connSettings()
	if err != nil {
		return nil, err
	}
	return s.dial(ctx, cfg)
}

// dial opens an ordinary session.
func (s *Stream) dial(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler in transaction mode may stand between
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, connectError(err)
	}
	return conn, nil
}

// connectReplication opens a replication connection over a wire.
func (s *Stream) connectReplication(ctx context.Context) (*pgconn.PgConn, *wire, error) {
	full, err := s.connSettings()
	if err != nil {
		return nil, nil, err
	}
	cfg := &full.Config
	cfg.RuntimeParams["replication"] = "database"
	var w *wire
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if tcp, ok := nc.(*net.TCPConn); ok {
			// A host that vanished is noticed within half a minute even when nothing is sent.
			_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3})
		}
		w = newWire(nc)
		return w, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, nil, connectError(err)
	}
	return conn, w, nil
}

// settingsError names the state of settings that cannot be read, such as a password file that is gone.
func settingsError(err error) error {
	e := &state.Error{State: state.ConfigInvalid, Reason: err.Error()}
	var hinter interface{ Hint() string }
	if errors.As(err, &hinter) {
		e.Hint = hinter.Hint()
	}
	return e
}

// connectError names the state that a failed connection attempt means.
func connectError(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "28P01", "28000":
			return &state.Error{
				State:  state.PermissionDenied,
				Reason: fmt.Sprintf("PostgreSQL refuses the relay's login: %s (%s)", pg.Message, pg.Code),
				Hint:   "check user, password and pg_hba.conf; the role needs LOGIN and REPLICATION, and a pg_hba.conf line for the database itself",
			}
		case "3D000":
			return &state.Error{
				State:  state.ConfigInvalid,
				Reason: fmt.Sprintf("%s (%s)", pg.Message, pg.Code),
				Hint:   "correct the database name in postgres.url",
			}
		case "42501":
			return &state.Error{
				State:  state.PermissionDenied,
				Reason: fmt.Sprintf("PostgreSQL refuses the relay's role: %s (%s)", pg.Message, pg.Code),
				Hint:   "grant it: ALTER ROLE <role> WITH LOGIN REPLICATION; relay migrate print --roles shows all that is needed",
			}
		case "08P01":
			return &state.Error{
				State:  state.ConfigInvalid,
				Reason: fmt.Sprintf("the server refuses a replication connection: %s (%s)", pg.Message, pg.Code),
				Hint:   "a pooler such as PgBouncer cannot pass replication; point postgres.url at PostgreSQL itself",
			}
		}
		return &state.Error{State: state.DatabaseUnreachable, Reason: fmt.Sprintf("PostgreSQL refuses a connection: %s (%s)", pg.Message, pg.Code)}
	}
	return &state.Error{
		State:  state.DatabaseUnreachable,
		Reason: "PostgreSQL cannot be reached: " + netReason(err),
		Hint:   "check host, port and network in postgres.url; the relay keeps trying",
	}
}

// netReason shortens a connection error to what the network said: pgconn's own text repeats user and database.
func netReason(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("look up %q: %s", dns.Name, dns.Err)
	case errors.As(err, &op):
		if op.Addr != nil {
			return fmt.Sprintf("%s %s: %v", op.Op, op.Addr, op.Err)
		}
		return fmt.Sprintf("%s: %v", op.Op, op.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "stopped"
	}
	if root := rootCause(err); root != nil {
		return root.Error()
	}
	return err.Error()
}

func rootCause(err error) error {
	for {
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			if next := x.Unwrap(); next != nil {
				err = next
				continue
			}
		case interface{ Unwrap() []error }:
			if list := x.Unwrap(); len(list) > 0 {
				err = list[len(list)-1]
				continue
			}
		}
		return err
	}
}

// serverError names the state that an error of an established session means. Errors that name one already, and
// those of other kinds, pass.
func (s *Stream) serverError(doing string, err error) error {
	if err == nil || state.Of(err) != nil || errors.Is(err, ErrNotOwner) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return &state.Error{State: state.DatabaseUnreachable, Reason: doing + ": connection to PostgreSQL lost: " + netReason(err), Err: nil}
	}
	seen := fmt.Sprintf("%s: %s (%s)", doing, pg.Message, pg.Code)
	switch pg.Code {
	case "42501", "28000":
		return &state.Error{State: state.PermissionDenied, Reason: seen, Hint: "relay migrate print --roles shows the grants that the relay's role needs"}
	case "42P01", "3F000":
		return &state.Error{State: state.TableMismatch, Reason: seen, Hint: "run relay migrate up on this database"}
	case "53300", "57P01", "57P02", "57P03", "55006", "08006", "08003", "53100", "53200", "57014":
		return &state.Error{State: state.DatabaseUnreachable, Reason: seen}
	case "53400":
		return &state.Error{State: state.ConfigInvalid, Reason: seen, Hint: "raise max_replication_slots or max_wal_senders and restart PostgreSQL"}
	}
	return &state.Error{State: state.DatabaseUnreachable, Reason: seen}
}
