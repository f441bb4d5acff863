package sinktest

import (
	"slices"
	"strings"

	"github.com/outboxrelay/relay/sink"
)

// Target is the other side, fresh for each test, and the publisher that speaks to it.
type Target struct {
	// New returns a publisher for a new session. A test may have several after one another, and two at a time.
	New func() sink.Publisher
	// Topic exists and is empty.
	Topic string
	// Read returns every record of the topic that the other side has taken, those of a partition in its order. It
	// may be called at any time.
	Read func() []Record

	// What the other side can be made to do; nil: it cannot.

	// LoseAnswer has it take what comes next and lose its answer, once.
	LoseAnswer func()
	// Stall has it answer nothing until resume is called.
	Stall func() (resume func())
	// Down takes it away until up is called.
	Down func() (up func())
	// Poison returns a value that it never takes.
	Poison func() []byte
	// Missing is a topic that does not exist; "": there is no such thing.
	Missing string

	// What the publisher promises.

	// Once: a batch that is sent again after its answer was lost is there once. Else it is there at least once.
	Once bool
	// Fences: once a new session has sent to a partition, nothing of an earlier one comes there.
	Fences bool
}

// Record is a record as the other side has it.
type Record struct {
	Partition int32
	Key       string
	Value     []byte // nil: null
	Headers   []Header
}

// Header is one header of a record.
type Header struct{ Name, Value string }

// header returns the value of the first header of a name.
func (r Record) header(name string) string {
	for _, h := range r.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// sorted returns the headers by name: some protocols keep no order.
func sorted(headers []Header) []Header {
	out := slices.Clone(headers)
	slices.SortStableFunc(out, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	return out
}
