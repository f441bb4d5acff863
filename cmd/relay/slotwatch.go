package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// How often the server is asked about the slot, how long one answer may take, and how long it is believed.
const (
	slotInterval = 10 * time.Second
	slotTimeout  = 5 * time.Second
	slotValidity = 30 * time.Second
)

// slotReading is what the server says about a slot.
type slotReading struct {
	LagBytes      int64 // from the confirmed flush LSN to the current one
	RetainedBytes int64 // from the restart LSN to the current one: what the slot costs in disk
	Active        bool  // somebody streams from it
}

// slotWatch reads a slot's numbers from the server now and then. It is apart from the stream because they
// matter most when there is none.
type slotWatch struct {
	connect  func() (*pgx.ConnConfig, error)
	slot     string
	interval time.Duration

	// mu guards the fields below.
	mu      sync.Mutex
	reading slotReading
	readAt  time.Time // zero: nothing is known
}

func newSlotWatch(connect func() (*pgx.ConnConfig, error), slot string) *slotWatch {
	return &slotWatch{connect: connect, slot: slot, interval: slotInterval}
}

// Reading returns the newest numbers, and false when there are none or they are too old to act on.
func (w *slotWatch) Reading() (slotReading, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reading, !w.readAt.IsZero() && time.Since(w.readAt) < slotValidity
}

// Run reads until ctx ends. It keeps one connection and takes a new one when that fails. Failures go to failed,
// which may be nil; the stream meets the same ones and names a state for them.
func (w *slotWatch) Run(ctx context.Context, failed func(error)) {
	var conn *pgx.Conn
	closeConn := func() {
		if conn == nil {
			return
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), slotTimeout)
		defer cancel()
		_ = conn.Close(closing) // nothing was written through it
		// A query that ctx cut short leaves pgx closing the connection in the background.
		select {
		case <-conn.PgConn().CleanupDone():
		case <-closing.Done():
		}
		conn = nil
	}
	defer closeConn()
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for {
		if err := w.read(ctx, &conn); err != nil && ctx.Err() == nil {
			closeConn()
			if failed != nil {
				failed(err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// read asks once, connecting first where there is no connection.
func (w *slotWatch) read(ctx context.Context, conn **pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, slotTimeout)
	defer cancel()
	if *conn == nil {
		cfg, err := w.connect()
		if err != nil {
			return fmt.Errorf("connect for slot %q: %w", w.slot, err)
		}
		cfg.RuntimeParams["application_name"] = "relay " + w.slot + " watch"
		cfg.RuntimeParams["search_path"] = "pg_catalog"
		if *conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
			return fmt.Errorf("connect for slot %q: %w", w.slot, err)
		}
	}
	var r slotReading
	// On a standby server the current WAL position is the one received.
	err := (*conn).QueryRow(ctx, `
		SELECT coalesce(pg_wal_lsn_diff(wal.now, confirmed_flush_lsn), 0)::bigint,
		       coalesce(pg_wal_lsn_diff(wal.now, restart_lsn), 0)::bigint,
		       active
		FROM pg_replication_slots,
		     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END) AS wal(now)
		WHERE slot_name = $1`, w.slot).Scan(&r.LagBytes, &r.RetainedBytes, &r.Active)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		w.readAt = time.Time{}
		return nil
	case err != nil:
		return fmt.Errorf("read slot %q: %w", w.slot, err)
	}
	w.reading, w.readAt = r, time.Now()
	return nil
}
