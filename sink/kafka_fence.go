package sink

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/addpartitionstotxn"
	"github.com/segmentio/kafka-go/protocol/endtxn"
)

// fencer puts our epoch into the logs of partitions, before anything is produced to them: it opens a transaction
// over them and aborts it. From the abort marker on, a partition refuses every older epoch, and what lies before
// it is final. Only one transaction of a producer can be open, so one fence runs at a time, and partitions that
// become due meanwhile share the next one.
type fencer struct {
	kafka *Kafka

	mu      sync.Mutex // guards the fields below
	running bool
	waiting []*fenceCall
}

type fenceCall struct {
	partition partitionKey
	done      chan error // holds one
}

// How often the coordinator is asked whether the markers are written; they are within a few milliseconds.
const (
	markerPoll     = time.Millisecond
	markerPollMost = 50 * time.Millisecond
)

// gather is how long a fence waits for partitions that become due together, as those of one chunk of events do. It costs
// less than the round trips of a second fence, and comes once for each partition.
const gather = 2 * time.Millisecond

// fence returns nil when the partition has our marker.
func (f *fencer) fence(ctx context.Context, p partitionKey) error {
	c := &fenceCall{partition: p, done: make(chan error, 1)}
	f.mu.Lock()
	f.waiting = append(f.waiting, c)
	lead := !f.running
	f.running = true
	f.mu.Unlock()
	if lead {
		f.lead(ctx)
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lead runs fences until nobody waits for one.
func (f *fencer) lead(ctx context.Context) {
	for {
		f.mu.Lock()
		if len(f.waiting) == 0 {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		pause := time.NewTimer(gather)
		select {
		case <-pause.C:
		case <-ctx.Done(): // the round sees it too
		}
		pause.Stop()
		f.mu.Lock()
		calls := f.waiting
		f.waiting = nil
		f.mu.Unlock()
		f.round(ctx, calls)
	}
}

// round fences the partitions of the calls with one transaction and answers every call. A partition that the broker
// refuses keeps all others out of the transaction, so then each topic has one of its own; within a topic the lanes ask
// again, and by then the refused one is waiting for its own next try.
func (f *fencer) round(ctx context.Context, calls []*fenceCall) {
	codes, err := f.add(ctx, calls)
	if rest := byTopic(calls); err == nil && len(rest) > 1 && refused(codes, calls) {
		for _, calls := range rest {
			f.round(ctx, calls)
		}
		return
	}
	answer := func(c *fenceCall, err error) {
		if err != nil {
			err = fmt.Errorf("fence: %w", err)
		}
		c.done <- err
	}
	var added []*fenceCall
	for _, c := range calls {
		switch code, ok := codes[c.partition]; {
		case err != nil:
			answer(c, err)
		case !ok:
			answer(c, operationNotAttempted)
		case code != 0:
			answer(c, f.kafka.failed(code))
		default:
			added = append(added, c)
		}
	}
	if len(added) == 0 {
		return
	}
	err = f.abort(ctx)
	for _, c := range added {
		answer(c, err)
	}
}

// byTopic groups the calls.
func byTopic(calls []*fenceCall) map[string][]*fenceCall {
	groups := map[string][]*fenceCall{}
	for _, c := range calls {
		groups[c.partition.topic] = append(groups[c.partition.topic], c)
	}
	return groups
}

// refused reports whether a partition is not in the transaction.
func refused(codes map[partitionKey]kafka.Error, calls []*fenceCall) bool {
	return slices.ContainsFunc(calls, func(c *fenceCall) bool {
		code, ok := codes[c.partition]
		return !ok || code != 0
	})
}

// add opens the transaction over the partitions and returns each one's answer.
func (f *fencer) add(ctx context.Context, calls []*fenceCall) (map[partitionKey]kafka.Error, error) {
	k := f.kafka
	req := &addpartitionstotxn.Request{TransactionalID: k.id, ProducerID: k.producer, ProducerEpoch: k.epoch}
	topics := map[string]int{}
	for _, c := range calls {
		i, ok := topics[c.partition.topic]
		if !ok {
			i = len(req.Topics)
			topics[c.partition.topic] = i
			req.Topics = append(req.Topics, addpartitionstotxn.RequestTopic{Name: c.partition.topic})
		}
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, c.partition.index)
	}
	res, err := request[*addpartitionstotxn.Response](ctx, k, req)
	if err != nil {
		return nil, err
	}
	codes := make(map[partitionKey]kafka.Error, len(calls))
	for i := range res.Results {
		for _, p := range res.Results[i].Results {
			codes[partitionKey{res.Results[i].Name, p.PartitionIndex}] = kafka.Error(p.ErrorCode)
		}
	}
	return codes, nil
}

// abort ends the transaction and waits until every partition has its marker. The first answer only says that the
// coordinator has decided. Asked again, it answers CONCURRENT_TRANSACTIONS while markers are missing, then no
// error; INVALID_TXN_STATE would mean that nothing was open.
func (f *fencer) abort(ctx context.Context) error {
	k := f.kafka
	ctx, cancel := context.WithTimeout(ctx, k.cfg.RequestTimeout)
	defer cancel()
	poll := time.NewTimer(markerPoll)
	defer poll.Stop()
	decided := false
	for wait := markerPoll; ; wait = min(2*wait, markerPollMost) {
		res, err := request[*endtxn.Response](ctx, k, &endtxn.Request{
			TransactionalID: k.id, ProducerID: k.producer, ProducerEpoch: k.epoch, Committed: false,
		})
		if err != nil {
			return err
		}
		switch code := kafka.Error(res.ErrorCode); {
		case code == 0 && decided, code == kafka.InvalidTransactionState && decided:
			k.fencedAt.Store(time.Now().UnixNano())
			return nil
		case code == 0:
			decided = true
			continue
		case code == kafka.ConcurrentTransactions:
			decided = true
		default:
			return k.failed(code)
		}
		poll.Reset(wait)
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
