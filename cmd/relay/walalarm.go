package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// defaultWALWarn is how much retained WAL is worth a warning where the server sets no limit to it.
	defaultWALWarn = 1 << 30
	// leastWALWarn is a segment of WAL, which any slot may retain.
	leastWALWarn = 16 << 20
	// walAlarmInterval is how long after a warning the next one of its kind comes at the earliest.
	walAlarmInterval = 10 * time.Minute
)

// walAlarm says once that a slot retains too much WAL, once more when it is about to be lost, and once that it is
// over. A slot that goes up and down at the threshold does not fill the log: it is over only well below.
type walAlarm struct {
	slot  string
	warn  int64 // bytes; 0: half of the server's limit, or defaultWALWarn where there is none
	log   *slog.Logger
	again *throttle

	// level is what applies now; only see changes it.
	level atomic.Int32
	told  int32 // the highest level that was logged since it was last over
}

// Levels of a walAlarm.
const (
	walCalm     = iota
	walMuch     // more than the threshold
	walCritical // beyond the server's limit: the next checkpoint may give the slot up
)

func newWALAlarm(slot string, warn int64, log *slog.Logger) *walAlarm {
	return &walAlarm{slot: slot, warn: warn, log: log, again: newThrottle(walAlarmInterval)}
}

// threshold is the number of bytes from which on a reading is worth a warning.
func (a *walAlarm) threshold(r *slotReading) int64 {
	switch {
	case a.warn > 0:
		return a.warn
	case r.LimitBytes != nil:
		return max(*r.LimitBytes/2, leastWALWarn)
	}
	return defaultWALWarn
}

// see judges a reading. A slot that is lost already has a state of its own.
func (a *walAlarm) see(ctx context.Context, r slotReading) {
	level := a.judge(&r)
	a.level.Store(level)
	switch {
	case level == walCalm && a.told != walCalm:
		a.told = walCalm
		if r.WALStatus != "lost" {
			a.log.InfoContext(ctx, "slot retains little WAL again", logSlot, a.slot, logBytes, r.RetainedBytes)
		}
	case level > a.told:
		if _, ok := a.again.allow(fmt.Sprint(level)); !ok {
			return
		}
		a.told = level
		attrs := []any{logSlot, a.slot, logBytes, r.RetainedBytes, logReason, a.text(&r, level)}
		if s, ok := r.limitSeconds(); ok {
			attrs = append(attrs, logDuration, time.Duration(s*float64(time.Second)))
		}
		a.log.WarnContext(ctx, "slot retains much WAL", append(attrs, logHint, walHint(&r))...)
	}
}

// judge returns the level that a reading comes to.
func (a *walAlarm) judge(r *slotReading) int32 {
	threshold := a.threshold(r)
	switch {
	case r.WALStatus == "unreserved":
		return walCritical
	case r.WALStatus == "lost":
		return walCalm
	case r.RetainedBytes >= threshold, a.level.Load() != walCalm && r.RetainedBytes >= threshold-threshold/5:
		return walMuch
	}
	return walCalm
}

// warning is what status says of a reading; empty while there is nothing to warn of.
func (a *walAlarm) warning(r *slotReading) string {
	if level := a.judge(r); level != walCalm {
		return a.text(r, level)
	}
	return ""
}

func (a *walAlarm) text(r *slotReading, level int32) string {
	text := fmt.Sprintf("PostgreSQL keeps %s of WAL for slot %q", size(&r.RetainedBytes), a.slot)
	switch {
	case level == walCritical:
		return text + ", more than max_slot_wal_keep_size allows; the next checkpoint may give the slot up"
	case r.LimitBytes == nil:
		text += "; there is no limit but the disk"
	default:
		text += fmt.Sprintf(" of the %s that max_slot_wal_keep_size allows; beyond that the slot is lost", size(r.LimitBytes))
	}
	if s, ok := r.limitSeconds(); ok {
		text += fmt.Sprintf("; at the present rate in about %s", about(s))
	}
	return text
}

// walHint says what to do about much retained WAL.
func walHint(r *slotReading) string {
	cause := "mend what keeps the relay from publishing (relay status shows it)"
	if !r.Active {
		cause = "start a relay: nobody reads from the slot"
	}
	if r.LimitBytes == nil {
		return cause + "; ALTER SYSTEM SET max_slot_wal_keep_size bounds what a slot may cost, at the price of losing the slot"
	}
	return cause + ", or give it time where the disk has room: ALTER SYSTEM SET max_slot_wal_keep_size = '...'; SELECT pg_reload_conf()"
}
