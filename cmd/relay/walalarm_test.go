package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestWALAlarm follows a slot up to its limit and back: one line for each thing that happened.
func TestWALAlarm(t *testing.T) {
	t.Parallel()
	const MiB = 1 << 20
	var out bytes.Buffer
	a := newWALAlarm("s", 0, slog.New(slog.NewTextHandler(&out, nil)))
	now := time.Now()
	a.again.now = func() time.Time { return now }
	see := func(retained int64, status string, want string) {
		t.Helper()
		out.Reset()
		now = now.Add(time.Second)
		r := slotReading{RetainedBytes: retained, WALStatus: status, LimitBytes: ptr[int64](100 * MiB), Active: true}
		if status != "lost" {
			r.SafeBytes, r.Growth = ptr(100*MiB-retained), ptr[float64](MiB)
		}
		a.see(t.Context(), r)
		if want == "" && out.Len() > 0 || want != "" && !strings.Contains(out.String(), want) {
			t.Errorf("%d MiB, %s: %q, want %q", retained/MiB, status, out.String(), want)
		}
		if got, wantWarning := a.warning(&r) != "", a.level.Load() != walCalm; got != wantWarning {
			t.Errorf("%d MiB, %s: warning %q", retained/MiB, status, a.warning(&r))
		}
	}
	see(49*MiB, "reserved", "")
	see(50*MiB, "reserved", `level=WARN msg="slot retains much WAL" slot=s bytes=52428800 reason="PostgreSQL keeps 50.0 MiB of WAL for slot \"s\" of the 100.0 MiB that max_slot_wal_keep_size allows; beyond that the slot is lost; at the present rate in about 50 s" duration=50s hint="mend`)
	see(60*MiB, "extended", "")
	see(49*MiB, "reserved", "") // not well below
	see(101*MiB, "unreserved", "the next checkpoint may give the slot up")
	see(102*MiB, "unreserved", "")
	see(39*MiB, "reserved", `level=INFO msg="slot retains little WAL again" slot=s bytes=40894464`)
	see(38*MiB, "reserved", "")
	see(51*MiB, "reserved", "") // a second time, too soon
	see(10*MiB, "reserved", "") // what was not told is not over
	now = now.Add(walAlarmInterval)
	see(51*MiB, "reserved", "slot retains much WAL")
	see(0, "lost", "") // which is a state
	see(0, "lost", "")
}

func TestWALAlarm_Threshold(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		warn  int64
		limit *int64
		want  int64
	}{
		{0, nil, 1 << 30},
		{0, ptr[int64](64 << 20), 32 << 20},
		{0, ptr[int64](0), 16 << 20},
		{5, ptr[int64](64 << 20), 5},
	} {
		a := newWALAlarm("s", tt.warn, nil)
		if got := a.threshold(&slotReading{LimitBytes: tt.limit}); got != tt.want {
			t.Errorf("threshold of %+v = %d", tt, got)
		}
	}
	a := newWALAlarm("s", 0, nil)
	r := slotReading{RetainedBytes: 2 << 30}
	if w := a.warning(&r); !strings.Contains(w, "no limit but the disk") {
		t.Errorf("unlimited: %q", w)
	}
	if h := walHint(&r); !strings.Contains(h, "start a relay") || !strings.Contains(h, "bounds what a slot may cost") {
		t.Errorf("unlimited, nobody reads: %q", h)
	}
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	const step = 5 * time.Second
	// run adds sizes a step apart, and returns the growth after each.
	run := func(sizes func(i int) int64, n int) (all []*float64) {
		var g growth
		start := time.Now()
		for i := range n {
			all = append(all, g.add(start.Add(time.Duration(i)*step), sizes(i)))
		}
		return all
	}
	for i, g := range run(func(i int) int64 { return int64(i) * 50 }, 100) {
		if short := time.Duration(i)*step < growthLeast; (g == nil) != short || !short && *g != 10 {
			t.Fatalf("what grows by 10 a second grows by %v after %d", g, i)
		}
	}
	// The server lets go of everything every 15 s.
	for i, g := range run(func(i int) int64 { return int64(i%3) * 1000 }, 100) {
		if g != nil && *g > 0 {
			t.Fatalf("what comes and goes grows by %v after %d", *g, i)
		}
	}
	// It let go of everything once, and then no more.
	last := run(func(i int) int64 { return int64(i%50) * 50 }, 100)
	if g := last[99]; g == nil || *g != 10 {
		t.Errorf("what was let go of long ago still counts: %v", g)
	}
	if g := last[50]; g == nil || *g >= 0 {
		t.Errorf("what was just let go of grows: %v", g)
	}
}
