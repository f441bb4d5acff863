package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// reader is the consumer. Its client shares no code with the relay's.
type reader struct {
	client *kgo.Client
	tally  *tally
	next   map[int32]int64 // the next offset to read of each partition
}

// read reads every partition from its beginning until finishing ends, and then to where it ends.
func read(ctx, finishing context.Context, target Target, tally *tally) error {
	from := map[int32]kgo.Offset{}
	for p := range int32(target.Partitions) {
		from[p] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(target.Brokers...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{target.Topic: from}),
		kgo.KeepControlRecords(), // they have offsets too, and the end of a partition may be one
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	defer client.Close()
	r := &reader{client: client, tally: tally, next: map[int32]int64{}}
	for finishing.Err() == nil {
		if err := r.poll(finishing); err != nil {
			return err
		}
	}
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, target.Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("list end offsets of topic %q: %w", target.Topic, err)
	}
	for partition, end := range ends[target.Topic] {
		for r.next[partition] < end.Offset {
			if err := r.poll(ctx); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// poll takes what the next fetch brings.
func (r *reader) poll(ctx context.Context) error {
	fetches := r.client.PollFetches(ctx)
	if ctx.Err() == nil {
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read records: %w", err)
		}
	}
	fetches.EachRecord(func(rec *kgo.Record) {
		r.next[rec.Partition] = rec.Offset + 1
		if rec.Attrs.IsControl() {
			return
		}
		a := Arrival{AggregateID: string(rec.Key), Partition: rec.Partition, Offset: rec.Offset}
		for _, h := range rec.Headers {
			switch h.Key {
			case "id":
				a.EventID = string(h.Value)
			case "aggregate_type":
				a.AggregateType = string(h.Value)
			case "event_type":
				a.EventType = string(h.Value)
			}
		}
		r.tally.arrived(a)
	})
	return nil
}
