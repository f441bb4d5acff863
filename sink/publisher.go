package sink

import "context"

// Publisher is a broker, as lanes see it, for one session. Kafka and Stdout implement it.
//
// Every method makes one try and returns. Whoever calls it repeats it, and the one function that decides what an
// error means is verdictOf.
type Publisher interface {
	// Open acquires the broker for a new session: nothing that an earlier session, in this process or
	// another, still has under way may be appended after this session's first batch on the same partition.
	Open(ctx context.Context) error

	// Partitions returns how many partitions the topic has. Safe for concurrent use.
	Partitions(ctx context.Context, topic string) (int, error)

	// Send appends the batch to its partition and returns nil once it is durable there. After an error the
	// batch may or may not have been appended: the same batch must be sent again before any other of its
	// partition, until a definite answer comes; then it is there exactly once. Only a batch that was
	// definitely refused may be split. Safe for concurrent use with batches of different partitions.
	Send(ctx context.Context, b *Batch) error

	// Close lets go of the broker, what is under way included, and waits until its goroutines have ended or
	// ctx has. Calls under way, and later ones, return an error.
	Close(ctx context.Context) error
}
