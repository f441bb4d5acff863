package sink

import (
	"context"
	"crypto/tls"
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
	// Compression of batches: none, lz4, zstd, snappy or gzip. Default lz4; "" is none.
	Compression string
	// NoFencing does without the transactional id, where the relay has no right to one. A relay that was paused
	// while another took over may then still write what it has under way, behind newer events of the same key,
	// and the resume check may miss it. Default false.
	NoFencing bool
	// NotIdempotent does without a producer identity altogether, for brokers that give none; it implies
	// NoFencing. Then a batch whose answer was lost is there twice when it is sent again, and a late one may land
	// behind newer events of its keys. Default false.
	NotIdempotent bool
	// NewTopics says what topics are made like where Config.CreateTopics has them made. Default: as the brokers
	// make them.
	NewTopics NewTopics
	// TLS encrypts the connections; nil: they are in the clear. Its MinVersion is raised to TLS 1.2.
	TLS *tls.Config
	// SASL authenticates each connection; nil: nobody asks.
	SASL *SASL
	// FenceEvery is how often the owner uses its transactional id although nothing asks for it, so that the
	// brokers do not forget it (transactional.id.expiration.ms, 7 days). Default 24 h.
	FenceEvery time.Duration
}

// DefaultKafkaConfig returns the settings that serve most; Brokers is left to fill in.
func DefaultKafkaConfig() KafkaConfig {
	return KafkaConfig{ClientID: "relay", RequestTimeout: 10 * time.Second, FenceEvery: 24 * time.Hour, Compression: "lz4"}
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
	if _, err := newPacker(c.Compression); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, c.NewTopics.validate())
	if c.SASL != nil {
		errs = append(errs, c.SASL.validate())
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
	reading  *readRoom
	fencedAt atomic.Int64 // Unix nanoseconds of the last fence

	packers map[string]*packer // by compression

	mu         sync.Mutex // guards the fields below
	partitions map[partitionKey]*partition
	couriers   map[int32]*courier // by broker
}

type partitionKey struct {
	topic string
	index int32
}

// partition is what this session knows of one. Its lane alone uses it.
type partition struct {
	fenced bool
	late   bool  // its last answer was
	next   int32 // sequence number of the next record
}

// NewKafka returns the publisher of one session. source names the slot whose events are published. It opens
// nothing. cfg must be valid.
func NewKafka(cfg KafkaConfig, source string) *Kafka {
	k := &Kafka{
		cfg: cfg, id: "relay-" + source, net: newNetwork(cfg),
		partitions: map[partitionKey]*partition{}, couriers: map[int32]*courier{}, reading: newReadRoom(),
	}
	k.packers = newPackers(cfg.Compression)
	k.fences.kafka = k
	return k
}

// Open takes a new epoch of the producer identity: everything that an earlier owner still has under way is
// refused by each partition from its fence on. Without fencing it takes an identity that nobody else has, without
// idempotence none.
func (k *Kafka) Open(ctx context.Context) error {
	if k.cfg.NotIdempotent {
		k.producer, k.epoch = -1, -1
		_, err := request[*metadata.Response](ctx, k, &metadata.Request{TopicNames: []string{}})
		return err
	}
	var take protocol.Message = &initproducerid.Request{
		TransactionalID: k.id, TransactionTimeoutMs: int32(transactionTimeout.Milliseconds()),
		ProducerID: -1, ProducerEpoch: -1,
	}
	if !k.fencing() {
		take = &plainIdentity{clientID: k.cfg.ClientID}
	}
	res, err := request[*initproducerid.Response](ctx, k, take)
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
	t, err := k.topic(ctx, topic)
	if err != nil {
		return 0, err
	}
	return len(t.Partitions), nil
}

