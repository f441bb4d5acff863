package sink

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// Sink publishes the events of one session. See the package's documentation.
type Sink struct {
	cfg      Config
	pub      Publisher
	done     func(seqs []uint64)
	problems problems
	pool     pool

	// Owned by the goroutine that calls Accept.
	encoder
	name    []byte // buffer of a topic's name
	touched []*lane
	now     time.Time // of the Accept under way
	accept  *retrier
	settled *settled // nil: nothing that has a letter can come

	parker   *parker
	copier   *copier
	holds    holds
	halts    halts
	poisoned poisoned

	topicsMu sync.Mutex // guards topics, and their lanes and open where not Accept reads what it wrote itself
	topics   map[string]*topic

	found chan string // topics to inspect; full: they are not
	grew  chan growth // to be told of; full: they are not
	// uncopied are dead-letter topics without copies, to be told of; full: they are not.
	uncopied chan note
	opened   chan struct{} // closed when the publisher is open
	lanes    chan *lane    // new ones, for Run to start
	nudge    chan struct{} // holds one token: look whether everything is acknowledged
	room     chan struct{} // holds one token: bytes have been acknowledged
	ended    chan struct{} // closed when Run returns, after err is set
	err      error

	draining       atomic.Bool
	abandoned      atomic.Bool // told to stop while halted: Accept takes nothing in any more
	halted         atomic.Bool
	haltedLanes    atomic.Int64
	backlogEvents  atomic.Int64
	backlogBytes   atomic.Int64
	publishedBytes atomic.Uint64
	sends, batches atomic.Uint64
	retries        [reasonCount]atomic.Uint64
	resumed        atomic.Uint64
	grown          atomic.Uint64
	undecided      atomic.Uint64
	parked         atomic.Uint64
}

// closeTimeout bounds how long the end of a session waits for the publisher's goroutines.
const closeTimeout = 5 * time.Second

// problemOpen is what the board knows the missing broker by.
const problemOpen = "sink/open"

// New returns the sink of one session. source names the slot, in relay_position. done is called with the sequence
// numbers of acknowledged events, from several goroutines; it must not block or keep the slice. board hears what
// is wrong. It opens nothing. cfg must be valid.
func New(cfg Config, pub Publisher, source string, done func(seqs []uint64), board Board) *Sink {
	s := &Sink{
		cfg: cfg, pub: pub, done: done,
		problems: problems{board: board, raised: map[string]struct{}{}},
		pool:     pool{keep: cfg.WindowBytes / 4},
		encoder:  encoder{rec: record{source: source}},
		topics:   map[string]*topic{},
		found:    make(chan string, 64),
		grew:     make(chan growth, 64),
		uncopied: make(chan note, 64),
		opened:   make(chan struct{}),
		lanes:    make(chan *lane),
		nudge:    make(chan struct{}, 1),
		room:     make(chan struct{}, 1),
		ended:    make(chan struct{}),
	}
	s.routes, _ = cfg.routings()                // cfg is valid
	s.accept = newRetrier(s, "sink/accept", "") // its subject is the topic in question
	// A session streams as soon as it has the slot. Nothing is published before the broker is acquired.
	s.problems.raise(problemOpen, state.Status{State: state.Starting, Reason: "acquiring the broker"})
	s.parker, s.copier = newParker(s), newCopier(s)
	return s
}

