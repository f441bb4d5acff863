package sink

import (
	"context"
	"slices"
	"sync"
)

// job is a number of records that go out again on request. They travel in batches of their own, whose seqs are
// indexes into the job.
type job struct {
	ordered bool // nothing goes out behind one that is refused
	copies  bool // of dead letters: nobody waits for them

	mu      sync.Mutex // guards the fields below
	left    int        // records neither acknowledged, refused nor left out
	refused []refusal
	cut     []uint64      // left out behind a refused one
	over    chan struct{} // closed when nothing is left
}

type refusal struct {
	index uint64
	why   *poisonError
}

func newJob(n int, ordered bool) *job {
	j := &job{left: n, ordered: ordered, over: make(chan struct{})}
	if n == 0 {
		close(j.over)
	}
	return j
}

// settle says that n records have come to their end.
func (j *job) settle(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.settleLocked(n)
}

func (j *job) settleLocked(n int) {
	if n == 0 {
		return
	}
	if j.left -= n; j.left == 0 {
		close(j.over)
	}
}

// refuse says that a record will not be published.
func (j *job) refuse(index uint64, why *poisonError) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refused = append(j.refused, refusal{index, why})
	j.settleLocked(1)
}

// leaveOut reports whether a batch must not go out, because it stands behind a record that was refused.
func (j *job) leaveOut(seqs []uint64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.ordered || len(j.refused) == 0 {
		return false
	}
	j.cut = append(j.cut, seqs...)
	j.settleLocked(len(seqs))
	return true
}

// await returns when every record has come to its end.
func (j *job) await(ctx context.Context, s *Sink) error {
	select {
	case <-j.over:
		return nil
	case <-s.ended:
		return s.endError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// published reports whether the record is on the broker, once all has come to its end; why is nil for one that was
// left out.
func (j *job) published(index uint64) (ok bool, why *poisonError) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.refused {
		if r.index == index {
			return false, r.why
		}
	}
	return !slices.Contains(j.cut, index), nil
}
