package sink

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// How many letters are read at a time.
const (
	requeueLetters = 500
	requeueBytes   = 1 << 20
)

// Outcome says what became of letters that were to be published.
type Outcome struct {
	Published int
	Refused   []Refused // they are parked again
}

// Refused is a letter that could not be published this time either.
type Refused struct {
	ID     int64
	Reason string
}

// Requeue publishes letters that hold no key, in their order per partition, and returns when each is acknowledged or
// refused, and its row says so. topic, if not empty, is where they go instead. After a crash in between some may be
// published again; none is lost. It returns ctx's cause or what ended the session.
func (s *Sink) Requeue(ctx context.Context, letters []*Letter, topic, actor, note string) (Outcome, error) {
	if err := s.ready(ctx); err != nil {
		return Outcome{}, err
	}
	if err := s.change(ctx, letters, Change{State: Requeued, Actor: actor, Note: note}); err != nil {
		return Outcome{}, err
	}
	load := newLoad(s, len(letters), false)
	for i, l := range letters {
		why, err := s.requeueOne(ctx, load, i, l, topic)
		if err != nil {
			return Outcome{}, err
		}
		if why != nil {
			load.job.refuse(uint64(i), why)
		}
	}
	load.send()
	if err := load.job.await(ctx, s); err != nil {
		return Outcome{}, err
	}
	return s.conclude(ctx, load.job, letters)
}

func (s *Sink) requeueOne(ctx context.Context, load *load, i int, l *Letter, topic string) (*poisonError, error) {
	if topic == "" {
		topic = l.Topic
	}
	if why := s.fit(l, topic); why != nil {
		return why, nil
	}
	t, why, err := s.lookUp(ctx, l.EventID, topic)
	if t == nil {
		return why, err
	}
	return load.place(t, func(n int) (int32, *poisonError) {
		switch {
		case l.Partition < 0 || topic != l.Topic:
			return partitionOf(l.Key, n), nil
		case int(l.Partition) >= n:
			return 0, &poisonError{eventID: l.EventID, topic: topic, class: classBadPartition, reason: fmt.Sprintf("it is meant for partition %d, and the topic has %d", l.Partition, n)}
		}
		return l.Partition, nil
	}, func(b *Batch) int { return b.addLetter(&s.pool, l, uint64(i)) }, false, l.recordSize(maxBatchRecords))
}

