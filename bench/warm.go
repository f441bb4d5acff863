package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// warmBroker has the broker compile its hot code, and make its internal topics, before anything is measured: a cold
// one takes several times the CPU, at the cost of whoever comes first.
func (b *bench) warmBroker(ctx context.Context) error {
	const records, transactions = 400_000, 20
	topic, err := b.newTopic(ctx, 6)
	if err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.kafka.Brokers()...), kgo.TransactionalID("bench-warm"),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	value := []byte(strings.Repeat("x", 200))
	for range transactions {
		if err := client.BeginTransaction(); err != nil {
			return fmt.Errorf("warm broker: %w", err)
		}
		var once sync.Once // keeps the first error
		var failed error
		for n := range records / transactions {
			client.Produce(ctx, &kgo.Record{Topic: topic, Key: fmt.Append(nil, n), Value: value}, func(_ *kgo.Record, err error) {
				if err != nil {
					once.Do(func() { failed = err })
				}
			})
		}
		if err := client.Flush(ctx); err != nil {
			return fmt.Errorf("warm broker: %w", err)
		}
		if err := errors.Join(failed, client.EndTransaction(ctx, kgo.TryCommit)); err != nil {
			return fmt.Errorf("warm broker: %w", err)
		}
	}
	c, err := b.newConsumer(topic, 50*time.Millisecond)
	if err != nil {
		return err
	}
	defer c.client.Close()
	for left := records; left > 0; {
		if err := c.poll(ctx, func(*kgo.Record) { left-- }); err != nil {
			return fmt.Errorf("warm broker: %w", err)
		}
	}
	return b.deleteTopic(ctx, topic)
}
