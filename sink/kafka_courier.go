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
// late request goes another way the next time, one with requests of its own, until it is answered quickly again. It
// shares a request there only when all of these are under way.
type courier struct {
	kafka  *Kafka
	broker int32

	mu          sync.Mutex // guards the fields below
	prompt, lag way
	mutedTo     time.Time     // the broker asked to be left alone until then
	usual       time.Duration // how long an answer takes, roughly
}

// way is a number of requests that may be under way, and what waits for one.
type way struct {
	most    int
	running int
	waiting []*parcel
}

func newCourier(k *Kafka, broker int32) *courier {
	return &courier{kafka: k, broker: broker, prompt: way{most: promptMost}, lag: way{most: lagMost}}
}

// parcel is a batch on its way.
type parcel struct {
	batch *Batch
	done  chan error     // holds one: the partition's answer
	late  chan bool      // holds one: whether it was late
	lead  chan []*parcel // holds one: carry these, the parcel itself among them
}

const (
	promptMost   = 4
	lagMost      = 8
	courierBytes = 8 << 20 // of one request; a single batch may have more

	// An answer is late when it takes several times as long as usual, and a while.
	lateTimes = 4
	lateLeast = 250 * time.Millisecond
)

// send returns the broker's answer for the batch, and whether it was late; wasLate says so of the one before.
func (c *courier) send(ctx context.Context, b *Batch, wasLate bool) (err error, late bool) {
	p := &parcel{batch: b, done: make(chan error, 1), late: make(chan bool, 1), lead: make(chan []*parcel, 1)}
	w := &c.prompt
	if wasLate {
		w = &c.lag
	}
	c.mu.Lock()
	w.waiting = append(w.waiting, p)
	var load []*parcel
	if w.running < w.most {
		w.running++
		load = w.take()
	}
	c.mu.Unlock()
	if load == nil {
		select {
		case err := <-p.done:
			return err, <-p.late
		case load = <-p.lead:
		case <-ctx.Done(): // and so the session is over for all that wait
			return context.Cause(ctx), true
		}
	}
	c.carry(ctx, load)
	c.mu.Lock()
	if next := w.take(); next != nil {
		next[0].lead <- next
	} else {
		w.running--
	}
	c.mu.Unlock()
	return <-p.done, <-p.late
}

// take removes from those that wait what goes in one request; nil: nobody waits. Call it with the courier's mu held.
func (w *way) take() []*parcel {
	n, size := 0, 0
	for n < len(w.waiting) {
		more := w.waiting[n].batch.wireSize()
		if n > 0 && size+more > courierBytes {
			break
		}
		size += more
		n++
	}
	if n == 0 {
		return nil
	}
	load := append([]*parcel(nil), w.waiting[:n]...)
	k := copy(w.waiting, w.waiting[n:])
	clear(w.waiting[k:])
	w.waiting = w.waiting[:k]
	return load
}

// carry makes the request and gives each parcel its answer.
func (c *courier) carry(ctx context.Context, load []*parcel) {
	if err := c.unmuted(ctx); err != nil {
		for _, p := range load {
			p.answer(err, true)
		}
		return
	}
	start := time.Now()
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
	late := c.judge(time.Since(start))
	if err != nil {
		for _, p := range load {
			p.answer(err, late)
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
		p.answer(err, late)
	}
}

func (p *parcel) answer(err error, late bool) {
	p.late <- late
	p.done <- err
}

// judge says whether an answer was late, and learns from how long it took, slowly, so that one partition that is late
// for long does not become what is usual.
func (c *courier) judge(took time.Duration) (late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	late = took > max(lateLeast, lateTimes*c.usual)
	c.usual += (min(took, 2*c.usual+10*time.Millisecond) - c.usual) / 8
	return late
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
