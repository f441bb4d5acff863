package sink

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Limits that no setting moves.
const (
	maxBatchRecords = 5000 // more gains nothing and makes a resend long
	maxTopicValues  = 4096 // values, of each route, whose topic is remembered
	minRecordBytes  = 1 << 10
)

// Config holds the settings of a Sink. Start from DefaultConfig.
type Config struct {
	// Route makes the topic of an event without an explicit one: {aggregate_type} stands for the event's
	// aggregate type, everything else for itself. Default "outbox.event.{aggregate_type}".
	Route string

	// Topics lists what an event's topic column may name. Default: none, so that an event with an explicit
	// topic halts the stream.
	Topics []string

	// Routes say what record an event becomes, each for the events that have its index in Committed.Route. Default:
	// one, of Route and Topics.
	Routes []Route

	// WindowBytes bounds the encoded records that are accepted and not yet acknowledged, over all lanes.
	// Accept blocks beyond it; a single larger record passes when nothing else is in flight. Default 16 MiB,
	// at least 64 KiB.
	WindowBytes int

	// BatchBytes is where a batch is closed. It must stay below the topics' max.message.bytes (1,048,588
	// unless changed); where it does not, refused batches are split and the lane learns. Default 900 KiB, at
	// least 4 KiB and at most WindowBytes.
	BatchBytes int

	// MaxRecordBytes is the largest record that is tried, counted as Kafka counts: as a batch with that one
	// record, 61 bytes of batch header included and before compression. A larger one is poison. It may be more than
	// WindowBytes: such a record goes when nothing else is in flight. Default 1,048,588, what a broker takes unless
	// told otherwise; at least 1 KiB.
	MaxRecordBytes int

	// Recheck is how long a lane that needs a human waits before it tries again. Default 30 s.
	Recheck time.Duration

	// UnreachableAfter is how long a lane's tries fail before the state broker_unreachable is raised.
	// Default 2 s.
	UnreachableAfter time.Duration

	// PartitionsEvery is how often a topic's partition count is read again. A new count is taken only when
	// nothing of the topic is in flight. Default 30 s.
	PartitionsEvery time.Duration

	// ResumeLSN is where the stream was resumed: the events that may have been published before are those not
	// below it. 0: any may have been.
	ResumeLSN outbox.LSN

	// NoResumeCheck leaves out looking, before a partition is first produced to, for what an earlier session has
	// published there. That takes the right to read the topics; without it, whatever was acknowledged and not
	// confirmed when a session ended is there twice. Default false.
	NoResumeCheck bool

	// DeadLetters keeps the events that cannot be published. Nil: there is no such place, so every route has the policy
	// halt.
	DeadLetters DeadLetters

	// Stopping is closed when the relay is told to stop. A stream that is halted then ends without the event that it
	// is halted at, which comes again. Nil: it waits until it is cut off.
	Stopping <-chan struct{}

	// CreateTopics makes a topic that an event goes to and that does not exist, with the brokers' defaults, rather
	// than wait for somebody who does. Default false.
	CreateTopics bool

	// Notice is told what is worth knowing about the settings of a topic, from one goroutine, as a sentence
	// whose subject is the topic. Nil: topics are not inspected.
	Notice func(topic, finding string)

	// Observe is called after each acknowledged batch, from the lanes' goroutines, so at the same time from
	// several. It must not block. Nil: nobody watches.
	Observe func(BatchResult)
}

// BatchResult tells what became of a batch that was acknowledged.
type BatchResult struct {
	Topic     string
	Partition int32
	Events    int
	Bytes     int           // encoded records, without the batch header
	Tries     int           // 1: acknowledged at once
	Produce   time.Duration // from the first try to the acknowledgement
	CommitAge time.Duration // from the commit of its oldest event to the acknowledgement; clocks of two machines
}

// DefaultConfig returns the settings that serve most.
func DefaultConfig() Config {
	return Config{
		Route:            "outbox.event.{aggregate_type}",
		WindowBytes:      16 << 20,
		BatchBytes:       900 << 10,
		MaxRecordBytes:   1048588,
		Recheck:          30 * time.Second,
		UnreachableAfter: 2 * time.Second,
		PartitionsEvery:  30 * time.Second,
	}
}

// Validate returns every problem of the settings, joined, or nil.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if _, err := c.routings(); err != nil {
		errs = append(errs, err)
	}
	for _, r := range c.Routes {
		if r.Poison != "" && r.Poison != PolicyHalt && c.DeadLetters == nil {
			bad("poison policy %q: there is no place for dead letters", r.Poison)
		}
		if r.DeadLetterTopic != "" && slices.Contains(c.namedTopics(), r.DeadLetterTopic) {
			bad("dead-letter topic %q: events go there", r.DeadLetterTopic)
		}
	}
	if c.WindowBytes < 64<<10 {
		bad("window of %d bytes: want at least 65536", c.WindowBytes)
	}
	if c.BatchBytes < 4<<10 || c.BatchBytes > c.WindowBytes {
		bad("batch of %d bytes: want 4096 up to the window's %d", c.BatchBytes, c.WindowBytes)
	}
	if c.MaxRecordBytes < minRecordBytes {
		bad("max record of %d bytes: want at least %d", c.MaxRecordBytes, minRecordBytes)
	}
	if c.Recheck <= 0 || c.UnreachableAfter <= 0 || c.PartitionsEvery <= 0 {
		bad("intervals recheck %v, unreachable after %v, partitions every %v: want each above 0",
			c.Recheck, c.UnreachableAfter, c.PartitionsEvery)
	}
	return errors.Join(errs...)
}

// largestRecord returns the largest record of any route.
func (c Config) largestRecord() int {
	most := c.MaxRecordBytes
	for _, r := range c.Routes {
		most = max(most, r.MaxRecordBytes)
	}
	return most
}

// routings makes the routes ready.
func (c Config) routings() ([]*routing, error) {
	routes := c.Routes
	if len(routes) == 0 {
		routes = []Route{{Topic: c.Route, Topics: c.Topics}}
	}
	out := make([]*routing, len(routes))
	var errs []error
	for i, r := range routes {
		var err error
		if out[i], err = newRouting(r); err != nil {
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}
