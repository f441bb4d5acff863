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
	slotInterval = 5 * time.Second
	slotTimeout  = 5 * time.Second
	slotValidity = 30 * time.Second
)

// slotWatch reads a slot's numbers from the server now and then. It is apart from the stream because they
// matter most when there is none.
type slotWatch struct {
	connect  func() (*pgx.ConnConfig, error)
	slot     string
	interval time.Duration
	onRead   func(slotReading) // called after each reading; may be nil

	growth growth // of the goroutine that reads

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
	r, err := readSlot(ctx, *conn, w.slot)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	now := time.Now()
	if err == nil {
		r.Growth = w.growth.add(now, r.RetainedBytes)
		if w.onRead != nil {
			w.onRead(r)
		}
	} else {
		w.growth, now = growth{}, time.Time{} // there is no such slot
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading, w.readAt = r, now
	return nil
}
