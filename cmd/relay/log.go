package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/state"
)

// The keys of log attributes. The list is closed: dashboards and alerts are built on it, and a key that is not
// here has not been looked at for what it might disclose. No key is for payloads, header values or record keys.
const (
	logComponent     = "component"
	logState         = "state"
	logHint          = "hint"
	logSlot          = "slot"
	logPublication   = "publication"
	logLSN           = "lsn"
	logEndLSN        = "end_lsn"
	logConfirmedLSN  = "confirmed_lsn"
	logXID           = "xid"
	logEventID       = "event_id"
	logAggregateType = "aggregate_type"
	logTable         = "table"
	logTopic         = "topic"
	logPartition     = "partition"
	logKeyHash       = "key_hash"
	logRecipient     = "recipient"
	logChannel       = "channel"
	logAttempt       = "attempt"
	logDelay         = "delay"
	logErr           = "err"
	logReason        = "reason"
	logCount         = "count"
	logBytes         = "bytes"
	logDuration      = "duration"
)

// newLogger returns the process's logger: JSON, or text where a person looks on.
func newLogger(w io.Writer, c LogConfig) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.Level, ReplaceAttr: replaceAttr}
	if c.Format == "text" || c.Format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// replaceAttr gives durations one unit, seconds, and keeps connection strings out of error texts.
func replaceAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		a.Value = slog.Float64Value(v.Seconds())
	case error:
		a.Value = slog.StringValue(errText(v))
	}
	return a
}

// isTerminal reports whether w is a character device, which is as near as one gets without asking the system.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// logStateChange returns what a state.Board calls when its state changes. A new state is always logged; a
// reason that keeps changing within one state is throttled.
func logStateChange(ctx context.Context, log *slog.Logger, t *throttle) func(from, to state.Status) {
	return func(from, to state.Status) {
		attrs := []any{logState, string(to.State)}
		if to.Reason != "" {
			attrs = append(attrs, logReason, to.Reason)
		}
		if to.Hint != "" {
			attrs = append(attrs, logHint, to.Hint)
		}
		message := "state changed"
		if from.State == to.State {
			message = "reason changed"
			suppressed, ok := t.allow(string(to.State))
			if !ok {
				return
			}
			if suppressed > 0 {
				attrs = append(attrs, logCount, suppressed)
			}
		} else if !from.Since.IsZero() && to.Since.After(from.Since) {
			attrs = append(attrs, logDuration, to.Since.Sub(from.Since))
		}
		log.Log(ctx, stateLevel(to.State), message, attrs...)
	}
}

// noticeTopics returns what is told about the settings of topics. A finding is logged once in the process's life; a
// number of topics beyond the limit is not remembered and not told.
func noticeTopics(ctx context.Context, log *slog.Logger) func(topic, finding string) {
	type notice struct{ topic, finding string }
	var mu sync.Mutex // guards told
	told := map[notice]struct{}{}
	return func(topic, finding string) {
		mu.Lock()
		defer mu.Unlock()
		n := notice{topic, finding}
		if _, known := told[n]; known || len(told) >= maxTopicLabels {
			return
		}
		told[n] = struct{}{}
		log.WarnContext(ctx, "topic settings", logTopic, topic, logReason, finding)
	}
}

// stateLevel says how loud a state is.
func stateLevel(s state.State) slog.Level {
	switch {
	case s.NeedsHuman():
		return slog.LevelError
	case s.Ready(), s == state.Starting, s == state.SlotCreating, s == state.Draining:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
