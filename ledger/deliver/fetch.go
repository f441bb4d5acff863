package deliver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// fetcher reads a partition, record by record.
//
// kafka-go's Reader is not used: in a group it commits for generations that are over (issue 1308). Its Client hides
// control records, and with them the offsets they take: behind the marker that the relay writes when it starts it would
// fetch the same marker without a pause. So the batches are looked at one by one.
type fetcher struct {
	client *kafka.Client
	p      partition
	next   int64 // the offset to read; kafka.FirstOffset: where the log begins
}

// batch is what a fetch brought.
type batch struct {
	records []Record
	end     int64 // of the partition
	gap     int64 // records that the log no longer has
	moved   bool  // past something
}

const (
	fetchBytes = 1 << 20
	fetchWait  = 500 * time.Millisecond
)

func (f *fetcher) fetch(ctx context.Context) (batch, error) {
	ctx, cancel := context.WithTimeout(ctx, f.client.Timeout+fetchWait)
	defer cancel()
	if f.next < 0 {
		start, _, err := f.bounds(ctx)
		if err != nil {
			return batch{}, err
		}
		f.next = start
	}
	res, err := f.client.Fetch(ctx, &kafka.FetchRequest{
		Topic: f.p.topic, Partition: f.p.id, Offset: f.next, MinBytes: 1, MaxBytes: fetchBytes, MaxWait: fetchWait,
	})
	if err == nil {
		err = res.Error
	}
	if errors.Is(err, kafka.OffsetOutOfRange) {
		return f.outOfRange(ctx)
	}
	if err != nil {
		return batch{}, err
	}
	b := batch{end: res.HighWatermark}
	if err := f.read(res.Records, &b); err != nil {
		return batch{}, err
	}
	return b, nil
}

// read takes the records of a fetch and moves past them, and past what is no record. After an error it has moved past
// nothing.
func (f *fetcher) read(r kafka.RecordReader, b *batch) (err error) {
	stream, ok := r.(*protocol.RecordStream)
	if !ok {
		return nil // nothing there
	}
	before := f.next
	defer func() {
		if err != nil {
			f.next, b.records = before, nil
		}
	}()
	for _, part := range stream.Records {
		_, control := part.(*protocol.ControlBatch)
		for {
			rec, err := part.ReadRecord()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("decode batch: %w", err)
			}
			if err := f.take(rec, control, b); err != nil {
				return err
			}
		}
	}
	if f.next == before && len(stream.Records) > 0 && f.next < b.end {
		f.next++ // a batch that compaction has emptied: nothing is at this offset
	}
	b.moved = f.next > before
	return nil
}

func (f *fetcher) take(rec *protocol.Record, control bool, b *batch) error {
	key, err := readBytes(rec.Key)
	if err != nil {
		return err
	}
	value, err := readBytes(rec.Value)
	if err != nil {
		return err
	}
	if rec.Offset < f.next { // a batch is given whole
		return nil
	}
	f.next = rec.Offset + 1
	if control {
		return nil
	}
	out := Record{Topic: f.p.topic, Partition: f.p.id, Offset: rec.Offset, Time: rec.Time, Key: key, Value: value}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, Header{h.Key, h.Value})
	}
	b.records = append(b.records, out)
	return nil
}

// readBytes returns nil for null.
func readBytes(b protocol.Bytes) ([]byte, error) {
	if b == nil {
		return nil, nil
	}
	defer b.Close()
	out, err := protocol.ReadAll(b)
	if out == nil && err == nil {
		out = []byte{}
	}
	return out, err
}

// outOfRange goes on where the log begins: retention has passed the group by, or the topic was made anew. To read
// again adds nothing.
func (f *fetcher) outOfRange(ctx context.Context) (batch, error) {
	start, end, err := f.bounds(ctx)
	if err != nil {
		return batch{}, err
	}
	b := batch{end: end, moved: true}
	if f.next < start {
		b.gap = start - f.next
	}
	f.next = start
	return b, nil
}

func (f *fetcher) bounds(ctx context.Context) (start, end int64, err error) {
	res, err := f.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		f.p.topic: {kafka.FirstOffsetOf(f.p.id), kafka.LastOffsetOf(f.p.id)},
	}})
	if err != nil {
		return 0, 0, err
	}
	for _, o := range res.Topics[f.p.topic] {
		if o.Partition == f.p.id {
			return o.FirstOffset, o.LastOffset, o.Error
		}
	}
	return 0, 0, errors.New("the broker's answer does not mention the partition")
}
