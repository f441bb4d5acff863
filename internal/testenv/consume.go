package testenv

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Record is a record as it stands in a topic. A nil Key or Value is null.
type Record struct {
	Topic       string
	Partition   int32
	Offset      int64
	LeaderEpoch int32
	Time        time.Time
	Key, Value  []byte
	Headers     []Header

	// The batch's producer; -1 where it had none.
	ProducerID    int64
	ProducerEpoch int16
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Header returns the value of the first header of a name, and whether there is one.
func (r *Record) Header(name string) (value string, ok bool) {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// Consume reads a topic from its beginning to where it ends now, with a client that shares no code with the
// relay's, and returns the records by partition and offset. Records of aborted transactions are among them,
// control records are not.
func Consume(tb testing.TB, brokers []string, topic string) []Record {
	tb.Helper()
	r := newReader(tb, brokers, topic)
	defer r.client.Close()
	r.readTo(tb, r.ends(tb))
	return r.sorted()
}

// ConsumeN reads a topic from its beginning until it has at least n records, and fails the test when that
// takes longer than within. It returns what Consume would.
func ConsumeN(tb testing.TB, brokers []string, topic string, n int, within time.Duration) []Record {
	tb.Helper()
	r := newReader(tb, brokers, topic)
	defer r.client.Close()
	ctx, cancel := context.WithTimeout(tb.Context(), within)
	defer cancel()
	for len(r.records) < n {
		if !r.poll(tb, ctx) {
			tb.Fatalf("topic %q: %d of %d records within %v", topic, len(r.records), n, within)
		}
	}
	r.readTo(tb, r.ends(tb))
	return r.sorted()
}

// reader reads all partitions of a topic.
type reader struct {
	client  *kgo.Client
	topic   string
	next    map[int32]int64 // the next offset to read of each partition
	records []Record
}

func newReader(tb testing.TB, brokers []string, topic string) *reader {
	tb.Helper()
	r := &reader{topic: topic, next: map[int32]int64{}}
	r.client = kafkaClient(tb, brokers, kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	starts, err := kadm.NewClient(r.client).ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		r.client.Close()
		tb.Fatalf("list start offsets of topic %q: %v", topic, err)
	}
	from := map[int32]kgo.Offset{}
	for partition, o := range starts[topic] {
		r.next[partition] = o.Offset
		from[partition] = kgo.NewOffset().At(o.Offset)
	}
	r.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: from})
	return r
}

// ends returns the high watermark of each partition.
func (r *reader) ends(tb testing.TB) map[int32]int64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	listed, err := kadm.NewClient(r.client).ListEndOffsets(ctx, r.topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		tb.Fatalf("list end offsets of topic %q: %v", r.topic, err)
	}
	ends := map[int32]int64{}
	for partition, o := range listed[r.topic] {
		ends[partition] = o.Offset
	}
	return ends
}

// readTo reads until every partition has reached its end.
func (r *reader) readTo(tb testing.TB, ends map[int32]int64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	for partition, end := range ends {
		for r.next[partition] < end {
			if !r.poll(tb, ctx) {
				tb.Fatalf("read partition %d of topic %q: stuck at offset %d of %d", partition, r.topic, r.next[partition], end)
			}
		}
	}
}

// poll takes what the next fetch brings; false when ctx has ended.
func (r *reader) poll(tb testing.TB, ctx context.Context) bool {
	tb.Helper()
	fetches := r.client.PollFetches(ctx)
	if ctx.Err() != nil {
		return false
	}
	fetches.EachError(func(_ string, partition int32, err error) {
		tb.Fatalf("read partition %d of topic %q: %v", partition, r.topic, err)
	})
	fetches.EachRecord(func(k *kgo.Record) {
		r.next[k.Partition] = k.Offset + 1
		if k.Attrs.IsControl() {
			return
		}
		rec := Record{
			Topic: k.Topic, Partition: k.Partition, Offset: k.Offset, LeaderEpoch: k.LeaderEpoch,
			Time: k.Timestamp, Key: k.Key, Value: k.Value, ProducerID: k.ProducerID, ProducerEpoch: k.ProducerEpoch,
		}
		for _, h := range k.Headers {
			rec.Headers = append(rec.Headers, Header{h.Key, h.Value})
		}
		r.records = append(r.records, rec)
	})
	return true
}

func (r *reader) sorted() []Record {
	slices.SortFunc(r.records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	return r.records
}