// Run acquires the broker, publishes what Accept takes and calls done for what is acknowledged. It returns nil
// once Drain was called and everything is acknowledged that does not wait behind an event that is halted at, ctx's
// cause when ctx ends, or what ends the session: ErrFenced, ErrSequence or ErrNotOwner. All goroutines have ended when
// it returns; what was not acknowledged by then may be on
// the broker or not. Run may be called once.
func (s *Sink) Run(ctx context.Context) (err error) {
	work, cancel := context.WithCancelCause(ctx)
	failed := make(chan error, 1)
	var owned sync.WaitGroup
	start := func(f func(context.Context) error) {
		owned.Go(func() {
			if err := f(work); err != nil {
				select {
				case failed <- err:
				default: // somebody else was first
				}
			}
		})
	}
	defer func() {
		cancel(err)
		// The lanes' requests end with the connections, not when the broker answers.
		down, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer stop()
		if e := s.pub.Close(down); e != nil && err == nil {
			err = fmt.Errorf("close publisher: %w", e)
		}
		owned.Wait()
		s.err = err
		close(s.ended)
		s.problems.close()
	}()

	start(s.open)
	start(s.inspectTopics)
	if s.cfg.DeadLetters != nil {
		start(s.parker.run)
	}
	if len(s.copier.topics) > 0 {
		start(s.copier.run)
	}
	var grace <-chan time.Time
	for {
		select {
		case l := <-s.lanes:
			start(l.run)
		case <-s.nudge:
			if !s.drained() {
				continue
			}
			if s.copier.idle() {
				return nil
			}
			if grace == nil {
				timer := time.NewTimer(copyGrace)
				defer timer.Stop()
				grace = timer.C
			}
		case <-grace:
			if s.drained() {
				return nil
			}
			grace = nil
		case err := <-failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// open acquires the broker, however long it takes.
func (s *Sink) open(ctx context.Context) error {
	r := newRetrier(s, problemOpen, "acquire the broker")
	for {
		r.begin()
		err := s.pub.Open(ctx)
		v := verdictOf(err, false)
		switch {
		case v.class == success:
			r.succeeded()
			if err := s.loadSettled(ctx); err != nil {
				return err
			}
			s.problems.clear(problemOpen)
			close(s.opened)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case v.class == fatal:
			s.retries[v.reason].Add(1)
			return fmt.Errorf("%s: %w: %w", r.subject, v.ends, err)
		}
		if err := r.wait(ctx, v, err); err != nil {
			return err
		}
	}
}

// drained reports whether Drain was called and all is done that can be, copies aside.
func (s *Sink) drained() bool {
	return s.draining.Load() && (s.backlogEvents.Load() == 0 || s.stuck())
}

// Drain says that no Accept will follow: Run returns as soon as everything accepted is acknowledged.
func (s *Sink) Drain() {
	s.draining.Store(true)
	s.poke(s.nudge)
}

// acknowledge settles a batch that is on the broker.
func (s *Sink) acknowledge(l *lane, b *Batch, start time.Time) {
	l.topic.published.Add(uint64(b.Len()))
	s.batches.Add(1)
	s.publishedBytes.Add(uint64(b.size))
	s.settle(l, b)
	if s.cfg.Observe != nil {
		now := time.Now()
		s.cfg.Observe(BatchResult{
			Topic: b.Topic, Partition: b.Partition, Events: b.Len(), Bytes: b.size, Tries: b.tries,
			Produce: now.Sub(start), CommitAge: max(0, now.Sub(b.oldest)),
		})
	}
	s.pool.put(b)
}

// settle reports the batch's events done and makes room.
func (s *Sink) settle(l *lane, b *Batch) {
	if b.job != nil {
		b.job.settle(b.Len())
	} else {
		s.done(b.seqs)
	}
	s.release(l, b)
}

// release makes the room that the batch took.
func (s *Sink) release(l *lane, b *Batch) {
	l.topic.inFlight.Add(int64(-b.Len()))
	if b.aside() {
		return
	}
	l.pending.Add(int64(-b.Len()))
	s.backlogBytes.Add(int64(-b.size))
	s.freed(s.backlogEvents.Add(int64(-b.Len())))
}

// freed tells those that wait for room, or for the end.
func (s *Sink) freed(left int64) {
	s.poke(s.room)
	if s.draining.Load() && (left == 0 || s.haltedLanes.Load() > 0 || s.abandoned.Load()) {
		s.poke(s.nudge)
	}
}

func (s *Sink) poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// endError is what Accept returns after the end.
func (s *Sink) endError() error {
	if s.err != nil {
		return s.err
	}
	return ErrClosed
}

var _ interface {
	Accept(context.Context, uint64, []outbox.Committed) error
	Run(context.Context) error
	Drain()
} = (*Sink)(nil)