// fit says why a letter has no record that could be published.
func (s *Sink) fit(l *Letter, topic string) *poisonError {
	bad := func(class, format string, args ...any) *poisonError {
		return &poisonError{eventID: l.EventID, topic: topic, class: class, reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case l.Unreadable != nil || l.Class == classUnreadable || l.Class == classBadHeader:
		return bad(l.Class, "no record can be made of it: %s", l.Reason)
	case len(l.Key) == 0:
		return bad(classNoKey, "it has no key")
	case l.Value == nil && !l.Null:
		return bad(classTooLarge, "its value was too large to be kept with the letter; it stands in %s", l.Source)
	}
	if reason := s.checkTopic(topic); reason != "" {
		return bad(classBadTopic, "%s", reason)
	}
	most := s.cfg.MaxRecordBytes
	for _, rt := range s.routes {
		if rt.source == l.Source && rt.most > 0 {
			most = rt.most
		}
	}
	if size := l.recordSize(0) + batchHeader; size > most {
		return bad(classTooLarge, "its record has %d bytes, the limit is %d", size, most)
	}
	return nil
}

// change writes one change for all the letters.
func (s *Sink) change(ctx context.Context, letters []*Letter, c Change) error {
	changes := make([]Change, len(letters))
	for i, l := range letters {
		changes[i] = c
		changes[i].ID = l.ID
	}
	return s.write(ctx, changes)
}

func (s *Sink) write(ctx context.Context, changes []Change) error {
	if len(changes) == 0 {
		return nil
	}
	r := newRetrier(s, "sink/requeue", "write dead letters")
	defer r.succeeded()
	return r.table(ctx, func() error { return s.cfg.DeadLetters.Change(ctx, changes) })
}

// conclude writes what became of the letters of a job.
func (s *Sink) conclude(ctx context.Context, j *job, letters []*Letter) (out Outcome, err error) {
	var changes []Change
	for i, l := range letters {
		switch ok, why := j.published(uint64(i)); {
		case ok:
			out.Published++
			changes = append(changes, Change{ID: l.ID, State: Published})
		case why != nil:
			out.Refused = append(out.Refused, Refused{l.ID, why.Error()})
			changes = append(changes, Change{ID: l.ID, State: Parked, Class: why.class, Reason: why.reason})
		default: // it stands behind a refused one
			changes = append(changes, Change{ID: l.ID, State: Held})
		}
	}
	return out, s.write(ctx, changes)
}

// Release publishes the letters that hold a key: the parked one, then those that wait behind it, in their order; then
// the key is free, and what comes of it by the stream follows. It stops at a letter that is refused, which is the one
// that the others wait for from then on. With parked false it does nothing if the first of them is a parked one.
//
// Where the letters go to their own topic, the lane of their partition does it between two of its batches, so no
// event of the key overtakes. With another topic, or none that exists, there is nothing to overtake.
func (s *Sink) Release(ctx context.Context, h Hold, topic string, parked bool, actor, note string) (Outcome, error) {
	if err := s.ready(ctx); err != nil {
		return Outcome{}, err
	}
	rel := &releasing{sink: s, hold: h, parked: parked, actor: actor, note: note}
	if topic == "" || topic == h.Topic {
		if reason := s.checkTopic(h.Topic); reason == "" {
			if t, why, err := s.lookUp(ctx, "", h.Topic); err != nil {
				return Outcome{}, err
			} else if why == nil {
				return rel.inLane(ctx, t)
			}
		}
		topic = h.Topic
	}
	err := rel.pages(ctx, ctx, func(letters []*Letter) (Outcome, error) {
		var out Outcome
		for _, l := range letters { // one by one, for it stops at the first that is refused
			one, err := s.Requeue(ctx, []*Letter{l}, topic, actor, note)
			out.Published += one.Published
			out.Refused = append(out.Refused, one.Refused...)
			if err != nil || len(one.Refused) > 0 {
				return out, err
			}
		}
		return out, nil
	})
	return rel.out, err
}

// releasing is one Release under way.
type releasing struct {
	sink        *Sink
	hold        Hold
	parked      bool
	actor, note string

	out Outcome
}

// pages hands the letters of the key to publish, page by page, until one is refused or none is left. Then the key is
// free. It looks at asked between two pages.
func (r *releasing) pages(ctx, asked context.Context, publish func([]*Letter) (Outcome, error)) error {
	s := r.sink
	key := newHoldKey(r.hold.Topic, r.hold.Partition, r.hold.Key)
	retry := newRetrier(s, "sink/release", "read dead letters")
	defer retry.succeeded()
	for first := true; ; first = false {
		if asked.Err() != nil {
			return context.Cause(asked)
		}
		// What the lane, or Accept, has left with the parker belongs to the letters.
		s.parker.mu.Lock()
		n := s.parker.last
		s.parker.mu.Unlock()
		if err := s.parker.await(ctx, n); err != nil {
			return err
		}
		var letters []*Letter
		err := retry.table(ctx, func() (err error) {
			letters, err = s.cfg.DeadLetters.Open(ctx, Selection{Topic: &r.hold.Topic, Partition: &r.hold.Partition, Key: r.hold.Key, Holds: true}, requeueLetters, requeueBytes)
			return err
		})
		if err != nil {
			return err
		}
		if len(letters) == 0 {
			s.holds.remove(key)
			return nil
		}
		if first && !r.parked && letters[0].State == Parked {
			return nil
		}
		out, err := publish(letters)
		r.out.Published += out.Published
		r.out.Refused = append(r.out.Refused, out.Refused...)
		if err != nil || len(out.Refused) > 0 {
			return err
		}
	}
}

// inLane has the lane of the key do it.
func (r *releasing) inLane(ctx context.Context, t *topic) (Outcome, error) {
	s := r.sink
	s.topicsMu.Lock()
	p := r.hold.Partition
	if p < 0 {
		p = partitionOf(r.hold.Key, len(t.lanes))
	}
	there := int(p) < len(t.lanes)
	if there {
		t.inFlight.Add(1) // of the task: until it is over the partition is the key's
	}
	s.topicsMu.Unlock()
	if !there {
		return Outcome{Refused: []Refused{{Reason: fmt.Sprintf("the letters are meant for partition %d, which topic %q does not have", p, t.name)}}}, nil
	}
	l, err := s.laneOf(t, p)
	if err != nil {
		return Outcome{}, err
	}
	done := make(chan error, 1)
	l.enqueue(&Batch{task: func(work context.Context, l *lane) error {
		defer func() {
			t.inFlight.Add(-1)
			s.poke(s.room) // Accept may wait to take a larger partition count
		}()
		// Whoever asked may go, but a batch under way is brought to its end: nothing else may follow it before.
		err := r.pages(work, ctx, func(letters []*Letter) (Outcome, error) { return l.republish(work, r, letters) })
		done <- err
		if work.Err() == nil && ctx.Err() != nil {
			return nil // whoever asked has gone
		}
		return err
	}})
	select {
	case err := <-done:
		return r.out, err
	case <-s.ended:
		return Outcome{}, s.endError()
	}
}

// republish publishes letters in the lane's own goroutine.
func (l *lane) republish(ctx context.Context, r *releasing, letters []*Letter) (Outcome, error) {
	s := l.sink
	if err := s.change(ctx, letters, Change{State: Requeued, Actor: r.actor, Note: r.note}); err != nil {
		return Outcome{}, err
	}
	j := newJob(len(letters), true)
	var b *Batch
	send := func() error {
		if b == nil {
			return nil
		}
		err := l.publishJob(ctx, b)
		b = nil
		return err
	}
	for i, x := range letters {
		if why := s.fit(x, l.topic.name); why != nil {
			if err := send(); err != nil {
				return Outcome{}, err
			}
			if !j.leaveOut([]uint64{uint64(i)}) {
				j.refuse(uint64(i), why)
			}
			continue
		}
		if b != nil && b.size+x.recordSize(maxBatchRecords) > l.most() {
			if err := send(); err != nil {
				return Outcome{}, err
			}
		}
		if b == nil {
			b = s.pool.batch(l.topic.name, l.partition)
			b.job = j
		}
		n := b.addLetter(&s.pool, x, uint64(i))
		l.topic.inFlight.Add(1)
		s.backlogEvents.Add(1)
		s.backlogBytes.Add(int64(n))
		l.pending.Add(1)
	}
	if err := send(); err != nil {
		return Outcome{}, err
	}
	return s.conclude(ctx, j, letters)
}

// addLetter encodes the letter's record, marked as a replay, behind the others.
func (b *Batch) addLetter(p *pool, l *Letter, index uint64) int {
	delta := int32(len(b.seqs))
	n := l.recordSize(delta)
	dst := b.room(p, n)
	*dst = l.appendRecord(*dst, delta)
	b.size += n
	if len(b.seqs) == 0 {
		b.oldest = time.Now()
	}
	b.seqs = append(b.seqs, index)
	return n
}

// recordSize returns the bytes of the letter's record as the delta-th of its batch.
func (l *Letter) recordSize(delta int32) int {
	n := l.bodySize(delta)
	return sizeVarint(int64(n)) + n
}

func (l *Letter) bodySize(delta int32) int {
	value := l.Value
	if l.Null {
		value = nil
	} else if value == nil {
		value = []byte{}
	}
	n := 1 + 1 + sizeVarint(int64(delta)) + sizeNullable(l.Key) + sizeNullable(value) + sizeVarint(int64(len(l.Headers)+1))
	for _, h := range l.Headers {
		n += sizeBytes([]byte(h.Name)) + sizeBytes(h.Value)
	}
	return n + sizeBytes([]byte(headerReplay)) + sizeBytes([]byte(cmp.Or(l.replay, replayRequeue)))
}

const replayRequeue = "requeue"

func (l *Letter) appendRecord(dst []byte, delta int32) []byte {
	dst = binary.AppendVarint(dst, int64(l.bodySize(delta)))
	dst = append(dst, 0, 0)
	dst = binary.AppendVarint(dst, int64(delta))
	if l.Key == nil {
		dst = append(dst, 1) // length -1
	} else {
		dst = appendBytes(dst, l.Key)
	}
	if l.Null {
		dst = append(dst, 1) // length -1
	} else {
		dst = appendBytes(dst, l.Value)
	}
	dst = binary.AppendVarint(dst, int64(len(l.Headers)+1))
	for _, h := range l.Headers {
		dst = appendBytes(dst, []byte(h.Name))
		dst = appendBytes(dst, h.Value)
	}
	dst = appendBytes(dst, []byte(headerReplay))
	return appendBytes(dst, []byte(cmp.Or(l.replay, replayRequeue)))
}