// topic returns what is known of a topic; it has a partition.
func (k *Kafka) topic(ctx context.Context, name string) (*metadata.ResponseTopic, error) {
	res, err := request[*metadata.Response](ctx, k, &metadata.Request{TopicNames: []string{name}})
	if err != nil {
		return nil, err
	}
	for i := range res.Topics {
		t := &res.Topics[i]
		switch {
		case t.Name != name:
		case t.ErrorCode != 0:
			return nil, k.failed(kafka.Error(t.ErrorCode))
		case len(t.Partitions) > 0:
			return t, nil
		}
	}
	return nil, k.failed(kafka.UnknownTopicOrPartition)
}

// Send makes one try to append the batch, after fencing its partition if that has not been done.
func (k *Kafka) Send(ctx context.Context, b *Batch) error {
	key := partitionKey{b.Topic, b.Partition}
	p := k.partition(key)
	if !b.sealed {
		if k.fenceIsDue() {
			p.fenced = false
		}
		if err := k.fence(ctx, key, p); err != nil {
			return err
		}
		k.packers[b.compression].pack(b)
		sequence := p.next
		if k.cfg.NotIdempotent {
			sequence = -1
		}
		b.seal(k.producer, k.epoch, sequence)
	}
	err := k.produce(ctx, b, p)
	v := verdictOf(err, b.open)
	b.open = b.open || v.open
	switch v.class {
	case success:
		k.packers[b.compression].unpack(b)
	case poison: // it may be split, from the records as they were
		k.packers[b.compression].unpack(b)
		return err
	default:
		return err
	}
	p.next = int32((int64(p.next) + int64(b.Len())) & 0x7fffffff)
	return nil
}

// fencing reports whether earlier owners are kept from writing.
func (k *Kafka) fencing() bool { return !k.cfg.NoFencing && !k.cfg.NotIdempotent }

// fence makes the partition's past final, unless that has been done.
func (k *Kafka) fence(ctx context.Context, key partitionKey, p *partition) error {
	if p.fenced || !k.fencing() {
		return nil
	}
	if err := k.fences.fence(ctx, key); err != nil {
		return err
	}
	p.fenced = true
	return nil
}

// finalize, log and room implement resumer.
func (k *Kafka) finalize(ctx context.Context, topic string, index int32) error {
	key := partitionKey{topic, index}
	return k.fence(ctx, key, k.partition(key))
}

func (k *Kafka) log(topic string, index int32) partitionLog {
	return &kafkaLog{k, partitionKey{topic, index}}
}

func (k *Kafka) room() *readRoom { return k.reading }

// produce sends a sealed batch to its partition's leader.
func (k *Kafka) produce(ctx context.Context, b *Batch, p *partition) (err error) {
	leader, err := k.leader(ctx, b.Topic, b.Partition)
	if err != nil {
		return err
	}
	err, p.late = k.courier(leader).send(ctx, b, p.late)
	return err
}

// leader returns the broker that leads a partition, as far as is known.
func (k *Kafka) leader(ctx context.Context, topic string, index int32) (int32, error) {
	t, err := k.topic(ctx, topic)
	if err != nil {
		return 0, err
	}
	for i := range t.Partitions {
		switch p := &t.Partitions[i]; {
		case p.PartitionIndex != index:
		case p.LeaderID < 0:
			return 0, k.failed(kafka.LeaderNotAvailable)
		default:
			return p.LeaderID, nil
		}
	}
	return 0, k.failed(kafka.UnknownTopicOrPartition)
}

func (k *Kafka) courier(broker int32) *courier {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.couriers[broker]
	if c == nil {
		c = newCourier(k, broker)
		k.couriers[broker] = c
	}
	return c
}

// explain looks at an error of a request about a topic. A view of the cluster that could not be read looks like
// one that lacks the topic.
func (k *Kafka) explain(ctx context.Context, topic string, err error) error {
	if !errors.Is(err, protocol.ErrNoTopic) {
		return err
	}
	if _, err := k.Partitions(ctx, topic); err != nil {
		return err
	}
	return kafka.LeaderNotAvailable
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
	return k.fencing() && now-last >= int64(k.cfg.FenceEvery) && k.fencedAt.CompareAndSwap(last, now)
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
