package sink

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// courier brings batches to one broker. A few requests are under way at a time; batches that come meanwhile wait and
// go together in the next one, so that hundreds of partitions need neither a connection nor a request each. Whoever
// brings a batch does the work: the first one that waits carries all the others.
//
// A partition that the broker answers late would hold up those whose batches are in its request. So whatever was in a
// late or failed request goes alone the next time, outside the few, until it is answered quickly again.
type courier struct {
	kafka  *Kafka
	broker int32

	mu      sync.Mutex // guards the fields below
	running int
	waiting []*parcel
	bytes   int       // of those that wait
	mutedTo time.Time // the broker asked to be left alone until then
}

// parcel is a batch on its way.
type parcel struct {
	batch *Batch
	done  chan error     // holds one: the partition's answer
	lead  chan []*parcel // holds one: carry these, the parcel itself among them
}

const (
	courierMost  = 4       // requests under way with several partitions
	courierBytes = 8 << 20 // of one request; a single batch may have more
	courierLate  = 250 * time.Millisecond
)

// send returns the broker's answer for the batch.
func (c *courier) send(ctx context.Context, b *Batch, alone bool) (err error, late bool) {
	p := &parcel{batch: b, done: make(chan error, 1), lead: make(chan []*parcel, 1)}
	start := time.Now()
	if alone {
		c.carry(ctx, []*parcel{p})
		err = <-p.done
		return err, time.Since(start) > courierLate
	}
	c.mu.Lock()
	c.waiting = append(c.waiting, p)
	c.bytes += b.wireSize()
	var load []*parcel
	if c.running < courierMost {
		c.running++
		load = c.take()
	}
	c.mu.Unlock()
	if load == nil {
		select {
		case err := <-p.done:
			return err, time.Since(start) > courierLate
		case load = <-p.lead:
		case <-ctx.Done(): // and so the session is over for all that wait
			return context.Cause(ctx), true
		}
	}
	sent := time.Now()
	c.carry(ctx, load)
	late = time.Since(sent) > courierLate

	c.mu.Lock()
	if next := c.take(); next != nil {
		next[0].lead <- next
	} else {
		c.running--
	}
	c.mu.Unlock()
	return <-p.done, late
}

// take removes from those that wait what goes in one request; nil: nobody waits. Call it with mu held.
func (c *courier) take() []*parcel {
	n, size := 0, 0
	for n < len(c.waiting) {
		more := c.waiting[n].batch.wireSize()
		if n > 0 && size+more > courierBytes {
			break
		}
		size += more
		n++
	}
	if n == 0 {
		return nil
	}
	load := append([]*parcel(nil), c.waiting[:n]...)
	k := copy(c.waiting, c.waiting[n:])
	clear(c.waiting[k:])
	c.waiting = c.waiting[:k]
	c.bytes -= size
	return load
}

// carry makes the request and gives each parcel its answer.
func (c *courier) carry(ctx context.Context, load []*parcel) {
	if err := c.unmuted(ctx); err != nil {
		for _, p := range load {
			p.done <- err
		}
		return
	}
	k := c.kafka
	req := &produceRequest{broker: c.broker, clientID: k.cfg.ClientID}
	req.Acks, req.Timeout = -1, int32(k.cfg.RequestTimeout.Milliseconds()/2)
	topics := make(map[string]int, 1)
	for _, p := range load {
		i, ok := topics[p.batch.Topic]
		if !ok {
			i = len(req.Topics)
			topics[p.batch.Topic] = i
			req.Topics = append(req.Topics, rawproduce.RequestTopic{Topic: p.batch.Topic})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rawproduce.RequestPartition{
			Partition: p.batch.Partition, RecordSet: protocol.RawRecordSet{Reader: p.batch.reader()},
		})
	}
	res, err := request[*produce.Response](ctx, k, req)
	if err != nil {
		for _, p := range load {
			p.done <- err
		}
		return
	}
	c.mute(time.Duration(res.ThrottleTimeMs) * time.Millisecond)
	answers := make(map[partitionKey]error, len(load))
	for i := range res.Topics {
		for j := range res.Topics[i].Partitions {
			p := &res.Topics[i].Partitions[j]
			key := partitionKey{res.Topics[i].Topic, p.Partition}
			if answers[key] = nil; p.ErrorCode != 0 {
				answers[key] = k.failed(kafka.Error(p.ErrorCode))
			}
		}
	}
	for _, p := range load {
		err, ok := answers[partitionKey{p.batch.Topic, p.batch.Partition}]
		if !ok {
			err = errNotMentioned
		}
		p.done <- err
	}
}

var errNotMentioned = errors.New("the broker's answer does not mention the partition")

// mute keeps what the broker has asked for: it is over its quota, and has stopped to read from us already.
func (c *courier) mute(d time.Duration) {
	if d <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mutedTo = time.Now().Add(d)
	c.kafka.throttled.Add(int64(d))
}

// unmuted waits until the broker may be asked again.
func (c *courier) unmuted(ctx context.Context) error {
	for {
		c.mu.Lock()
		d := time.Until(c.mutedTo)
		c.mu.Unlock()
		if d <= 0 {
			return nil
		}
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// produceRequest is a produce request for one broker, whatever partitions are in it: a leader that has moved
// answers for its partition alone.
type produceRequest struct {
	rawproduce.Request
	broker   int32
	clientID string
	version  int16
}

func (r *produceRequest) Broker(c protocol.Cluster) (protocol.Broker, error) {
	b, ok := c.Brokers[r.broker]
	if !ok {
		return protocol.Broker{ID: -1}, kafka.BrokerNotAvailable
	}
	return b, nil
}

// Required notes the version that the broker speaks.
func (r *produceRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.Produce]
	return true
}

func (r *produceRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if err := protocol.WriteRequest(rw, r.version, 0, r.clientID, &r.Request); err != nil {
		return nil, err
	}
	_, res, err := protocol.ReadResponse(rw, protocol.Produce, r.version)
	return res, err
}
