package sink

import "sync/atomic"

// Poison counts by what was wrong and what was done.
type Poison struct {
	Class  string // one of Classes
	Policy Policy
}

// poisoned counts the events that could not be published.
type poisoned struct {
	n [8][3]atomic.Uint64 // by index in Classes and Policies
}

func (p *poisoned) count(class string, policy Policy) {
	for i, c := range Classes() {
		for j, x := range Policies() {
			if c == class && x == policy {
				p.n[i][j].Add(1)
			}
		}
	}
}

func (p *poisoned) counts() map[Poison]uint64 {
	out := make(map[Poison]uint64, len(p.n)*len(p.n[0]))
	for i, c := range Classes() {
		for j, x := range Policies() {
			out[Poison{c, x}] = p.n[i][j].Load()
		}
	}
	return out
}
