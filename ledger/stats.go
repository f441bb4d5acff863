package ledger

import "sync"

// Stats is a snapshot of what a Ledger was answered since it was made.
type Stats struct {
	// Outcomes counts answers, by channel and outcome. The channels are those of ledger.channels and listeners.
	Outcomes map[string]map[Outcome]uint64
	// Fenced counts answers Fenced: another holder had taken over, or the reservation was never the caller's.
	Fenced uint64
	// LateSuccess counts effects that succeeded and were reported after the reservation was lost, LateAccepted or
	// Fenced. Of the fenced ones each may be a second delivery that only the provider's key prevents.
	LateSuccess uint64
	// Takeovers counts reservations in Deliver and Run of rows whose holder had let its lease end.
	Takeovers uint64
	// Panics counts functions of handlers that panicked.
	Panics uint64
}

// counters holds what Stats shows.
type counters struct {
	// mu guards stats.
	mu    sync.Mutex
	stats Stats
}

// Stats returns a snapshot.
func (l *Ledger) Stats() Stats {
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	s := l.counters.stats
	s.Outcomes = make(map[string]map[Outcome]uint64, len(l.counters.stats.Outcomes))
	for channel, outcomes := range l.counters.stats.Outcomes {
		s.Outcomes[channel] = make(map[Outcome]uint64, len(outcomes))
		for o, n := range outcomes {
			s.Outcomes[channel][o] = n
		}
	}
	return s
}

// count notes n answers. late: it was asked whether an effect that happened may be recorded.
func (l *Ledger) count(channel string, o Outcome, n int, late bool) {
	if n == 0 {
		return
	}
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	s := &l.counters.stats
	if s.Outcomes == nil {
		s.Outcomes = map[string]map[Outcome]uint64{}
	}
	if s.Outcomes[channel] == nil {
		s.Outcomes[channel] = map[Outcome]uint64{}
	}
	s.Outcomes[channel][o] += uint64(n)
	if o == Fenced {
		s.Fenced += uint64(n)
	}
	if late && (o == Fenced || o == LateAccepted) {
		s.LateSuccess += uint64(n)
	}
}

func (l *Ledger) countPanic() {
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	l.counters.stats.Panics++
}

func (l *Ledger) countTakeover(r Reservation) {
	if !r.takeover {
		return
	}
	l.counters.mu.Lock()
	defer l.counters.mu.Unlock()
	l.counters.stats.Takeovers++
}
