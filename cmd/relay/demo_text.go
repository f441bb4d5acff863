//go:build !nodemo

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/internal/demo"
)

const (
	demoIntro = `Writers change orders in PostgreSQL, each change together with its event. The relay publishes to Kafka
what was committed, and a consumer checks: every committed event arrives, once and in order, and nothing
arrives that was rolled back.
`
	demoStopping = "Stopping. What is committed is still awaited and checked; Ctrl-C again ends at once."
)

// demoText shows a demo to a person. On a terminal the last line, which says how far it is, is written over.
type demoText struct {
	w       io.Writer
	inPlace bool

	// mu makes what is shown one thing at a time, and guards the fields below.
	mu    sync.Mutex
	over  bool // the cursor is at the end of a line that is to be written over
	begun bool // the preparation
	ready bool // the relay, and something may be committed
	ticks int
}

func newDemoText(w io.Writer, inPlace bool) *demoText { return &demoText{w: w, inPlace: inPlace} }

// dumbTerminal reports whether a terminal cannot erase a line.
func dumbTerminal(environ []string) bool {
	return !slices.ContainsFunc(environ, func(e string) bool {
		name, ok := strings.CutPrefix(e, "TERM=")
		return ok && name != "" && name != "dumb"
	})
}

func (v *demoText) listener() demo.Listener {
	return demo.Listener{Step: v.showStep, Ready: v.showReady, Progress: v.showProgress}
}

func (v *demoText) showStep(name string, elapsed time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if elapsed == 0 {
		if !v.begun {
			v.line("%s", demoIntro)
			v.begun = true
		}
		v.line("%s", name)
		return
	}
	const patience = 5 // seconds between two lines where lines cannot be written over
	if v.inPlace {
		v.status("  %.0f s", elapsed.Seconds())
	} else if int(elapsed.Seconds())%patience == 0 {
		v.line("  still %s, for %.0f s", name, elapsed.Seconds())
	}
}

func (v *demoText) showReady(t demo.Target) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.line("")
	v.ready = true
	version, _, _ := strings.Cut(t.PostgresVersion, " ") // what follows names the packager
	v.line("PostgreSQL %s, with the tables shop.orders and outbox.events:", version)
	v.line("    psql '%s'", t.PostgresURL)
	v.line("The broker, in this process, which speaks Kafka's protocol:")
	v.line("    %s, topic %s, %d partitions", strings.Join(t.Brokers, ","), t.Topic, t.Partitions)
	v.line("What the relay says about itself:")
	v.line("    http://%[1]s/status.json  http://%[1]s/metrics", t.AdminAddress)
	v.line("")
	v.line("All of this is gone when the demo ends. Ctrl-C ends it.")
	v.line("")
}

func (v *demoText) showProgress(p demo.Progress) {
	v.mu.Lock()
	defer v.mu.Unlock()
	const sampleEvery = 3 // lines
	if a := p.Last; a != nil && v.ticks%sampleEvery == 0 {
		v.line("       %s %s %s arrived %.1f ms after its commit: partition %d, offset %d",
			printable(a.AggregateType), printable(a.AggregateID), printable(a.EventType), float64(a.Delay.Microseconds())/1000, a.Partition, a.Offset)
	}
	v.ticks++
	v.status("%4.0f s  committed %d  rolled back %d  published %d  lag %.3f s",
		p.Elapsed.Seconds(), p.Committed, p.RolledBack, p.Published, p.Lag.Seconds())
}

func (v *demoText) stopping() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ready {
		v.line("%s", demoStopping)
	} else {
		v.line("Stopping.")
	}
}

func (v *demoText) summary(s demo.Summary) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.line("")
	for _, row := range []struct {
		what    string
		n       int
		meaning string
	}{
		{"committed", s.Committed, "changes of orders that stand in PostgreSQL, each with its event"},
		{"rolled back", s.RolledBack, "changes that were undone, with the transaction or to a savepoint"},
		{"published", s.Published, "different events that the consumer read from the broker"},
		{"lost", s.Lost, "committed and not published"},
		{"ghosts", s.Ghosts, "published and not committed"},
		{"duplicates", s.Duplicates, "published again"},
		{"out of order", s.OutOfOrder, "published after a later event of the same order"},
	} {
		v.line("  %-12s %7d   %s", row.what, row.n, row.meaning)
	}
	v.line("")
	if s.Err() == nil {
		v.line("Everything that was committed arrived once and in order, and nothing else did.")
	}
	v.line("It took %.1f s; the first event arrived after %.1f s.", s.Elapsed.Seconds(), s.FirstEvent.Seconds())
}

// line writes a line that stays. The caller holds mu.
func (v *demoText) line(format string, args ...any) {
	fmt.Fprintf(v.w, "%s%s\n", v.erase(), fmt.Sprintf(format, args...))
}

// status writes a line that the next one replaces, where that is possible. The caller holds mu.
func (v *demoText) status(format string, args ...any) {
	if !v.inPlace {
		v.line(format, args...)
		return
	}
	fmt.Fprintf(v.w, "%s%s", v.erase(), fmt.Sprintf(format, args...))
	v.over = true
}

// erase returns what takes away the line that is to be written over.
func (v *demoText) erase() string {
	if !v.over {
		return ""
	}
	v.over = false
	return "\r\x1b[K"
}

// log returns a writer for lines of the log, which must not end up in the middle of another one.
func (v *demoText) log(w io.Writer) io.Writer { return &demoLog{v, w} }

type demoLog struct {
	view *demoText
	w    io.Writer
}

func (l *demoLog) Write(b []byte) (int, error) {
	l.view.mu.Lock()
	defer l.view.mu.Unlock()
	if erase := l.view.erase(); erase != "" {
		fmt.Fprint(l.view.w, erase)
	}
	return l.w.Write(b)
}
