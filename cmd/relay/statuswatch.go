package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// leastWatchInterval keeps a slip from becoming a load.
	leastWatchInterval = 200 * time.Millisecond
	// databaseAgain is how often a watch asks the database at most, while no relay answers.
	databaseAgain = 10 * time.Second
)

// watchStatus shows the status again and again until it is told to stop, which is how a watch ends well. A relay
// that does not answer is part of what is watched.
func (p *process) watchStatus(ctx context.Context, l *loader, o statusOptions) error {
	switch {
	case o.ready:
		return &usageError{problem: "--ready and --watch are given", hint: "choose one: --ready answers once"}
	case o.interval < leastWatchInterval:
		return &usageError{problem: fmt.Sprintf("--interval %s is too short", o.interval), hint: fmt.Sprintf("use %s or more", leastWatchInterval)}
	case l.config.Admin.Listen == "":
		_, err := fetchReport(ctx, "")
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	w := &statusWatch{loader: l, interval: o.interval}
	show := glance.line
	switch {
	case o.asJSON:
		show = glance.json
	case isTerminal(p.stdout) && !slices.Contains(p.environ, "TERM=dumb"):
		show = w.frame
		if _, err := io.WriteString(p.stdout, clearScreen); err != nil {
			return fmt.Errorf("print status: %w", err)
		}
	}
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		g := w.glance(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if _, err := io.WriteString(p.stdout, show(g)); err != nil {
			return fmt.Errorf("print status: %w", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// What moves on a terminal. Lines are written over in place, so that nothing flickers, and what is on the screen at
// the end stays there.
const (
	clearScreen = "\x1b[H\x1b[2J"
	toTop       = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// statusWatch remembers what a watch has seen.
type statusWatch struct {
	loader   *loader
	interval time.Duration

	last     *Report // the newest report
	lastAt   time.Time
	database *DatabaseReport // while no relay answers; nil: it cannot be asked, or has not been
	askedAt  time.Time
	gone     time.Time // since when no relay answers; zero: it does
}

// glance is one look.
type glance struct {
	at        time.Time
	report    *Report // nil: no relay answers
	restarted bool    // another process answers than before
	err       error   // why no relay answers
	gone      time.Duration
	database  *DatabaseReport
}

// glance asks the relay, or the database in its place. The rates are those since the last look.
func (w *statusWatch) glance(ctx context.Context) glance {
	r, err := fetchReport(ctx, w.loader.config.Admin.Listen)
	g := glance{at: time.Now(), report: r, err: err}
	if err != nil {
		if w.gone.IsZero() {
			w.gone = g.at
		}
		g.gone = g.at.Sub(w.gone)
		if g.at.Sub(w.askedAt) >= databaseAgain && w.loader.check("postgres") == nil {
			w.database, w.askedAt = askDatabase(ctx, w.loader.config), g.at
		}
		g.database = w.database
		return g
	}
	w.gone, w.database, w.askedAt = time.Time{}, nil, time.Time{}
	if w.last != nil {
		g.restarted = !w.last.StartedAt.Equal(r.StartedAt)
		if !g.restarted {
			r.ratesSince(w.last, g.at.Sub(w.lastAt))
		}
	}
	w.last, w.lastAt = r, g.at
	return g
}

// ratesSince replaces the rates by those since an earlier report of the same process.
func (r *Report) ratesSince(earlier *Report, took time.Duration) {
	if took <= 0 {
		return
	}
	r.Rates = &RatesReport{
		OverSeconds:        took.Seconds(),
		ReceivedPerSecond:  float64(r.Received.Events-min(r.Received.Events, earlier.Received.Events)) / took.Seconds(),
		PublishedPerSecond: float64(r.Published.Events-min(r.Published.Events, earlier.Published.Events)) / took.Seconds(),
	}
}

// frame is a look as a page for a terminal, written over the one before.
func (w *statusWatch) frame(g glance) string {
	addr := dialAddress(w.loader.config.Admin.Listen)
	page := fmt.Sprintf("relay at %s  %s  every %s, Ctrl-C ends\n\n", addr, g.at.UTC().Format("15:04:05Z"), w.interval)
	if g.report != nil {
		page += g.report.screen(g.at)
	} else {
		var s screen
		s.row("state", "unreachable for %s", g.gone.Round(time.Second))
		s.row("reason", "%s", errText(g.err))
		s.row("hint", "%s", hintOf(g.err))
		page += s.b.String()
		if g.database != nil {
			page += "\nThis is what the database says:\n\n" + g.database.screen(g.at)
		}
	}
	return toTop + strings.ReplaceAll(page, "\n", clearLine+"\n") + clearBelow
}

// line is a look as one line, for a file or a pipe.
func (g glance) line() string {
	parts := []string{g.at.UTC().Format(time.RFC3339)}
	if r := g.report; r != nil {
		parts[0] += " " + string(r.State)
		if g.restarted {
			parts = append(parts, "restarted")
		}
		if r.Rates != nil {
			parts = append(parts, fmt.Sprintf("%.1f/s in, %.1f/s out", r.Rates.ReceivedPerSecond, r.Rates.PublishedPerSecond))
		}
		if r.Before != nil {
			parts = append(parts, "before stream "+r.Before.progress())
		}
		parts = append(parts, fmt.Sprintf("backlog %d", r.Backlog.Events), fmt.Sprintf("publish lag %.3f s", r.Backlog.PublishLagSeconds),
			"WAL retained "+r.Slot.retained())
		if r.Reason != "" {
			parts = append(parts, r.Reason)
		}
		if r.Slot.Warning != "" {
			parts = append(parts, "warning: "+r.Slot.Warning)
		}
	} else {
		parts[0] += " unreachable"
		parts = append(parts, errText(g.err))
		if d := g.database; d != nil && d.Slot != nil {
			parts = append(parts, "slot "+d.Slot.holder(), "WAL retained "+d.Slot.retained())
		}
	}
	return printable(strings.Join(parts, "; ")) + "\n"
}

// json is a look as one line of JSON: a report, or what the database says.
func (g glance) json() string {
	var v any = g.report
	if g.report == nil {
		v = Unanswered{Error: errText(g.err), Database: g.database}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain values only, so that it cannot fail
	}
	return string(b) + "\n"
}
