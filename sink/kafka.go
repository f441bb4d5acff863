package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// KafkaConfig holds the settings of a Kafka. Start from DefaultKafkaConfig.
type KafkaConfig struct {
	// Brokers are the addresses, host:port, of which at least one must answer at the start. Required.
	Brokers []string
	// ClientID is how the relay calls itself in the brokers' logs, metrics and quotas. Default "relay".
	ClientID string
	// RequestTimeout bounds each request, and with it how long a broker that vanished goes unnoticed. The
	// broker is told half of it. Default 10 s, at least 1 s.
	RequestTimeout time.Duration
	// FenceEvery is how often the owner uses its transactional id although nothing asks for it, so that the
	// brokers do not forget it (transactional.id.expiration.ms, 7 days). Default 24 h.
	FenceEvery time.Duration
}

// DefaultKafkaConfig returns the settings that serve most; Brokers is left to fill in.
func DefaultKafkaConfig() KafkaConfig {
	return KafkaConfig{ClientID: "relay", RequestTimeout: 10 * time.Second, FenceEvery: 24 * time.Hour}
}

// Validate returns every problem of the settings, joined, or nil.
func (c KafkaConfig) Validate() error {
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("no brokers"))
	}
	for _, b := range c.Brokers {
		if host, port, err := net.SplitHostPort(b); err != nil || host == "" || port == "" {
			errs = append(errs, fmt.Errorf("broker %q: want host:port", b))
		}
	}
	if c.RequestTimeout < time.Second {
		errs = append(errs, fmt.Errorf("request timeout %v: want at least 1s", c.RequestTimeout))
	}
	if c.FenceEvery <= 0 {
		errs = append(errs, fmt.Errorf("fence every %v: want more than 0", c.FenceEvery))
	}
	return errors.Join(errs...)
}

// transactionTimeout is after how long the coordinator itself ends a fence that was begun and not finished.
const transactionTimeout = time.Minute

// Kafka is the Publisher for Apache Kafka, for one session. It uses the producer identity of the transactional id
// relay-<source>, whose epoch rises with each Open, and writes idempotent batches.
type Kafka struct {
	cfg KafkaConfig
	id  string // transactional
	net *network

	// Set by Open, read by Send.
	producer int64
	epoch    int16

	fences   fencer
	fencedAt atomic.Int64 // Unix nanoseconds of the last fence

	mu         sync.Mutex // guards partitions
	partitions map[partitionKey]*partition
}

type partitionKey struct {
	topic string
	index int32
}

// partition is what this session knows of one. Its lane alone uses it.
type partition struct {
	fenced bool
	next   int32 // sequence number of the next record
}

// NewKafka returns the publisher of one session. source names the slot whose events are published. It opens
// nothing. cfg must be valid.
func NewKafka(cfg KafkaConfig, source string) *Kafka {
	k := &Kafka{
		cfg: cfg, id: "relay-" + source, net: newNetwork(cfg),
		partitions: map[partitionKey]*partition{},
	}
	k.fences.kafka = k
	return k
}

