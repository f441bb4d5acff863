package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/outbox"
)

// headerReplay marks a record that was published on request. It stands outside the order of live records, and the
// resume check passes over it.
const headerReplay = "relay_replay"

// Refusal says that an event of a replay was not published, and why.
type Refusal struct {
	Index  int // in what was given to Replay
	Reason string
}

// Replay publishes events again, marked with the header relay_replay, and returns when each of them is acknowledged
// or refused. Events of one call keep their order per partition; beside the live ones they have none. They are in
// memory all at once, beside the window, so give them by the thousand or the megabyte. Their bytes are not kept. One
// that can never be published, or whose topic does not exist, is refused, and stops nothing.
//
// It returns ctx's cause, or what ended the session; then any of them may have been published. Safe for concurrent use.
func (s *Sink) Replay(ctx context.Context, events []outbox.Committed) ([]Refusal, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	enc := &encoder{rec: record{source: s.rec.source}}
	enc.routes, _ = s.cfg.routings() // cfg is valid
	load := newLoad(s, len(events), false)
	for i := range events {
		why, err := s.replayOne(ctx, enc, load, i, &events[i])
		if err != nil {
			return nil, err
		}
		if why != nil {
			load.job.refuse(uint64(i), why)
		}
	}
	load.send()
	if err := load.job.await(ctx, s); err != nil {
		return nil, err
	}
	var out []Refusal
	for _, r := range load.job.refused {
		out = append(out, Refusal{Index: int(r.index), Reason: r.why.Error()})
	}
	return out, nil
}

func (s *Sink) replayOne(ctx context.Context, enc *encoder, load *load, i int, e *outbox.Committed) (*poisonError, error) {
	if p := enc.encode(e); p != nil {
		return p, nil
	}
	rt := enc.routes[e.Route]
	name, reason, hint := rt.topic(nil, e)
	if reason == "" {
		reason = s.checkTopic(string(name))
	}
	if reason != "" {
		return &poisonError{eventID: string(e.ID), topic: string(name), class: classBadTopic, reason: reason, hint: hint}, nil
	}
	t, why, err := s.lookUp(ctx, string(e.ID), string(name))
	if t == nil {
		return why, err
	}
	enc.rec.user = append(enc.rec.user[:len(enc.rec.user):len(enc.rec.user)], header{[]byte(headerReplay), []byte("replay")})
	enc.rec.measure()
	if size := enc.rec.size(0) + batchHeader; size > s.most(e) {
		return s.tooLarge(e, string(name), size), nil
	}
	return load.place(t, func(n int) (int32, *poisonError) {
		p, reason := rt.partitionOf(e, enc.rec.key, n)
		if reason != "" {
			return 0, &poisonError{eventID: string(e.ID), topic: t.name, class: classBadPartition, reason: reason}
		}
		return p, nil
	}, func(b *Batch) int {
		enc.rec.since, enc.rec.wide = 0, 0
		return b.add(&s.pool, &enc.rec, uint64(i), e.CommitTime)
	}, enc.rec.timed, enc.rec.size(maxBatchRecords))
}

// ready waits until the broker is acquired.
func (s *Sink) ready(ctx context.Context) error {
	select {
	case <-s.opened:
		return nil
	case <-s.ended:
		return s.endError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lookUp finds a topic for a record that goes out on request. A topic that does not exist, after a moment, is a
// reason to refuse the record.
func (s *Sink) lookUp(ctx context.Context, eventID, name string) (*topic, *poisonError, error) {
	s.topicsMu.Lock()
	t := s.topics[name]
	s.topicsMu.Unlock()
	if t != nil {
		return t, nil, nil
	}
	r := newRetrier(s, "sink/replay/"+name, fmt.Sprintf("find topic %q", name))
	defer r.succeeded()
	for {
		r.begin()
		n, err := s.pub.Partitions(ctx, name)
		if err == nil {
			return s.addTopic(name, n), nil, nil
		}
		v := verdictOf(err, false)
		switch {
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case v.class == poison, v.class == missing && !r.failing.IsZero() && time.Since(r.failing) >= s.cfg.UnreachableAfter:
			return nil, &poisonError{eventID: eventID, topic: name, class: classBadTopic, reason: describe(err),
				hint: "create the topic"}, nil
		}
		if v.class == missing {
			r.failed(v.reason)
			if err := r.pause(ctx, 100*time.Millisecond); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err := r.wait(ctx, v, err); err != nil {
			return nil, nil, err
		}
	}
}

// load gathers the records of a job into batches, by lane.
type load struct {
	sink  *Sink
	job   *job
	open  map[*lane]*Batch // not given to its lane yet
	lanes []*lane          // those of open, in the order in which they were first needed
	until <-chan struct{}  // closed when Run starts no more lanes, for one whom Run waits for; else nil
}

func newLoad(s *Sink, n int, ordered bool) *load {
	return &load{sink: s, job: newJob(n, ordered), open: map[*lane]*Batch{}}
}

// place puts a record into the batch of its lane. choose names its partition among n, add encodes it.
func (w *load) place(t *topic, choose func(n int) (int32, *poisonError), add func(*Batch) int, timed bool, size int) (*poisonError, error) {
	s := w.sink
	// The count of partitions changes only when nothing of the topic is in flight, so what is counted here fixes it.
	s.topicsMu.Lock()
	p, why := choose(len(t.lanes))
	if why == nil {
		t.inFlight.Add(1)
	}
	s.topicsMu.Unlock()
	if why != nil {
		return why, nil
	}
	l, err := s.laneUntil(t, p, w.until)
	if err != nil {
		return nil, err
	}
	b := w.open[l]
	if b != nil && (b.Len() >= maxBatchRecords || b.timed != timed || b.size+size > l.most()) {
		l.enqueue(b)
		b = nil
	}
	if b == nil {
		if w.open[l] == nil {
			w.lanes = append(w.lanes, l)
		}
		b = s.pool.batch(t.name, p)
		b.job = w.job
		w.open[l] = b
	}
	n := add(b)
	if b.aside() {
		return nil, nil
	}
	s.backlogEvents.Add(1)
	s.backlogBytes.Add(int64(n))
	l.pending.Add(1)
	return nil, nil
}

// send gives what is left to the lanes.
func (w *load) send() {
	for _, l := range w.lanes {
		l.enqueue(w.open[l])
		delete(w.open, l)
	}
	w.lanes = nil
}
