package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
)

func TestNewLogger(t *testing.T) {
	t.Parallel()
	_, dsnErr := pgx.ParseConfig("postgres://relay:" + canary + "%zz@localhost/app")
	if dsnErr == nil {
		t.Fatal("the string was meant not to parse")
	}
	for _, format := range []string{"json", "auto", "text"} {
		var out bytes.Buffer
		log := newLogger(&out, LogConfig{Level: slog.LevelWarn, Format: format})
		log.Info("not written")
		log.With(logComponent, "cdc").Warn("stream lost", logDuration, 1500*time.Millisecond, logErr, fmt.Errorf("connect: %w", dsnErr))
		if isJSON := json.Valid(out.Bytes()); isJSON != (format != "text") {
			t.Errorf("%s: JSON is %v: %s", format, isJSON, out.String())
		}
		if strings.Contains(out.String(), canary) || strings.Contains(out.String(), "not written") {
			t.Errorf("%s: %s", format, out.String())
		}
		if !strings.Contains(out.String(), "1.5") || strings.Contains(out.String(), "1.5s") {
			t.Errorf("%s: duration is not in seconds: %s", format, out.String())
		}
	}
}

// entry is a line of the log without its time.
type entry struct {
	Level, Msg, State, Reason, Hint string
	Count                           int
	Duration                        float64
}

func entries(t *testing.T, out *bytes.Buffer) []entry {
	t.Helper()
	var list []entry
	for dec := json.NewDecoder(out); dec.More(); {
		var e entry
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func TestLogStateChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := newLogger(&out, LogConfig{Format: "json"})
		board := state.NewBoard(logStateChange(t.Context(), log, newThrottle(throttleInterval)))
		time.Sleep(2 * time.Second)
		board.Set(state.Status{State: state.DatabaseUnreachable, Reason: "try 1"})
		for i := range 70 { // one a second; synctest's clock
			time.Sleep(time.Second)
			board.Set(state.Status{State: state.DatabaseUnreachable, Reason: fmt.Sprint("try ", i+2)})
		}
		board.Set(state.Status{State: state.SlotMissing, Reason: "gone", Hint: "recover"})
		board.Set(state.Status{State: state.Streaming})
		want := []entry{
			{Level: "WARN", Msg: "state changed", State: "database_unreachable", Reason: "try 1", Duration: 2},
			{Level: "WARN", Msg: "reason changed", State: "database_unreachable", Reason: "try 2"},
			{Level: "WARN", Msg: "reason changed", State: "database_unreachable", Reason: "try 32", Count: 29},
			{Level: "WARN", Msg: "reason changed", State: "database_unreachable", Reason: "try 62", Count: 29},
			{Level: "ERROR", Msg: "state changed", State: "slot_missing", Reason: "gone", Hint: "recover", Duration: 70},
			{Level: "INFO", Msg: "state changed", State: "streaming"},
		}
		if diff := cmp.Diff(want, entries(t, &out)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	th := newThrottle(30 * time.Second)
	th.now = func() time.Time { return now }
	type step struct {
		after time.Duration
		key   string
		held  int
		ok    bool
	}
	for i, s := range []step{
		{0, "a", 0, true}, {time.Second, "a", 0, false}, {0, "b", 0, true}, {28 * time.Second, "a", 0, false},
		{time.Second, "a", 2, true}, {29 * time.Second, "a", 0, false}, {time.Hour, "a", 1, true}, {30 * time.Second, "a", 0, true},
	} {
		now = now.Add(s.after)
		if held, ok := th.allow(s.key); held != s.held || ok != s.ok {
			t.Errorf("step %d: allow(%q) = %d, %v, want %d, %v", i, s.key, held, ok, s.held, s.ok)
		}
	}
	th.reset("a")
	if _, ok := th.allow("a"); !ok {
		t.Error("after reset the first message was held back")
	}
}

func TestStateLevel(t *testing.T) {
	t.Parallel()
	for _, s := range state.All {
		if got := stateLevel(s); (got == slog.LevelError) != s.NeedsHuman() {
			t.Errorf("stateLevel(%s) = %s", s, got)
		}
	}
	if got := stateLevel(state.BrokerUnreachable); got != slog.LevelWarn {
		t.Errorf("broker_unreachable is %s, want WARN", got)
	}
}

func TestErrText_Joined(t *testing.T) {
	t.Parallel()
	_, dsnErr := pgx.ParseConfig("host=localhost password='" + canary)
	if got := errText(errors.Join(errors.New("a"), dsnErr)); strings.Contains(got, canary) {
		t.Errorf("errText = %q", got)
	}
}
