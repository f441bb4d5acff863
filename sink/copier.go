package sink

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// How much the copier holds at most, in its queue and under way. A single larger letter passes when nothing else is there.
const (
	copyLetters = 1000
	copyBytes   = 4 << 20
)

// copyGrace is how long the end of a session waits for copies, once everything else is done.
const copyGrace = 2 * time.Second

// What becomes of copies, for counting. CopyResults is the closed set.
const (
	copyPublished = iota
	copyRefused   // the topic does not exist, or does not take it
	copyDropped   // too many waited
	copyResults
)

var copyResultNames = [copyResults]string{"published", "refused", "dropped"}

// CopyResults lists every value that the keys of Stats.Copies can have.
func CopyResults() []string { return copyResultNames[:] }

// copier publishes copies of dead letters whose rows are committed, each to the dead-letter topic of its route. A copy
// is a signal and the row is the truth, so the copier never makes anybody wait: it has a bound of its own beside the
// window, what does not fit is dropped, what a topic does not take is given up, and both are counted.
type copier struct {
	sink   *Sink
	topics map[string]bool // the dead-letter topics
	wake   chan struct{}   // holds one token: something is queued

	// Owned by run.
	told map[string]bool      // topics that were complained of
	rest map[string]time.Time // topics that took nothing, until when they are left alone

	mu     sync.Mutex // guards the fields below
	queue  []*Letter
	held   int // letters in the queue and under way
	bytes  int // of these
	counts [copyResults]atomic.Uint64
}

func newCopier(s *Sink) *copier {
	c := &copier{sink: s, topics: map[string]bool{}, wake: make(chan struct{}, 1), told: map[string]bool{}, rest: map[string]time.Time{}}
	for _, rt := range s.routes {
		if rt.copyTo != "" {
			c.topics[rt.copyTo] = true
		}
	}
	return c
}

// put queues copies of committed letters. Those that only wait for another one of their key get none.
func (c *copier) put(lot []*Letter) {
	if len(c.topics) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range lot {
		switch {
		case l.copyTo == "" || l.Class == classHeld:
		case c.held > 0 && (c.held >= copyLetters || c.bytes+l.size > copyBytes):
			c.counts[copyDropped].Add(1)
		default:
			c.queue = append(c.queue, l)
			c.held++
			c.bytes += l.size
		}
	}
	if len(c.queue) > 0 {
		c.sink.poke(c.wake)
	}
}

// idle reports whether no copy is queued or under way.
func (c *copier) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held == 0
}

