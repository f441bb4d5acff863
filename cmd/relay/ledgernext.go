package main

import (
	"fmt"
	"time"
)

// ledgerNext says what happens next with a delivery, if nothing else comes in between. Name is one of: due, retry,
// blocked, held, takeover, park, exhausted, probe, needs_person, settled.
type ledgerNext struct {
	Name      string     `json:"name"`
	NotBefore *time.Time `json:"not_before"` // null: now, or not at all
	Text      string     `json:"text"`
}

// next foretells what the ledger's functions will decide, as ledger.next_step does. decide is the command line with
// which a person would.
func (d *ledgerDelivery) next(now time.Time, decide string) ledgerNext {
	switch d.State {
	case "pending", "failed":
		return d.nextWaiting(now)
	case "reserved":
		return d.nextReserved(now)
	case "uncertain":
		return d.nextUncertain(now, decide)
	case "dead":
		return ledgerNext{Name: "needs_person", Text: "nothing by itself: it needs a person, who fixes the cause, then: " + decide}
	}
	text := "nothing, it is settled"
	if d.settings.retention > 0 && d.DoneAt != nil {
		text += ", and forgotten not before " + clock(d.DoneAt.Add(d.settings.retention), now)
	}
	if d.State == "skipped" {
		text += "; to have it tried after all: " + decide
	}
	return ledgerNext{Name: "settled", Text: text}
}

// nextWaiting is about a delivery that nobody holds.
func (d *ledgerDelivery) nextWaiting(now time.Time) ledgerNext {
	attempt := fmt.Sprintf("attempt %d of %d", d.Attempts+1, d.MaxAttempts)
	switch {
	case d.Attempts >= d.MaxAttempts:
		return ledgerNext{Name: "exhausted", Text: "dead, when a worker or relay ledger sweep next meets it: its attempts are used up"}
	case d.predecessor == "skipped" || d.predecessor == "dead":
		return ledgerNext{Name: "settled", NotBefore: d.DueAt, Text: fmt.Sprintf("skipped, when a worker or relay ledger sweep next meets it: channel %s, which comes before it, is %s", *d.settings.after, d.predecessor)}
	case !d.ready():
		state := "is " + d.predecessor
		if d.predecessor == "absent" {
			state = "does not exist yet"
		}
		text := fmt.Sprintf("waits for the delivery by %s, which %s; looked at again at %s", *d.settings.after, state, clock(*d.DueAt, now))
		if d.settings.horizon > 0 {
			text += ", dead if that has not happened by " + clock(d.CreatedAt.Add(d.settings.horizon), now)
		}
		return ledgerNext{Name: "blocked", NotBefore: d.DueAt, Text: text}
	case d.DueAt != nil && d.DueAt.After(now):
		verb := "tried"
		if d.Attempts > 0 {
			verb = "retried"
		}
		return ledgerNext{Name: "retry", NotBefore: d.DueAt, Text: fmt.Sprintf("%s not before %s, %s", verb, clock(*d.DueAt, now), attempt)}
	}
	return ledgerNext{Name: "due", Text: fmt.Sprintf("due since %s: taken by the next worker that asks for channel %s, %s", clock(*d.DueAt, now), d.Channel, attempt)}
}

// nextReserved is about a delivery that a worker holds, or held until its lease ended.
func (d *ledgerDelivery) nextReserved(now time.Time) ledgerNext {
	over := !d.LeaseUntil.After(now)
	what, n := "another worker takes it over", ledgerNext{Name: "takeover"}
	window := d.FirstEffect != nil && d.FirstEffect.Add(d.settings.providerWindow).After(now)
	switch {
	case d.EffectAt != nil && d.settings.onUncertain == "resend" && window && d.Attempts < d.MaxAttempts && d.ready():
		what = "it is sent again under the same provider key"
	case d.EffectAt != nil:
		what, n.Name = "it becomes uncertain, for its effect has begun", "park"
	case d.Attempts >= d.MaxAttempts:
		what, n.Name = "it is dead, for its attempts are used up", "exhausted"
	}
	worker := "nobody"
	if d.Worker != nil {
		worker = *d.Worker
	}
	if over {
		n.Text = fmt.Sprintf("the lease of %s ended %s: when a worker%s next meets it, %s", worker, clock(*d.LeaseUntil, now), orSweep(n.Name), what)
		return n
	}
	return ledgerNext{Name: "held", NotBefore: d.LeaseUntil,
		Text: fmt.Sprintf("held by %s until %s; if nothing is heard by then, %s", worker, clock(*d.LeaseUntil, now), what)}
}

// ready reports whether the delivery that has to come before was made, or there is none.
func (d *ledgerDelivery) ready() bool { return d.predecessor == "" || d.predecessor == "delivered" }

// orSweep: sweep takes no row over, it only settles.
func orSweep(name string) string {
	if name == "takeover" {
		return ""
	}
	return " or relay ledger sweep"
}

// nextUncertain is about a delivery of which nobody knows whether it arrived.
func (d *ledgerDelivery) nextUncertain(now time.Time, decide string) ledgerNext {
	switch {
	case d.HeldSince != nil && d.ProbeUntil != nil && d.ProbeUntil.After(now):
		return ledgerNext{Name: "probe", NotBefore: d.ProbeUntil, Text: fmt.Sprintf("a probe of %s asks the provider until %s", *d.Worker, clock(*d.ProbeUntil, now))}
	case d.settings.onUncertain == "probe":
		return ledgerNext{Name: "probe", Text: fmt.Sprintf("asked about by the next worker with a probe for channel %s; a person who knows may say so: %s", d.Channel, decide)}
	}
	return ledgerNext{Name: "needs_person", Text: "nothing by itself: it needs a person, who finds out whether it arrived, then: " + decide}
}

// clock prints a time and how far it is from now.
func clock(t, now time.Time) string {
	at := t.UTC().Format(time.RFC3339)
	if d := t.Sub(now).Round(time.Second); d > 0 {
		return fmt.Sprintf("%s (in %s)", at, span(d))
	} else if d < 0 {
		return fmt.Sprintf("%s (%s ago)", at, span(-d))
	}
	return at
}

// span prints a duration to two units.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.0f days", d.Hours()/24)
	case d >= time.Hour:
		d = d.Round(time.Minute)
	}
	v := durationValue(d)
	return v.String()
}
