package sink

import (
	"maps"
	"slices"
)

// Stats is a snapshot of what a Sink has done and holds.
type Stats struct {
	BacklogEvents  uint64            // accepted, not yet acknowledged
	BacklogBytes   uint64            // the same in bytes of encoded records
	Published      map[string]uint64 // events acknowledged, by topic
	PublishedBytes uint64            // bytes of encoded records acknowledged
	Resumed        uint64            // events found published by an earlier session, and acknowledged without being sent
	Grown          uint64            // times that a topic's larger partition count was taken
	Undecided      uint64            // resume checks that could not tell, so that events may be there twice
	Sends          uint64            // tries to send a batch
	Batches        uint64            // batches acknowledged
	Retries        map[string]uint64 // tries that did not succeed, by reason; every one of Reasons is there
	Lanes          int               // partitions written to in this session
	HaltedLanes    int               // of these, stopped at an event that cannot be published
	Halted         bool              // the stream itself is stopped at such an event
	Poison         map[Poison]uint64 // events that could not be published; every combination is there
	Parked         uint64            // dead letters written, held events included
	Copies         map[string]uint64 // copies of dead letters, by what became of them; every one of CopyResults is there
}

// Reasons lists every value that the keys of Stats.Retries can have.
func Reasons() []string { return slices.Clone(reasonNames[:]) }

// Stats returns a snapshot. Safe for concurrent use, during and after the session.
func (s *Sink) Stats() Stats {
	st := Stats{
		BacklogEvents:  uint64(s.backlogEvents.Load()),
		BacklogBytes:   uint64(s.backlogBytes.Load()),
		PublishedBytes: s.publishedBytes.Load(),
		Sends:          s.sends.Load(),
		Batches:        s.batches.Load(),
		Resumed:        s.resumed.Load(),
		Grown:          s.grown.Load(),
		Undecided:      s.undecided.Load(),
		Retries:        make(map[string]uint64, len(reasonNames)),
		HaltedLanes:    int(s.haltedLanes.Load()),
		Halted:         s.halted.Load(),
		Parked:         s.parked.Load(),
		Poison:         s.poisoned.counts(),
		Copies:         make(map[string]uint64, copyResults),
	}
	for i, name := range copyResultNames {
		st.Copies[name] = s.copier.counts[i].Load()
	}
	for r, name := range reasonNames {
		st.Retries[name] = s.retries[r].Load()
	}
	s.topicsMu.Lock()
	defer s.topicsMu.Unlock()
	st.Published = make(map[string]uint64, len(s.topics))
	for t := range maps.Values(s.topics) {
		st.Published[t.name] = t.published.Load()
		st.Lanes += len(t.open)
	}
	return st
}

// Add returns s with the counters of an ended session added. What is held right now (backlog, lanes, halts) is
// taken from s alone.
func (s Stats) Add(ended Stats) Stats {
	s.PublishedBytes += ended.PublishedBytes
	s.Sends += ended.Sends
	s.Batches += ended.Batches
	s.Resumed += ended.Resumed
	s.Undecided += ended.Undecided
	s.Grown += ended.Grown
	s.Published = sum(s.Published, ended.Published)
	s.Retries = sum(s.Retries, ended.Retries)
	if len(ended.Poison) > 0 {
		s.Poison = sum(s.Poison, ended.Poison)
	}
	s.Parked += ended.Parked
	if len(ended.Copies) > 0 {
		s.Copies = sum(s.Copies, ended.Copies)
	}
	return s
}

func sum[K comparable](a, b map[K]uint64) map[K]uint64 {
	out := maps.Clone(a)
	if out == nil {
		out = make(map[K]uint64, len(b))
	}
	for k, v := range b {
		out[k] += v
	}
	return out
}
