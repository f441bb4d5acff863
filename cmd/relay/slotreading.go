package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// slotReading is what the server says about a slot.
type slotReading struct {
	LagBytes      int64 // from the confirmed flush LSN to the current one
	RetainedBytes int64 // from the restart LSN to the current one: what the slot costs in disk

	Active      bool   // somebody streams from it
	HolderPID   int32  // of the walsender; 0: nobody's
	Application string // the holder's application_name; empty when the role may not see it

	WALStatus    string // reserved, extended, unreserved or lost; empty: not told
	SafeBytes    *int64 // WAL that may still be written before the slot can be lost; nil: no limit, or lost
	LimitBytes   *int64 // max_slot_wal_keep_size; nil: no limit
	Invalidation string // why the slot was given up, from PostgreSQL 17 on; empty: it was not

	Growth *float64 // of RetainedBytes, in bytes a second, see growth; nil: not known yet
}

// walStatuses lists what pg_replication_slots.wal_status can say.
var walStatuses = [...]string{"reserved", "extended", "unreserved", "lost"}

// limitSeconds estimates when the limit is reached if things go on like this; false when there is no limit or
// the retained WAL does not grow.
func (r *slotReading) limitSeconds() (seconds float64, ok bool) {
	if r.SafeBytes == nil || r.Growth == nil || *r.Growth <= 0 {
		return 0, false
	}
	return max(0, float64(*r.SafeBytes) / *r.Growth), true
}

// readSlot asks the server; pgx.ErrNoRows when there is no such slot. It only reads, and no table: an idle server
// has nothing to write for it.
func readSlot(ctx context.Context, conn *pgx.Conn, slot string) (slotReading, error) {
	var r slotReading
	var limit int64
	// On a standby server the current WAL position is the one received. A column that only later versions have is
	// asked for by way of jsonb.
	err := conn.QueryRow(ctx, `
		SELECT coalesce(pg_wal_lsn_diff(wal.now, s.confirmed_flush_lsn), 0)::bigint,
		       coalesce(pg_wal_lsn_diff(wal.now, s.restart_lsn), 0)::bigint,
		       s.active, coalesce(s.active_pid, 0),
		       coalesce((SELECT a.application_name FROM pg_stat_activity a WHERE a.pid = s.active_pid), ''),
		       coalesce(s.wal_status, ''), s.safe_wal_size,
		       pg_size_bytes(current_setting('max_slot_wal_keep_size')),
		       coalesce(to_jsonb(s) ->> 'invalidation_reason', '')
		FROM pg_replication_slots s,
		     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END) AS wal(now)
		WHERE s.slot_name = $1`, slot).Scan(&r.LagBytes, &r.RetainedBytes, &r.Active, &r.HolderPID, &r.Application,
		&r.WALStatus, &r.SafeBytes, &limit, &r.Invalidation)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return slotReading{}, err
	case err != nil:
		return slotReading{}, fmt.Errorf("read slot %q: %w", slot, err)
	}
	if limit >= 0 {
		r.LimitBytes = &limit
	}
	return r, nil
}

const (
	// growthWindow is over how long the growth of retained WAL is taken: an estimate follows what happens now.
	growthWindow = 2 * time.Minute
	// growthLeast is what must be known for it. The server lets go of WAL in steps, of 15 s where little happens.
	growthLeast = 20 * time.Second
)

// growth remembers sizes for as long as growthWindow.
type growth struct {
	points []point
}

type point struct {
	at   time.Time
	size int64
}

// add takes a size and returns the growth in bytes a second; nil while too little is known. What grows is the least
// size of the window's later half over that of its earlier half: a slot whose WAL comes and goes does not grow.
func (g *growth) add(at time.Time, size int64) *float64 {
	for len(g.points) > 0 && at.Sub(g.points[0].at) > growthWindow {
		g.points = g.points[1:]
	}
	g.points = append(g.points, point{at, size})
	took := at.Sub(g.points[0].at)
	if took < growthLeast {
		return nil
	}
	early, late := g.points[0], point{at, size}
	for _, p := range g.points {
		least := &late
		if at.Sub(p.at) > took/2 {
			least = &early
		}
		if p.size < least.size {
			*least = p
		}
	}
	perSecond := float64(late.size-early.size) / late.at.Sub(early.at).Seconds()
	return &perSecond
}
