package demo_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/demo"
)

// watchServers remembers where a demo's servers are, to see that they are gone.
type watchServers struct {
	tmp    string
	target demo.Target
	steps  []string
	told   int // progress
}

func newWatch(t *testing.T) *watchServers {
	t.Helper()
	// PostgreSQL may run as another user, who must reach it: not below t.TempDir.
	tmp, err := os.MkdirTemp("", "relay-demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o1777); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	return &watchServers{tmp: tmp}
}

func (w *watchServers) listener() demo.Listener {
	return demo.Listener{
		Step:     func(name string, _ time.Duration) { w.steps = append(w.steps, name) },
		Ready:    func(target demo.Target) { w.target = target },
		Progress: func(demo.Progress) { w.told++ },
	}
}

// expectGone fails the test if a server still runs or has left anything.
func (w *watchServers) expectGone(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(w.tmp, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
	for _, path := range processesNaming(t, w.tmp) {
		t.Errorf("still runs: %s", path)
	}
	if w.target.PostgresURL == "" {
		return
	}
	u, err := url.Parse(w.target.PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range append([]string{u.Host, w.target.AdminAddress}, w.target.Brokers...) {
		var port int
		if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil {
			t.Errorf("address %q: %v", address, err)
		} else if !child.PortFree(port) {
			t.Errorf("somebody still listens on %s", address)
		}
	}
}

// processesNaming lists the command lines that hold text. Without /proc there are none.
func processesNaming(t *testing.T, text string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(line), text) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func honest(_ int, e record) []record { return []record{e} }

func TestRun_honest(t *testing.T) {
	w := newWatch(t)
	c := cheat{publish: honest}
	got, err := demo.Run(t.Context(), t.Context(), demo.Config{Events: 200, Rate: 150, Relay: c.run, Listener: w.listener()})
	if err != nil || got.Err() != nil {
		t.Fatalf("error %v, %v", err, got.Err())
	}
	if got.Committed != 200 || got.Published != 200 || got.RolledBack == 0 || got.PostgresVersion == "" || got.FirstEvent <= 0 || got.Elapsed < got.FirstEvent {
		t.Errorf("got %+v", got)
	}
	if len(w.steps) < 3 || w.told == 0 {
		t.Errorf("told of steps %v and %d times of progress", w.steps, w.told)
	}
	w.expectGone(t)
}

// Each way to cheat is seen for what it is, and the last events are waited for.
func TestRun_cheated(t *testing.T) {
	w := newWatch(t)
	var held *record
	c := cheat{publish: func(nth int, e record) []record {
		switch {
		case nth == 10:
			return nil // lost
		case nth == 20:
			return []record{e, e} // duplicate
		case nth == 30:
			return []record{{id: uuid.New(), order: e.order}, e} // ghost
		case held == nil && nth > 40:
			held = &e // kept until the next version of the same order has gone, if there is one
			return nil
		case held != nil && held.order == e.order && held.version < e.version:
			late := *held
			held = &record{}
			return []record{e, late}
		}
		return []record{e}
	}}
	got, err := demo.Run(t.Context(), t.Context(), demo.Config{Events: 300, Patience: 2 * time.Second, Relay: c.run, Listener: w.listener()})
	if !errors.Is(err, demo.ErrStalled) {
		t.Fatalf("got error %v, want %v", err, demo.ErrStalled)
	}
	lost, late := 1, 1
	if held.id != uuid.Nil { // its order had no later version
		lost, late = 2, 0
	}
	if got.Committed != 300 || got.Lost != lost || got.Duplicates != 1 || got.Ghosts != 1 || got.OutOfOrder != late || got.Err() == nil {
		t.Errorf("got %+v, want %d lost, one duplicate, one ghost, %d out of order", got, lost, late)
	}
	w.expectGone(t)
}

// What a relay publishes after everything has arrived, and it has been told to stop, is seen too.
func TestRun_late_ghost(t *testing.T) {
	w := newWatch(t)
	c := cheat{publish: honest, last: func() (ghosts []record) {
		for n := range int64(10) {
			ghosts = append(ghosts, record{id: uuid.New(), order: n})
		}
		return ghosts
	}}
	got, err := demo.Run(t.Context(), t.Context(), demo.Config{Events: 50, Relay: c.run, Listener: w.listener()})
	if err != nil {
		t.Fatal(err)
	}
	if got.Ghosts != 10 || got.Published != 60 || got.Lost != 0 {
		t.Errorf("got %+v, want 10 ghosts", got)
	}
	w.expectGone(t)
}

func TestRun_stopped(t *testing.T) {
	t.Run("while writing", func(t *testing.T) {
		w := newWatch(t)
		soft, stop := context.WithCancel(t.Context())
		defer stop()
		c := cheat{publish: func(nth int, e record) []record {
			if nth == 20 {
				stop()
			}
			return []record{e}
		}}
		got, err := demo.Run(soft, t.Context(), demo.Config{Events: demo.MaxEvents, Rate: 200, Relay: c.run, Listener: w.listener()})
		if err != nil || got.Err() != nil || got.Committed < 20 || got.Committed > 1000 || got.Published != got.Committed {
			t.Errorf("got %+v, error %v", got, err)
		}
		w.expectGone(t)
	})
	t.Run("while starting", func(t *testing.T) {
		w := newWatch(t)
		soft, stop := context.WithCancel(t.Context())
		defer stop()
		l := w.listener()
		l.Step = func(string, time.Duration) { stop() }
		c := cheat{publish: honest}
		if _, err := demo.Run(soft, t.Context(), demo.Config{Events: 10, Relay: c.run, Listener: l}); err != demo.ErrStopped {
			t.Errorf("got error %v, want %v", err, demo.ErrStopped)
		}
		w.expectGone(t)
	})
	t.Run("at once", func(t *testing.T) {
		w := newWatch(t)
		hard, stop := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		c := cheat{publish: func(nth int, e record) []record {
			if nth == 20 {
				stop(cause)
			}
			return []record{e}
		}}
		got, err := demo.Run(hard, hard, demo.Config{Events: demo.MaxEvents, Rate: 200, Relay: c.run, Listener: w.listener()})
		if !errors.Is(err, cause) || got != (demo.Summary{}) {
			t.Errorf("got error %v, want %v; summary %+v", err, cause, got)
		}
		w.expectGone(t)
	})
}

func TestRun_relay_fails(t *testing.T) {
	broken := errors.New("broken")
	t.Run("at its start", func(t *testing.T) {
		w := newWatch(t)
		_, err := demo.Run(t.Context(), t.Context(), demo.Config{Events: 10, Listener: w.listener(),
			Relay: func(context.Context, context.Context, demo.Target) error { return broken }})
		if !errors.Is(err, broken) {
			t.Errorf("got error %v, want %v", err, broken)
		}
		w.expectGone(t)
	})
	t.Run("never ready", func(t *testing.T) {
		w := newWatch(t)
		_, err := demo.Run(t.Context(), t.Context(), demo.Config{Events: 10, Patience: time.Second, Listener: w.listener(),
			Relay: func(_, hard context.Context, _ demo.Target) error { <-hard.Done(); return nil }})
		if err == nil || !strings.Contains(err.Error(), "not ready") {
			t.Errorf("got error %v, want one that says so", err)
		}
		w.expectGone(t)
	})
	t.Run("panics", func(t *testing.T) {
		w := newWatch(t)
		defer func() {
			v := recover()
			if v == nil || !strings.Contains(fmt.Sprint(v), "out of its mind") {
				t.Errorf("recovered %v, want what the relay said", v)
			}
			w.expectGone(t)
		}()
		c := cheat{publish: func(nth int, e record) []record {
			if nth == 20 {
				panic("out of its mind")
			}
			return []record{e}
		}}
		demo.Run(t.Context(), t.Context(), demo.Config{Events: 1000, Relay: c.run, Listener: w.listener()})
	})
}

func TestRun_bad_settings(t *testing.T) {
	t.Parallel()
	c := cheat{publish: honest}
	for _, cfg := range []demo.Config{
		{Events: 0, Relay: c.run},
		{Events: -1, Relay: c.run},
		{Events: demo.MaxEvents + 1, Relay: c.run},
		{Events: 1, Rate: -1, Relay: c.run},
		{Events: 1, Rate: demo.MaxRate + 1, Relay: c.run},
		{Events: 1},
	} {
		if _, err := demo.Run(t.Context(), t.Context(), cfg); err == nil {
			t.Errorf("events %d, rate %v: no error", cfg.Events, cfg.Rate)
		}
	}
}
