package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A page for a person: a column of labels and one of values, for the narrowest terminal that anybody has.
const (
	screenWidth = 80
	labelWidth  = 14
)

// screen collects the lines of such a page.
type screen struct {
	b strings.Builder
}

// row adds a label and its value. A value that is too long goes on below itself; no word is broken, so that a name
// or an address can be copied.
func (s *screen) row(label, format string, args ...any) {
	lead := fmt.Sprintf("%-*s", labelWidth, label)
	column := utf8.RuneCountInString(lead)
	s.b.WriteString(lead)
	for i, word := range strings.Fields(printable(fmt.Sprintf(format, args...))) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > screenWidth:
			s.b.WriteString("\n" + strings.Repeat(" ", labelWidth))
			column = labelWidth
		default:
			s.b.WriteByte(' ')
			column++
		}
		s.b.WriteString(word)
		column += n
	}
	s.b.WriteByte('\n')
}

// print writes the report for a person.
func (r *Report) print(w io.Writer, now time.Time) error {
	_, err := io.WriteString(w, r.screen(now))
	return err
}

// screen is the report as a page: what is wrong first, then where it is stuck, then what was counted.
func (r *Report) screen(now time.Time) string {
	var s screen
	s.row("state", "%s for %s, since %s", r.State, now.Sub(r.Since).Round(time.Second), r.Since.UTC().Format(time.RFC3339))
	if r.Reason != "" {
		s.row("reason", "%s", r.Reason)
	}
	if r.Hint != "" {
		s.row("hint", "%s", r.Hint)
	}
	if r.Slot.Warning != "" {
		s.row("warning", "%s", r.Slot.Warning)
	}
	s.row("slot", "%s, %s", r.Slot.Name, r.Slot.holder())
	s.row("confirmed", "%s, %s; received %s", r.Slot.ConfirmedLSN, r.Slot.rose(now), r.Slot.ReceivedLSN)
	s.row("publish lag", "%.3f s, the age of the oldest unpublished commit", r.Backlog.PublishLagSeconds)
	s.row("slot lag", "%s not confirmed", size(r.Slot.LagBytes))
	s.row("WAL retained", "%s", r.Slot.retained())
	if r.Before != nil {
		s.row("before stream", "%s", r.Before.progress())
	}
	if r.Rates != nil {
		s.row("events/s", "%.1f in, %.1f out, over the last %.0f s", r.Rates.ReceivedPerSecond, r.Rates.PublishedPerSecond, r.Rates.OverSeconds)
	}
	s.row("backlog", "%d events received and not yet published", r.Backlog.Events)
	s.row("in flight", "%s", r.Publishing.inFlight())
	s.row("lanes", "%d, %d halted", r.Publishing.Lanes, r.Publishing.HaltedLanes)
	s.row("retries", "%s", counts(r.Publishing.RetriesLastMinute, "none in the last minute", " in the last minute"))
	if r.Publishing.UndecidedChecks > 0 {
		s.row("duplicates", "possible; undecided checks after a restart: %d", r.Publishing.UndecidedChecks)
	}
	if r.DeadLetters != nil {
		s.row("dead letters", "%s", counts(r.DeadLetters, "none", ""))
	}
	received := int64(r.Received.Bytes)
	s.row("received", "%d events in %d transactions, %s", r.Received.Events, r.Received.Transactions, size(&received))
	s.row("published", "%d events, %d retries, %d found in Kafka", r.Published.Events, r.Published.Retries, r.Publishing.ResumedEvents)
	s.row("version", "%s, up %s", r.Version, now.Sub(r.StartedAt).Round(time.Second))
	return s.b.String()
}

// holder says who reads from the slot.
func (s *SlotReport) holder() string {
	switch {
	case s.Held:
		return "held by this relay"
	case s.Active == nil:
		return "not held by this relay"
	case !*s.Active:
		return "held by nobody"
	}
	who := "held by another session"
	if s.ActivePID != nil {
		who += fmt.Sprintf(", walsender pid %d", *s.ActivePID)
	}
	if s.ActiveApplication != "" {
		who += fmt.Sprintf(" (%s)", s.ActiveApplication)
	}
	return who
}

func (s *SlotReport) rose(now time.Time) string {
	if s.ConfirmedAt == nil {
		return "has not risen since the start"
	}
	return fmt.Sprintf("rose %s ago", about(max(0, now.Sub(*s.ConfirmedAt).Seconds())))
}

// retained says what the slot costs and how far it may go.
func (s *SlotReport) retained() string {
	parts := []string{size(s.RetainedBytes)}
	if s.WALStatus != "" {
		parts[0] += ", " + s.WALStatus
	}
	if s.Invalidation != "" {
		parts[0] += " (" + s.Invalidation + ")"
	}
	if s.GrowthPerSecond != nil {
		if n := int64(*s.GrowthPerSecond); n > 0 {
			parts = append(parts, "growing "+size(&n)+"/s")
		} else {
			parts = append(parts, "not growing")
		}
	}
	switch {
	case s.RetainedBytes == nil:
	case s.LimitBytes == nil:
		parts = append(parts, "no limit")
	case s.SafeWALBytes != nil:
		parts = append(parts, fmt.Sprintf("limit %s, %s left", size(s.LimitBytes), size(s.SafeWALBytes)))
	default:
		parts = append(parts, "limit "+size(s.LimitBytes))
	}
	if s.LimitSeconds != nil {
		parts = append(parts, "there in about "+about(*s.LimitSeconds))
	}
	return strings.Join(parts, "; ")
}

func (b *BeforeReport) progress() string {
	text := fmt.Sprintf("%d events left, %d published", b.Left, b.Done)
	if b.EventsPerSecond != nil && b.SecondsLeft != nil {
		text += fmt.Sprintf("; %.1f/s, about %s to go", *b.EventsPerSecond, about(*b.SecondsLeft))
	}
	return text
}

func (p *PublishingReport) inFlight() string {
	bytes := int64(p.InFlightBytes)
	text := fmt.Sprintf("%d events, %s", p.InFlightEvents, size(&bytes))
	if p.WindowBytes > 0 {
		text += fmt.Sprintf(" of the window's %s (%d %%)", size(&p.WindowBytes), bytes*100/p.WindowBytes)
	}
	return text
}

// counts lists numbers by name, those that are not 0.
func counts[N int64 | uint64](of map[string]N, none, suffix string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if of[name] != 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
		}
	}
	if len(parts) == 0 {
		return none
	}
	return strings.Join(parts, ", ") + suffix
}

// about words a span of time to two digits or so.
func about(seconds float64) string {
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds < 120:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 2*3600:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.0f h", seconds/3600)
	}
	return fmt.Sprintf("%.0f days", seconds/86400)
}

// size prints a number of bytes to three digits or so.
func size(n *int64) string {
	if n == nil {
		return "not known"
	}
	v, unit := float64(*n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", *n)
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}

// printable keeps control characters, which may have come with a name from the database, off the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
