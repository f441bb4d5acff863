package sink

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

const (
	benchPartitions = 8
	benchChunk      = 500 // events an Accept
)

// benchEvents makes events like those of a shop: a JSON value of about 200 bytes, some of it unlike any other's.
func benchEvents(topic string) []outbox.Committed {
	events := make([]outbox.Committed, 100*benchChunk)
	for i := range events {
		events[i] = outbox.Committed{
			Position: outbox.Position{Incarnation: 1, LSN: outbox.LSN(1000 + i), Ordinal: 1}, CommitTime: time.Now(),
			ID: fmt.Appendf(nil, "0198c7a0-0000-7000-8000-%012x", i*7919), EventKey: fmt.Appendf(nil, "order-placed:%d", i),
			AggregateType: []byte("order"), AggregateID: fmt.Appendf(nil, "order-%06d", i%5000), EventType: []byte("OrderPlaced"), Topic: []byte(topic),
			Payload: fmt.Appendf(nil, `{"order":%d,"customer":"c-%08x","total":%d.%02d,"currency":"EUR","lines":[{"sku":"sku-%05d","qty":%d},{"sku":"sku-%05d","qty":%d}],"note":"ship to the address on file, ring twice"}`,
				i, i*2654435761, i%1000, i%100, i%99991, i%7, i%77777, i%3),
		}
	}
	return events
}

// silence is a Board that nobody reads.
type silence struct{}

func (silence) Raise(string, state.Status) {}
func (silence) Clear(string)               {}

// BenchmarkKafka compares the whole sink, with its batching, lanes and acknowledgements, with a bare loop that
// encodes batches and sends each partition's one after the other through kafka-go, on one real broker.
func BenchmarkKafka(b *testing.B) {
	brokers := testenv.Kafka(b)
	run := func(name string, f func(b *testing.B, topic string, events []outbox.Committed)) {
		b.Run(name, func(b *testing.B) {
			topic := testenv.NewTopic(b, brokers, benchPartitions, map[string]string{"retention.bytes": "1000000", "segment.bytes": "104857600"})
			events := benchEvents(topic)
			var before, after syscall.Rusage
			b.ResetTimer()
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			f(b, topic, events)
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			b.StopTimer()
			cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(cpu.Seconds()/float64(b.N)*1e6, "cpu-s/M")
		})
	}
	run("raw", func(b *testing.B, topic string, events []outbox.Committed) { benchRaw(b, brokers, topic, events) })
	for _, codec := range Compressions() {
		run("sink "+codec, func(b *testing.B, topic string, events []outbox.Committed) {
			benchSink(b, brokers, topic, codec, events)
		})
	}
	run("raw again", func(b *testing.B, topic string, events []outbox.Committed) { benchRaw(b, brokers, topic, events) })
}

func benchSink(b *testing.B, brokers []string, topic, codec string, events []outbox.Committed) {
	cfg := DefaultConfig()
	cfg.Topics = []string{topic}
	kcfg := testKafkaConfig(brokers)
	kcfg.Compression = codec
	s := New(cfg, NewKafka(kcfg, fmt.Sprintf("%016x", time.Now().UnixNano())), testSource, func([]uint64) {}, silence{})
	result := make(chan error, 1)
	go func() { result <- s.Run(b.Context()) }()
	for i := 0; i < b.N; i += benchChunk {
		at := i % len(events)
		if err := s.Accept(b.Context(), uint64(i+1), events[at:at+min(benchChunk, b.N-i)]); err != nil {
			b.Fatal(err)
		}
	}
	s.Drain()
	if err := <-result; err != nil {
		b.Fatal(err)
	}
}

// benchRaw sorts the events to partitions, encodes batches of 900 KiB and sends them, one under way a partition.
func benchRaw(b *testing.B, brokers []string, topic string, events []outbox.Committed) {
	client := &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: 10 * time.Second, Transport: &kafka.Transport{MetadataTopics: []string{topic}}}
	defer client.Transport.(*kafka.Transport).CloseIdleConnections()
	var id *kafka.InitProducerIDResponse
	testenv.Eventually(b, 20*time.Second, func() (bool, string) { // a coordinator that has just started says no
		var err error
		id, err = client.InitProducerID(b.Context(), &kafka.InitProducerIDRequest{TransactionalID: "raw-" + topic, TransactionTimeoutMs: 60000, ProducerID: -1, ProducerEpoch: -1})
		return err == nil && id.Error == nil, fmt.Sprint("take producer id: ", err)
	})
	b.ResetTimer()
	const most = 900 << 10
	s := New(DefaultConfig(), nil, testSource, nil, silence{})
	p := &pool{keep: 16 << 20}
	var lanes [benchPartitions]chan *Batch
	var senders sync.WaitGroup
	for i := range lanes {
		lanes[i] = make(chan *Batch, 1)
		senders.Go(func() {
			sequence := int32(0)
			for batch := range lanes[i] {
				batch.Time = time.Now()
				batch.seal(int64(id.Producer.ProducerID), int16(id.Producer.ProducerEpoch), sequence)
				sequence += int32(batch.Len())
				if err := rawProduce(b.Context(), client, batch); err != nil {
					b.Error(err)
				}
				p.put(batch)
			}
		})
	}
	var open [benchPartitions]*Batch
	for i := range b.N {
		e := &events[i%len(events)]
		if poison := s.encode(e); poison != nil {
			b.Fatal(poison)
		}
		k := partitionOf(s.rec.key, benchPartitions)
		if open[k] == nil {
			open[k] = p.batch(topic, k)
		}
		open[k].add(p, &s.rec, uint64(i+1), e.CommitTime)
		if open[k].size > most {
			lanes[k] <- open[k]
			open[k] = nil
		}
	}
	for k, batch := range open {
		if batch != nil {
			lanes[k] <- batch
		}
		close(lanes[k])
	}
	senders.Wait()
}

func rawProduce(ctx context.Context, client *kafka.Client, batch *Batch) error {
	res, err := client.RawProduce(ctx, &kafka.RawProduceRequest{
		Topic: batch.Topic, Partition: int(batch.Partition), RequiredAcks: kafka.RequireAll, RawRecords: protocol.RawRecordSet{Reader: batch.reader()},
	})
	if err == nil {
		err = res.Error
	}
	return err
}
