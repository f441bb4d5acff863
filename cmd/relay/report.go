package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
)

// Report is what /status.json tells and relay status shows. Its fields are API.
type Report struct {
	state.Status
	Version   string          `json:"version"`
	StartedAt time.Time       `json:"started_at"`
	Slot      SlotReport      `json:"slot"`
	Received  ReceivedReport  `json:"received"`
	Published PublishedReport `json:"published"`
	Backlog   BacklogReport   `json:"backlog"`
}

// SlotReport is the replication slot as the server and the stream see it. The server's numbers are null while
// they are not known.
type SlotReport struct {
	Name          string `json:"name"`
	Held          bool   `json:"held"` // by this relay
	Sessions      uint64 `json:"sessions"`
	ReceivedLSN   string `json:"received_lsn"`
	ConfirmedLSN  string `json:"confirmed_lsn"`
	LagBytes      *int64 `json:"lag_bytes"`      // from the confirmed flush LSN to the server's current one
	RetainedBytes *int64 `json:"retained_bytes"` // WAL the server keeps for the slot
}

// ReceivedReport counts what came from PostgreSQL since the process started.
type ReceivedReport struct {
	Transactions uint64 `json:"transactions"`
	Events       uint64 `json:"events"`
	Bytes        uint64 `json:"bytes"`
}

// PublishedReport counts what went out since the process started.
type PublishedReport struct {
	Events  uint64 `json:"events"`
	Retries uint64 `json:"retries"`
}

// BacklogReport is what was received and is not yet published.
type BacklogReport struct {
	Events            uint64  `json:"events"`
	Bytes             uint64  `json:"bytes"`
	PublishLagSeconds float64 `json:"publish_lag_seconds"` // since the oldest unpublished commit
}

// report assembles the page from the process's snapshots.
func (s *sources) report(version string, started, now time.Time) Report {
	stream, sink := s.stream(), s.sink()
	r := Report{
		Status:    s.current(),
		Version:   version,
		StartedAt: started,
		Slot: SlotReport{
			Name: s.slotName, Held: stream.Connected, Sessions: stream.Sessions,
			ReceivedLSN: stream.ReceivedLSN.String(), ConfirmedLSN: stream.ConfirmedLSN.String(),
		},
		Received: ReceivedReport{Transactions: stream.ReceivedTransactions, Events: stream.ReceivedEvents, Bytes: stream.ReceivedBytes},
		Backlog:  BacklogReport{Events: stream.PendingEvents, Bytes: sink.BacklogBytes, PublishLagSeconds: publishLag(stream, now)},
	}
	if slot, ok := s.slot(); ok {
		r.Slot.LagBytes, r.Slot.RetainedBytes = &slot.LagBytes, &slot.RetainedBytes
	}
	for _, n := range sink.Published {
		r.Published.Events += n
	}
	for _, n := range sink.Retries {
		r.Published.Retries += n
	}
	return r
}

// publishLag is the age of the oldest commit whose events are not all published, in seconds; 0 when there is
// none. The commit's time is the server's clock, ours may be behind it.
func publishLag(stream cdc.Stats, now time.Time) float64 {
	if stream.OldestPending.IsZero() {
		return 0
	}
	return max(0, now.Sub(stream.OldestPending).Seconds())
}

// print writes the report for a person.
func (r *Report) print(w io.Writer, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", label, printable(fmt.Sprintf(format, args...)))
	}
	row("state", "%s for %s, since %s", r.State, now.Sub(r.Since).Round(time.Second), r.Since.Format(time.RFC3339))
	if r.Reason != "" {
		row("reason", "%s", r.Reason)
	}
	if r.Hint != "" {
		row("hint", "%s", r.Hint)
	}
	held := "not held by this relay"
	if r.Slot.Held {
		held = "held by this relay"
	}
	row("slot", "%s, %s", r.Slot.Name, held)
	row("confirmed", "%s, received %s", cmp.Or(r.Slot.ConfirmedLSN, "-"), cmp.Or(r.Slot.ReceivedLSN, "-"))
	row("slot lag", "%s, WAL retained %s", size(r.Slot.LagBytes), size(r.Slot.RetainedBytes))
	row("publish lag", "%.3f s", r.Backlog.PublishLagSeconds)
	backlog := int64(r.Backlog.Bytes)
	row("backlog", "%d events, %s", r.Backlog.Events, size(&backlog))
	received := int64(r.Received.Bytes)
	row("received", "%d events in %d transactions, %s", r.Received.Events, r.Received.Transactions, size(&received))
	row("published", "%d events, %d retries", r.Published.Events, r.Published.Retries)
	row("version", "%s, up %s", r.Version, now.Sub(r.StartedAt).Round(time.Second))
	return tw.Flush()
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
