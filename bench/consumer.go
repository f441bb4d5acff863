package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// consumer reads a topic from its beginning with a client that no system uses to read.
type consumer struct {
	client *kgo.Client
	topic  string
}

// newTopic makes a topic that nothing has been written to.
func (b *bench) newTopic(ctx context.Context, partitions int) (string, error) {
	b.runs++
	name := fmt.Sprintf("bench.%d", b.runs)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.kafka.Brokers()...))
	if err != nil {
		return "", fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, int32(partitions), 1, nil, name); err != nil {
		return "", fmt.Errorf("create topic %q: %w", name, err)
	}
	return name, nil
}

// kafkaVersion is the broker's version as far as its protocol shows it.
func (b *bench) kafkaVersion(ctx context.Context) string {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.kafka.Brokers()...))
	if err != nil {
		return "unknown"
	}
	defer client.Close()
	versions, err := kadm.NewClient(client).ApiVersions(ctx)
	if err != nil {
		return "unknown"
	}
	for _, v := range versions {
		return v.VersionGuess() // there is one broker
	}
	return "unknown"
}

// deleteTopic gives the disk back.
func (b *bench) deleteTopic(ctx context.Context, name string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.kafka.Brokers()...))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).DeleteTopic(ctx, name); err != nil {
		return fmt.Errorf("delete topic %q: %w", name, err)
	}
	return nil
}

// newConsumer returns a consumer that waits in the broker for at most wait, so that a single record is not late.
func (b *bench) newConsumer(topic string, wait time.Duration, more ...kgo.Opt) (*consumer, error) {
	client, err := kgo.NewClient(append(more, kgo.SeedBrokers(b.kafka.Brokers()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(wait),
		kgo.FetchMaxBytes(8<<20), kgo.FetchMaxPartitionBytes(4<<20))...)
	if err != nil {
		return nil, fmt.Errorf("make Kafka client: %w", err)
	}
	return &consumer{client: client, topic: topic}, nil
}

// poll hands on the records of the next fetch.
func (c *consumer) poll(ctx context.Context, each func(*kgo.Record)) error {
	fetches := c.client.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("read topic %q: %w", c.topic, err)
	}
	fetches.EachRecord(each)
	return nil
}

// sight is when a drain's first and last row were seen.
type sight struct{ first, last time.Time }

// awaitRows reads until each of the rows has been seen.
func (c *consumer) awaitRows(ctx context.Context, rows int) (sight, error) {
	seen := make([]bool, rows+1)
	left := rows
	var at sight
	for left > 0 {
		err := c.poll(ctx, func(r *kgo.Record) {
			if n, ok := rowOfID(recordID(r)); ok && n <= rows && !seen[n] {
				seen[n] = true
				left--
			}
		})
		if err != nil {
			return at, errors.Join(fmt.Errorf("%d of %d rows have not come", left, rows), err)
		}
		if at.first.IsZero() && left < rows {
			at.first = time.Now()
		}
	}
	at.last = time.Now()
	return at, nil
}

// recordID returns the event ID that a record carries.
func recordID(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == "id" {
			return string(h.Value)
		}
	}
	return ""
}

// verify reads the topic as it stands now, all of it, and judges it.
func (b *bench) verify(ctx context.Context, topic string, d *dataset) (verdict, error) {
	// Control records too: the relay's fence leaves one in each partition, and the end is counted with them.
	c, err := b.newConsumer(topic, 100*time.Millisecond, kgo.KeepControlRecords())
	if err != nil {
		return verdict{}, err
	}
	defer c.client.Close()
	ends, err := kadm.NewClient(c.client).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return verdict{}, fmt.Errorf("list end offsets of topic %q: %w", topic, err)
	}
	v := newVerifier(d)
	left := map[int32]bool{} // partitions that have not been read to their end
	for p, o := range ends[topic] {
		if o.Offset > 0 {
			left[p] = true
		}
	}
	for len(left) > 0 {
		err := c.poll(ctx, func(r *kgo.Record) {
			if r.Offset+1 >= ends[topic][r.Partition].Offset {
				delete(left, r.Partition)
			}
			if !r.Attrs.IsControl() {
				v.add(r.Partition, recordID(r), r.Key, r.Value)
			}
		})
		if err != nil {
			return verdict{}, err
		}
	}
	return v.finish(), nil
}
