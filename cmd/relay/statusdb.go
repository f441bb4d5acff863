package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
)

// DatabaseReport is what the database knows of a relay that does not answer. Its fields are API.
type DatabaseReport struct {
	Error       string           `json:"error"` // why it could not be asked, or not all of it; empty: it was
	Server      string           `json:"server_version"`
	Slot        *SlotReport      `json:"slot"` // null: there is no such slot, or it is not known
	Relay       *RelayRow        `json:"relay_state"`
	DeadLetters map[string]int64 `json:"dead_letters"` // by state; null: not known
	slotName    string
}

// RelayRow is the slot's row of outbox.relay_state: how far its relay has come.
type RelayRow struct {
	Phase        string    `json:"phase"`
	Incarnation  int       `json:"incarnation"`
	ConfirmedLSN string    `json:"confirmed_lsn"` // empty while the slot is being made
	UpdatedAt    time.Time `json:"updated_at"`
}

// askDatabase asks the database. What it may not see, or what is not there, is left out.
func askDatabase(ctx context.Context, c *Config) *DatabaseReport {
	d := &DatabaseReport{slotName: c.Postgres.Slot}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	if err := d.ask(ctx, c); err != nil {
		d.Error = errText(err)
	}
	return d
}

func (d *DatabaseReport) ask(ctx context.Context, c *Config) error {
	cfg, err := c.Postgres.ConnConfig()
	if err != nil {
		return err
	}
	cfg.RuntimeParams["application_name"] = "relay " + d.slotName + " status"
	cfg.RuntimeParams["search_path"] = "pg_catalog"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	d.Server = conn.PgConn().ParameterStatus("server_version")
	r, err := readSlot(ctx, conn, d.slotName)
	switch {
	case err == nil:
		d.Slot = &SlotReport{Name: d.slotName}
		d.Slot.read(&r)
		d.Slot.Warning = newWALAlarm(d.slotName, int64(c.WALWarnBytes), nil).warning(&r)
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	// Each of the rest is told or not; the first that cannot be told says why.
	return errors.Join(d.askRelay(ctx, conn), d.askDeadLetters(ctx, conn))
}

func (d *DatabaseReport) askRelay(ctx context.Context, conn *pgx.Conn) error {
	var row RelayRow
	err := conn.QueryRow(ctx, `
		SELECT phase, incarnation, coalesce(confirmed_lsn::text, ''), updated_at FROM outbox.relay_state WHERE slot = $1`,
		d.slotName).Scan(&row.Phase, &row.Incarnation, &row.ConfirmedLSN, &row.UpdatedAt)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	d.Relay = &row
	return nil
}

func (d *DatabaseReport) askDeadLetters(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('outbox.dead_letters') IS NOT NULL`).Scan(&there); err != nil || !there {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT state, count(*) FROM outbox.dead_letters WHERE slot = $1 GROUP BY state`, d.slotName)
	if err != nil {
		return err
	}
	counts := map[string]int64{}
	var name string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error {
		counts[name] = n
		return nil
	}); err != nil {
		return err
	}
	d.DeadLetters = counts
	return nil
}

// screen is the report as a page.
func (d *DatabaseReport) screen(now time.Time) string {
	var s screen
	if d.Error != "" {
		s.row("error", "%s", d.Error)
	}
	if d.Server == "" {
		s.row("database", "cannot be reached")
		return s.b.String()
	}
	s.row("database", "PostgreSQL %s", d.Server)
	if d.Slot == nil {
		s.row("slot", "%s does not exist", d.slotName)
	} else {
		if d.Slot.Warning != "" {
			s.row("warning", "%s", d.Slot.Warning)
		}
		s.row("slot", "%s, %s", d.slotName, d.Slot.holder())
		s.row("slot lag", "%s not confirmed", size(d.Slot.LagBytes))
		s.row("WAL retained", "%s", d.Slot.retained())
	}
	if d.Relay == nil {
		s.row("relay state", "no row for this slot")
	} else {
		at := d.Relay.ConfirmedLSN
		if at == "" {
			at = "nothing"
		}
		s.row("relay state", "%s, confirmed %s, written %s ago, incarnation %d", d.Relay.Phase, at,
			about(max(0, now.Sub(d.Relay.UpdatedAt).Seconds())), d.Relay.Incarnation)
	}
	if d.DeadLetters != nil {
		s.row("dead letters", "%s", counts(d.DeadLetters, "none", ""))
	}
	if hint := d.hint(); hint != "" {
		s.row("hint", "%s", hint)
	}
	return s.b.String()
}

// hint says what to do next, as far as that can be told from outside.
func (d *DatabaseReport) hint() string {
	switch {
	case d.Slot == nil && d.Relay != nil:
		return "the slot is gone: keep the rows of the outbox table, start relay run to see what is missing (" + string(state.SlotMissing) + "), then relay recover"
	case d.Slot == nil:
		return "no relay has run here yet: relay migrate up makes tables, publication and slot"
	case d.Slot.WALStatus == "lost":
		return "the slot is lost: keep the rows of the outbox table, then relay recover"
	case *d.Slot.Active:
		return "a relay runs, at another address than was asked: --admin-listen names it"
	}
	return "nobody reads from the slot and it holds WAL: start relay run"
}
