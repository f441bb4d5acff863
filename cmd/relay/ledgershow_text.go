package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// print writes the event and its deliveries for a person.
func (e *ledgerEvent) print(w io.Writer, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := labelled(tw)
	row("event", "%s", e.EventKey)
	if e.Tenant != "" {
		row("tenant", "%s", e.Tenant)
	}
	if r := e.Event; r != nil {
		row("type", "%s, occurred %s, remembered %s", r.Type, timeText(&r.OccurredAt), timeText(&r.RememberedAt))
		row("source", "%s", dash(text(r.Source)))
		if r.Position != nil {
			row("position", "%s", *r.Position)
		}
	} else {
		row("type", "not remembered: later attempts have the key and no content")
	}
	for _, d := range e.Deliveries {
		fmt.Fprintln(tw)
		d.print(tw, now)
	}
	if e.More {
		fmt.Fprintln(tw)
		row("more", "there are more deliveries: narrow them with --recipient and --channel, or raise --limit")
	}
	return tw.Flush()
}

// labelled returns a function that writes a label and a line of text beside it.
func labelled(w io.Writer) func(label, format string, args ...any) {
	return func(label, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", label, printable(fmt.Sprintf(format, args...)))
	}
}

func (d *ledgerDelivery) print(w io.Writer, now time.Time) {
	row := labelled(w)
	row("delivery", "%s by %s: %s", nobody(d.Recipient), d.Channel, strings.ToUpper(d.State))
	row("row", "id %d, generation %d, fence %d, %d of %d attempts, made %s", d.ID, d.Generation, d.Fence, d.Attempts, d.MaxAttempts, timeText(&d.CreatedAt))
	if d.Reason != nil {
		row("reason", "%s", *d.Reason)
	}
	if d.EffectAt != nil && d.DoneAt == nil {
		row("effect", "began %s, and its outcome is open", clock(*d.EffectAt, now))
	}
	if d.DoneAt != nil {
		row("settled", "%s", clock(*d.DoneAt, now))
	}
	if d.ProviderRef != nil {
		row("provider", "calls it %s", *d.ProviderRef)
	}
	if d.EffectAt != nil && d.DoneAt == nil {
		row("provider", "was given the key %s", d.ProviderKey)
	}
	if d.State == "reserved" {
		row("held", "by %s since %s, lease until %s", dash(text(d.Worker)), timeText(d.HeldSince), timeText(d.LeaseUntil))
	}
	for _, a := range d.History {
		row("attempt", "%s", a.line(d.Generation))
	}
	for _, u := range d.Decisions {
		row("decision", "%s %s, %s to %s, by %s (role %s): %s", timeText(&u.At), u.Action, u.From, u.To, u.Actor, u.Role, dash(u.Reason))
	}
	row("next", "%s", d.Next.Text)
}

// line tells of an attempt.
func (a *ledgerAttempt) line(generation int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", a.Attempt)
	if a.Generation != generation {
		fmt.Fprintf(&b, " of generation %d", a.Generation)
	}
	fmt.Fprintf(&b, ", fence %d, %s", a.Fence, dash(text(a.Worker)))
	if a.StartedAt != nil {
		fmt.Fprintf(&b, ", %s for %s", timeText(a.StartedAt), a.EndedAt.Sub(*a.StartedAt).Round(time.Millisecond))
	} else {
		fmt.Fprintf(&b, ", ended %s", timeText(&a.EndedAt))
	}
	if a.EffectAt != nil {
		b.WriteString(", effect begun")
	}
	fmt.Fprintf(&b, ": %s", a.Outcome)
	if a.Reason != nil {
		fmt.Fprintf(&b, ", %s", *a.Reason)
	}
	if a.ProviderRef != nil {
		fmt.Fprintf(&b, ", provider's %s", *a.ProviderRef)
	}
	if a.LateSuccess != nil {
		fmt.Fprintf(&b, "; reported success at %s, when another had begun: it may have arrived twice", timeText(a.LateSuccess))
	}
	return b.String()
}

// nobody stands for the recipient of a plain listener.
func nobody(recipient string) string {
	if recipient == "" {
		return "(no recipient)"
	}
	return recipient
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