// run publishes until ctx ends, whose cause it returns.
func (c *copier) run(ctx context.Context) error {
	for {
		c.mu.Lock()
		lot := c.queue
		c.queue = nil
		c.mu.Unlock()
		if len(lot) == 0 {
			select {
			case <-c.wake:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := c.publish(ctx, lot); err != nil {
			return err
		}
		c.mu.Lock()
		c.held -= len(lot)
		for _, l := range lot {
			c.bytes -= l.size
		}
		c.mu.Unlock()
		c.sink.poke(c.sink.nudge) // the end may wait for it
	}
}

// publish returns when every letter of the lot has its copy, or will have none.
func (c *copier) publish(ctx context.Context, lot []*Letter) error {
	load := newLoad(c.sink, len(lot), false)
	load.job.copies, load.until = true, ctx.Done()
	for i, l := range lot {
		why, err := c.place(ctx, load, i, l)
		if err != nil {
			return err
		}
		if why != nil {
			load.job.refuse(uint64(i), why)
		}
	}
	load.send()
	if err := load.job.await(ctx, c.sink); err != nil {
		return err
	}
	for i, l := range lot {
		ok, why := load.job.published(uint64(i))
		if ok {
			c.counts[copyPublished].Add(1)
			continue
		}
		c.counts[copyRefused].Add(1)
		if why.class == classBadTopic && time.Now().After(c.rest[l.copyTo]) {
			c.rest[l.copyTo] = time.Now().Add(c.sink.cfg.Recheck)
		}
		if !c.told[l.copyTo] {
			c.told[l.copyTo] = true
			select {
			case c.sink.uncopied <- note{l.copyTo, "it gets no copy of a dead letter, which is in outbox.dead_letters all the same: " + why.reason}:
			default: // it is counted all the same
			}
		}
	}
	return nil
}

// place puts the copy of a letter into the batch of its lane.
func (c *copier) place(ctx context.Context, load *load, i int, l *Letter) (*poisonError, error) {
	if time.Now().Before(c.rest[l.copyTo]) {
		return &poisonError{eventID: l.EventID, topic: l.copyTo, class: classBadTopic, reason: "it took none a moment ago"}, nil
	}
	t, why, err := c.find(ctx, l)
	if t == nil {
		return why, err
	}
	made := l.copy()
	return load.place(t, func(n int) (int32, *poisonError) {
		if len(l.Key) == 0 {
			return partitionOf([]byte(l.EventID), n), nil
		}
		return partitionOf(l.Key, n), nil
	}, func(b *Batch) int { return b.addLetter(&c.sink.pool, made, uint64(i)) }, false, made.recordSize(maxBatchRecords))
}

// find looks up the dead-letter topic of a letter. A broker that is away is waited for, a topic that is not there only
// for a moment.
func (c *copier) find(ctx context.Context, l *Letter) (*topic, *poisonError, error) {
	s := c.sink
	s.topicsMu.Lock()
	t := s.topics[l.copyTo]
	s.topicsMu.Unlock()
	if t != nil {
		return t, nil, nil
	}
	r := newRetrier(s, "sink/copy/"+l.copyTo, "")
	r.quiet = true
	for {
		r.begin()
		n, err := s.pub.Partitions(ctx, l.copyTo)
		v := verdictOf(err, false)
		switch {
		case v.class == success:
			return s.addTopic(l.copyTo, n), nil, nil
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case v.class == missing && s.cfg.CreateTopics:
			if in, ok := s.pub.(inspector); ok {
				if e := in.create(ctx, l.copyTo); e != nil {
					err, v = e, verdictOf(e, false)
				}
			}
		}
		if r.vain(v) {
			return nil, &poisonError{eventID: l.EventID, topic: l.copyTo, class: classBadTopic, reason: describe(err)}, nil
		}
		if err := r.wait(ctx, v, err); err != nil {
			return nil, nil, err
		}
	}
}

// vain reports whether another try is not worth it, for a record that nobody waits for.
func (r *retrier) vain(v verdict) bool {
	switch v.class {
	case denied, poison, fatal:
		return true
	case missing:
		return !r.failing.IsZero() && time.Since(r.failing) >= r.sink.cfg.UnreachableAfter
	}
	return false
}

// giveUp drops a batch of copies that the topic does not take.
func (l *lane) giveUp(b *Batch, err error) {
	for _, i := range b.seqs {
		b.job.refuse(i, &poisonError{topic: b.Topic, class: classBadTopic, reason: describe(err)})
	}
	l.retry.succeeded()
	l.sink.release(l, b)
	l.sink.pool.put(b)
}

// Headers of a copy.
const (
	headerDeadLetterClass  = "dead_letter_class"
	headerDeadLetterReason = "dead_letter_reason"
	headerDeadLetterTopic  = "dead_letter_topic"
	headerDeadLetterSource = "dead_letter_source"
	headerDeadLetterValue  = "dead_letter_value"
	replayDeadLetter       = "dead_letter"
)

// copy returns what is published of the letter as a signal: its record and why it is none.
func (l *Letter) copy() *Letter {
	out := &Letter{Key: l.Key, Value: l.Value, Null: l.Null, replay: replayDeadLetter}
	for _, h := range l.Headers {
		switch h.Name {
		case headerDeadLetterClass, headerDeadLetterReason, headerDeadLetterTopic, headerDeadLetterSource, headerDeadLetterValue:
		default:
			out.Headers = append(out.Headers, h)
		}
	}
	add := func(name, value string) { out.Headers = append(out.Headers, Header{name, []byte(value)}) }
	add(headerDeadLetterClass, l.Class)
	add(headerDeadLetterReason, l.Reason)
	add(headerDeadLetterTopic, l.Topic)
	add(headerDeadLetterSource, l.Source)
	if l.Value == nil && !l.Null {
		add(headerDeadLetterValue, "missing")
	}
	return out
}

// checkTopic tells why no event may go to a topic; "" when it may.
func (s *Sink) checkTopic(name string) string {
	if s.copier.topics[name] {
		return "the topic is for copies of dead letters"
	}
	return checkTopic(name)
}
