package demo

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// tally keeps what writers sent to commit against what the reader read. Safe for concurrent use.
type tally struct {
	started time.Time
	settled chan struct{} // closed when nothing is written any more and everything has arrived

	// mu guards the fields below.
	mu         sync.Mutex
	committed  int
	rolledBack int
	complete   bool                    // the writers have ended
	inFlight   map[uuid.UUID]time.Time // sent to commit and not read: when
	read       map[uuid.UUID]struct{}
	order      []uuid.UUID // first records of each event as they were read; each partition's are in its order
	duplicates int
	strange    int // records without an event ID
	last       *Arrival
	lastRead   time.Time
	firstRead  time.Time
}

func newTally(started time.Time) *tally {
	return &tally{
		started: started, settled: make(chan struct{}),
		inFlight: map[uuid.UUID]time.Time{}, read: map[uuid.UUID]struct{}{},
	}
}

// committing is called before COMMIT is sent.
func (t *tally) committing(ids []uuid.UUID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.committed += len(ids)
	for _, id := range ids {
		t.inFlight[id] = now
	}
}

func (t *tally) rollBack(events int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rolledBack += events
}

// wrote is called when the last COMMIT has been answered.
func (t *tally) wrote() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complete = true
	t.settle()
}

func (t *tally) settle() {
	if t.complete && len(t.inFlight) == 0 {
		select {
		case <-t.settled:
		default:
			close(t.settled)
		}
	}
}

// arrived is called for each record, in the order of its partition.
func (t *tally) arrived(a Arrival) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.lastRead = now
	if t.firstRead.IsZero() {
		t.firstRead = now
	}
	id, err := uuid.Parse(a.EventID)
	if err != nil {
		t.strange++
		return
	}
	if _, again := t.read[id]; again {
		t.duplicates++
		return
	}
	t.read[id] = struct{}{}
	t.order = append(t.order, id)
	if sent, ok := t.inFlight[id]; ok {
		delete(t.inFlight, id)
		a.Delay = now.Sub(sent)
		t.last = &a
		t.settle()
	}
}

func (t *tally) progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	p := Progress{
		Elapsed: now.Sub(t.started), Committed: t.committed, RolledBack: t.rolledBack,
		Published: len(t.read), InFlight: len(t.inFlight), Last: t.last,
	}
	for _, sent := range t.inFlight {
		p.Lag = max(p.Lag, now.Sub(sent))
	}
	return p
}

// silence is how long nothing has arrived although something should have.
func (t *tally) silence() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	var lag time.Duration
	for _, sent := range t.inFlight {
		lag = max(lag, now.Sub(sent))
	}
	if t.lastRead.IsZero() {
		return lag
	}
	return min(lag, now.Sub(t.lastRead))
}

// change is one committed change of an order.
type change struct {
	order   int64
	version int
}

// judge compares what was read with the truth.
func (t *tally) judge(truth map[uuid.UUID]change) Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Summary{
		Committed: len(truth), RolledBack: t.rolledBack, Published: len(t.read),
		Duplicates: t.duplicates, Ghosts: t.strange, Elapsed: time.Since(t.started),
	}
	if !t.firstRead.IsZero() {
		s.FirstEvent = t.firstRead.Sub(t.started)
	}
	latest := map[int64]int{} // version, by order
	for _, id := range t.order {
		c, ok := truth[id]
		switch {
		case !ok:
			s.Ghosts++
		case c.version < latest[c.order]:
			s.OutOfOrder++
		default:
			latest[c.order] = c.version
		}
	}
	for id := range truth {
		if _, ok := t.read[id]; !ok {
			s.Lost++
		}
	}
	return s
}
