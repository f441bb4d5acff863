package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// Kind says which promise a violation breaks.
type Kind string

// The kinds; the package's documentation says what each promise is.
const (
	Lost     Kind = "lost"
	Ghost    Kind = "ghost"
	Changed  Kind = "changed"
	Order    Kind = "order"
	Moved    Kind = "moved"
	Position Kind = "position"
	Repeated Kind = "repeated"
)

// Repeats says how many repeated runs a history may have, over all partitions.
type Repeats int

// AnyRepeats allows any number: somebody was killed.
const AnyRepeats Repeats = -1

// Report is what Check found.
type Report struct {
	Facts      int
	Records    int
	Runs       int               // repeated runs
	Duplicates int               // records in them
	Violations map[Kind][]string // by kind, in the order in which they were found
}

// Err returns nil when nothing is wrong, else an error that counts and shows the violations.
func (r *Report) Err() error {
	if len(r.Violations) == 0 {
		return nil
	}
	const shown = 8
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(r.Violations)) {
		list := r.Violations[kind]
		fmt.Fprintf(&b, "\n%s: %d", kind, len(list))
		for _, text := range list[:min(shown, len(list))] {
			fmt.Fprintf(&b, "\n\t%s", text)
		}
	}
	return fmt.Errorf("check %s: %s", r, b.String())
}

// String sums the report up.
func (r *Report) String() string {
	return fmt.Sprintf("%d events, %d records, %d duplicates in %d runs", r.Facts, r.Records, r.Duplicates, r.Runs)
}

func (r *Report) add(kind Kind, format string, args ...any) {
	r.Violations[kind] = append(r.Violations[kind], fmt.Sprintf(format, args...))
}

// history is what is known while a topic is gone through.
type history struct {
	report *Report
	facts  map[string]*Fact
	seen   map[string]sighting // by event ID
	home   map[string]int32    // partition by aggregate
	newest map[string]int64    // highest version by aggregate
}

// sighting is an event's first record.
type sighting struct {
	partition int32
	index     int // among the first occurrences of its partition
	position  outbox.Position
}

// Check holds a topic's records, by partition and offset as testenv.Consume returns them, against the truth.
func Check(facts []Fact, records []testenv.Record, allowed Repeats) *Report {
	h := &history{
		report: &Report{Facts: len(facts), Records: len(records), Violations: map[Kind][]string{}},
		facts:  make(map[string]*Fact, len(facts)),
		seen:   make(map[string]sighting, len(facts)),
		home:   map[string]int32{}, newest: map[string]int64{},
	}
	for i := range facts {
		h.facts[facts[i].EventID] = &facts[i]
	}
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].Partition == records[0].Partition {
			n++
		}
		h.partition(records[:n])
		records = records[n:]
	}
	for i := range facts {
		if _, ok := h.seen[facts[i].EventID]; !ok {
			h.report.add(Lost, "event %s, version %d of %s, transaction %s", facts[i].EventID, facts[i].Version, facts[i].Aggregate, facts[i].XID)
		}
	}
	if allowed != AnyRepeats && h.report.Runs > int(allowed) {
		h.report.add(Repeated, "%d runs, %d records in them; allowed are %d runs", h.report.Runs, h.report.Duplicates, allowed)
	}
	return h.report
}

// partition goes through the records of one partition.
func (h *history) partition(records []testenv.Record) {
	firsts, previous := 0, -1 // first occurrences so far; index of the record before
	newest := outbox.Position{}
	for i := range records {
		rec := &records[i]
		at := fmt.Sprintf("partition %d offset %d", rec.Partition, rec.Offset)
		id, _ := rec.Header("id")
		fact := h.facts[id]
		if fact == nil {
			h.report.add(Ghost, "%s: event %q is not in the truth, key %q", at, id, rec.Key)
			continue
		}
		what := fmt.Sprintf("%s: event %s, version %d of %s", at, id, fact.Version, fact.Aggregate)
		h.content(rec, fact, what)
		position := h.position(rec, what)

		first, again := h.seen[id]
		switch {
		case again && first.partition != rec.Partition:
			h.report.add(Moved, "%s: is in partition %d already", what, first.partition)
			continue
		case again:
			h.report.Duplicates++
			if first.index != previous+1 {
				h.report.Runs++
			}
			if position != first.position {
				h.report.add(Position, "%s: at %v, and at %v before", what, position, first.position)
			}
			previous = first.index
			continue
		}
		if previous != firsts-1 {
			h.report.add(Order, "%s: is new, while a repeated run is %d records short of its end", what, firsts-1-previous)
		}
		if v := h.newest[fact.Aggregate]; fact.Version != v+1 {
			h.report.add(Order, "%s: after version %d", what, v)
		}
		if position.Compare(newest) <= 0 {
			h.report.add(Position, "%s: at %v, which is not above %v", what, position, newest)
		}
		if home, known := h.home[fact.Aggregate]; known && home != rec.Partition {
			h.report.add(Moved, "%s: its aggregate is in partition %d", what, home)
		}
		h.home[fact.Aggregate] = rec.Partition
		h.newest[fact.Aggregate] = max(h.newest[fact.Aggregate], fact.Version)
		h.seen[id] = sighting{rec.Partition, firsts, position}
		newest, previous = position, firsts
		firsts++
	}
}

// content compares a record with what it must be.
func (h *history) content(rec *testenv.Record, fact *Fact, what string) {
	if string(rec.Key) != fact.Key || rec.Key == nil {
		h.report.add(Changed, "%s: key %q, want %q", what, rec.Key, fact.Key)
	}
	if got := Digest(rec.Value); got != fact.Value {
		h.report.add(Changed, "%s: value of %d bytes has digest %s, want %s", what, len(rec.Value), got, fact.Value)
	}
	found := map[string]bool{}
	for _, header := range rec.Headers {
		if found[header.Key] {
			h.report.add(Changed, "%s: header %q twice", what, header.Key)
		}
		found[header.Key] = true
		want, expected := fact.Headers[header.Key]
		switch {
		case header.Key == "relay_position":
		case !expected:
			h.report.add(Changed, "%s: header %q is not one of its", what, header.Key)
		case header.Key == "occurred_at" && sameTime(string(header.Value), want):
		case string(header.Value) != want:
			h.report.add(Changed, "%s: header %s is %q, want %q", what, header.Key, header.Value, want)
		}
	}
	for name := range fact.Headers {
		if !found[name] {
			h.report.add(Changed, "%s: header %q is missing", what, name)
		}
	}
}

// position reads a record's relay_position.
func (h *history) position(rec *testenv.Record, what string) outbox.Position {
	text, ok := rec.Header("relay_position")
	if !ok {
		h.report.add(Position, "%s: has none", what)
		return outbox.Position{}
	}
	_, p, err := outbox.ParsePosition(text)
	if err != nil {
		h.report.add(Position, "%s: %v", what, err)
	}
	return p
}

func sameTime(a, b string) bool {
	x, err := time.Parse(time.RFC3339Nano, a)
	if err != nil {
		return false
	}
	y, err := time.Parse(time.RFC3339Nano, b)
	return err == nil && x.Equal(y)
}