// Open takes a new epoch of the producer identity: everything that an earlier owner still has under way is
// refused by each partition from its fence on.
func (k *Kafka) Open(ctx context.Context) error {
	res, err := request[*initproducerid.Response](ctx, k, &initproducerid.Request{
		TransactionalID: k.id, TransactionTimeoutMs: int32(transactionTimeout.Milliseconds()),
		ProducerID: -1, ProducerEpoch: -1,
	})
	if err == nil && res.ErrorCode != 0 {
		err = kafka.Error(res.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("take producer epoch of %q: %w", k.id, err)
	}
	k.producer, k.epoch = res.ProducerID, res.ProducerEpoch
	k.fencedAt.Store(time.Now().UnixNano())
	return nil
}

// Partitions returns how many partitions the topic has.
func (k *Kafka) Partitions(ctx context.Context, topic string) (int, error) {
	k.net.follow(topic)
	res, err := request[*metadata.Response](ctx, k, &metadata.Request{TopicNames: []string{topic}})
	if err != nil {
		return 0, err
	}
	for i := range res.Topics {
		t := &res.Topics[i]
		switch {
		case t.Name != topic:
		case t.ErrorCode != 0:
			return 0, k.failed(kafka.Error(t.ErrorCode))
		case len(t.Partitions) > 0:
			return len(t.Partitions), nil
		}
	}
	return 0, k.failed(kafka.UnknownTopicOrPartition)
}

// Send makes one try to append the batch, after fencing its partition if that has not been done.
func (k *Kafka) Send(ctx context.Context, b *Batch) error {
	key := partitionKey{b.Topic, b.Partition}
	p := k.partition(key)
	if !b.sealed {
		if k.fenceIsDue() {
			p.fenced = false
		}
		if !p.fenced {
			if err := k.fences.fence(ctx, key); err != nil {
				return err
			}
			p.fenced = true
		}
		b.seal(k.producer, k.epoch, p.next)
	}
	err := k.produce(ctx, b)
	v := verdictOf(err, b.open)
	b.open = b.open || v.open
	if v.class != success {
		return err
	}
	p.next = int32((int64(p.next) + int64(b.Len())) & 0x7fffffff)
	return nil
}

func (k *Kafka) produce(ctx context.Context, b *Batch) error {
	res, err := request[*produce.Response](ctx, k, &rawproduce.Request{
		Acks:    -1,
		Timeout: int32(k.cfg.RequestTimeout.Milliseconds() / 2),
		Topics: []rawproduce.RequestTopic{{
			Topic: b.Topic,
			Partitions: []rawproduce.RequestPartition{{
				Partition: b.Partition,
				RecordSet: protocol.RawRecordSet{Reader: b.reader()},
			}},
		}},
	})
	if errors.Is(err, protocol.ErrNoTopic) {
		// The view of the cluster lacks the topic, which is what a view that could not be read looks like too.
		if _, err := k.Partitions(ctx, b.Topic); err != nil {
			return err
		}
		return kafka.LeaderNotAvailable
	}
	if err != nil {
		return err
	}
	for i := range res.Topics {
		for j := range res.Topics[i].Partitions {
			if p := &res.Topics[i].Partitions[j]; res.Topics[i].Topic == b.Topic && p.Partition == b.Partition {
				if p.ErrorCode != 0 {
					return k.failed(kafka.Error(p.ErrorCode))
				}
				return nil
			}
		}
	}
	return errors.New("the broker's answer does not mention the partition")
}

// Close drops every connection, requests under way included.
func (k *Kafka) Close(ctx context.Context) error { return k.net.close(ctx) }

func (k *Kafka) partition(key partitionKey) *partition {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.partitions[key]
	if p == nil {
		p = &partition{}
		k.partitions[key] = p
	}
	return p
}

// fenceIsDue reports, to one caller, that the identity has not been used for FenceEvery. Every batch is therefore
// sent by a producer that the coordinator has known to be the owner within that time, also after a long silence.
func (k *Kafka) fenceIsDue() bool {
	last := k.fencedAt.Load()
	now := time.Now().UnixNano()
	return now-last >= int64(k.cfg.FenceEvery) && k.fencedAt.CompareAndSwap(last, now)
}

// failed passes an error on; where it may come from an outdated view of the cluster it has that renewed.
func (k *Kafka) failed(err error) error {
	switch verdictOf(err, false).reason {
	case reasonLeader, reasonMissing, reasonNetwork, reasonTimeout:
		k.net.renew()
	}
	return err
}

// request makes one request and waits for its answer, no longer than the request timeout.
func request[R protocol.Message](ctx context.Context, k *Kafka, req protocol.Message) (R, error) {
	var none R
	ctx, cancel := context.WithTimeout(ctx, k.cfg.RequestTimeout)
	defer cancel()
	res, err := k.net.roundTrip(ctx, req)
	if err != nil {
		return none, k.failed(err)
	}
	r, ok := res.(R)
	if !ok {
		return none, fmt.Errorf("the broker answered a %T with a %T", req, res)
	}
	return r, nil
}
