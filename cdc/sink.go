package cdc

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// Sink takes the events of one session. cdc calls it; package sink implements it.
type Sink interface {
	// Accept takes events in stream order; they may span transactions. The i-th event has the sequence number
	// firstSeq+i; numbers are dense and start at 1. Accept blocks for backpressure, for as long as it takes;
	// it returns early only with ctx's cause or with the error that ended the sink. The events' bytes are
	// borrowed: the sink copies or encodes what it needs before it returns. One goroutine calls Accept.
	Accept(ctx context.Context, firstSeq uint64, events []outbox.Committed) error

	// Run acquires the broker, publishes what Accept takes and calls the done function it was built with for
	// every event that the broker has acknowledged. It returns nil once Drain was called and everything is
	// acknowledged, or all that can be where it was told of a stop, ctx's cause when ctx ends, or the error that ends the session. All goroutines have ended
	// when it returns.
	Run(ctx context.Context) error

	// Drain says that no Accept will follow: Run returns as soon as everything accepted is acknowledged.
	Drain()
}

// Session is what a sink needs to know of the stream it serves.
type Session struct {
	Source      string     // short hash of system identifier, database and slot; 16 hexadecimal digits
	Incarnation uint32     // incarnation of every position in this session
	ResumeLSN   outbox.LSN // every event at or above it may be sent again; 0: they are listed ones, which have no LSN
	Owner       string     // token that every write about the slot has to name
	// Stopping is closed when the relay is told to stop: what cannot be finished then need not be waited for.
	Stopping <-chan struct{}
	// Done tells the stream that these events are acknowledged by the broker (or durably settled otherwise).
	// Any order, any number; safe for concurrent use; does not block. The slice is not kept.
	Done func(seqs []uint64)
}

// Opener builds the sink of a session. It is called once the slot is ours and must not block.
type Opener func(Session) (Sink, error)

// Stats is a snapshot of what a stream has done since it was made.
type Stats struct {
	Connected            bool              // a session holds the slot
	Sessions             uint64            // sessions that got the slot
	Reconnects           map[string]uint64 // sessions and attempts that ended, by state or "stopped"
	ReceivedTransactions uint64            // commits received, empty ones included
	ReceivedEvents       uint64            // inserts into outbox tables received
	ReceivedBytes        uint64            // bytes of WAL messages received
	SkippedMessages      uint64            // messages of kinds the relay has no use for
	ReceivedLSN          outbox.LSN        // highest position read from the stream
	ConfirmedLSN         outbox.LSN        // what was promised never to be needed again
	LastConfirm          time.Time         // when ConfirmedLSN last rose; zero: not yet
	PendingEvents        uint64            // received, not yet acknowledged
	OldestPending        time.Time         // commit time of the oldest unacknowledged transaction; zero: none
	BacklogLeft          uint64            // listed events that go before the stream and are not published yet
	BacklogVanished      uint64            // of those, ever: the row was gone when its turn came
}
