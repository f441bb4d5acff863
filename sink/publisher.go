package sink

import "context"

// Publisher is where lanes send their batches, for one session. Kafka, Webhook and Stdout implement it; package sinktest
// holds, as tests, what follows here, and whoever writes another one runs them over it.
//
// Every method makes one try and returns. Whoever calls it repeats it, with backoff, and says what is wrong. What an
// error means a publisher says by returning a *Fault, wrapped or not; an error that is none means that nobody knows
// what became of the try. verdictOf is the one function that decides.
//
// A publisher that can also be read back implements resumer, so that a restart adds no duplicate; one that has topics
// with settings implements inspector. Both are optional.
type Publisher interface {
	// Open acquires the broker for a new session: nothing that an earlier session, in this process or another, still
	// has under way may be appended after this session's first batch on the same partition. A publisher to
	// something that cannot promise that says so in its documentation.
	Open(ctx context.Context) error

	// Partitions returns how many partitions the topic has, at least one. An event's partition is made of its key and
	// this number, so as long as it does not change, neither does the place of a key. Safe for concurrent use.
	Partitions(ctx context.Context, topic string) (int, error)

	// Send appends the batch to its partition and returns nil once it is durable there. Batch.Records has what to
	// write: keys, values and headers byte for byte, a nil value being another thing than an empty one.
	//
	// After an error the batch may or may not have been appended: the same batch, the same pointer, is sent again
	// before any other of its partition, until a definite answer comes; then it is there exactly once, in its place.
	// A publisher to something that cannot recognise it has it there at least once, and says so. After a Fault of
	// kind FaultPoison a batch of several records is split, and its records come again in other batches, in order.
	//
	// When ctx ends, Send returns soon. The batch and its bytes are the lane's: a publisher keeps nothing of them
	// when it has returned nil. Safe for concurrent use with batches of different partitions; a partition has one
	// at a time.
	Send(ctx context.Context, b *Batch) error

	// Close lets go of the broker, what is under way included, and waits until its goroutines have ended or ctx has.
	// Sends under way, and later ones, return an error. Closing again returns nil.
	Close(ctx context.Context) error
}
