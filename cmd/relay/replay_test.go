package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/cdc"
)

func TestParseXacts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text        string
		first, last uint64
		ok          bool
	}{
		{"", 0, 0, true}, {"5", 5, 5, true}, {"5-9", 5, 9, true}, {"5-", 5, 0, true}, {"-9", 0, 9, true}, {"18446744073709551615", 1<<64 - 1, 1<<64 - 1, true},
		{"-", 0, 0, false}, {"x", 0, 0, false}, {"5-x", 0, 0, false}, {"0", 0, 0, false}, {"5-6-7", 0, 0, false}, {"5 or true", 0, 0, false}, {"18446744073709551616", 0, 0, false},
	} {
		first, last, err := parseXacts(c.text)
		if (err == nil) != c.ok || c.ok && (first != c.first || last != c.last) {
			t.Errorf("%q: %d, %d, %v", c.text, first, last, err)
		}
	}
}

// TestPacer keeps to the rate, and does not make up for the time that the broker was away.
func TestPacer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(100)
		began := time.Now()
		for range 40 {
			if p.chunk() != 25 {
				t.Fatalf("chunk of %d", p.chunk())
			}
			if err := p.wait(t.Context(), 25); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("1000 events took %v, want 10 s", d)
		}
		time.Sleep(time.Hour) // in the bubble's time: the broker is away
		began = time.Now()
		for range 40 {
			if err := p.wait(t.Context(), 25); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d < 8*time.Second {
			t.Errorf("1000 events took %v after an hour's pause", d)
		}
	})
	if n := newPacer(0).rate; n != defaultReplayRate {
		t.Errorf("default rate %d", n)
	}
	if p := newPacer(-1); p.rate != 0 || p.chunk() != replayChunk || p.wait(t.Context(), 1000) != nil {
		t.Error("no limit is a limit")
	}
	if n := newPacer(1).chunk(); n != 1 {
		t.Errorf("chunk of %d at 1 a second", n)
	}
}

func TestReplayWatch(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	w := newReplayWatch(func() time.Time { return now })
	say := func(after time.Duration, p replayProgress) string {
		now = now.Add(after)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return w.describe(text)
	}
	for _, c := range []struct {
		after time.Duration
		replayProgress
		want string
	}{
		{0, replayProgress{}, ""},
		{0, replayProgress{Below: 9, Total: 1000}, "0 of 1000 published"},
		{time.Second, replayProgress{Below: 9, Total: 1000, Published: 100}, "100 of 1000 published, 100/s, 9.0 s left"},
		{time.Second / 2, replayProgress{Below: 9, Total: 1000, Published: 150}, "100 of 1000 published, 100/s, 9.0 s left"},
		{time.Second / 2, replayProgress{Below: 9, Total: 1000, Published: 197, Refused: 1, Gone: 2}, "197 of 1000 published, 1 refused, the rows of 2 are gone, 100/s, 8.0 s left"},
		{time.Second / 4, replayProgress{Below: 9, Total: 1000, Published: 998, Gone: 2}, "998 of 1000 published, the rows of 2 are gone"},
	} {
		if got := say(c.after, c.replayProgress); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestRetentions(t *testing.T) {
	t.Parallel()
	l := loadText(t, `
postgres: {url: "postgres://relay@127.0.0.1/shop"}
sink: {type: stdout}
retention: {age: 168h, requests: 2160h}
tables:
  - name: outbox.events
  - name: public.outboxevent
    preset: debezium
  - name: shop.log
    columns: {id: log_id, aggregate_id: customer, payload: body, occurred_at: at}
    id_prefix: "log-"
    topic: log
    retention: 48h
  - name: shop.kept
    retention: off
`)
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	want := []cdc.Retention{{Table: "outbox.events", Age: 168 * time.Hour}, {Table: "shop.log", Age: 48 * time.Hour}}
	if got := l.config.retentions(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := newPruning(l.config, nil).Gone(); len(got) != 3 || got[requestsTable] != 0 {
		t.Errorf("counted are %v", got)
	}
	if got := (&pruneOptions{olderThan: time.Hour}).plan(l.config); len(got) != 3 {
		t.Errorf("older-than is for %v", got)
	}
	if got := (&pruneOptions{tables: []string{"shop.log"}}).plan(l.config); !slices.Equal(got, want[1:]) {
		t.Errorf("chosen: %v", got)
	}
	if got := defaultConfig(); len(got.retentions()) != 0 || len(newPruning(got, nil).Gone()) != 0 {
		t.Error("something is pruned without being asked for")
	}

	l = loadText(t, `
postgres: {url: "postgres://relay@127.0.0.1/shop"}
sink: {type: stdout}
retention: {age: 1s, requests: -1h, dead_letters: 2s, interval: 0s, batch: 0}
tables:
  - name: shop.a
    retention: 7d
  - name: public.outboxevent
    preset: debezium
    retention: 24h
`)
	err := l.check()
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, key := range []string{"retention.age", "retention.requests", "retention.dead_letters", "retention.interval", "retention.batch", "tables[0].retention", "tables[1].retention"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%s is accepted: %v", key, err)
		}
	}
}
