package demo

import (
	"context"
	"sync"
	"time"
)

// pace hands out events to writers: not more than there are, not faster than asked for. Safe for concurrent use.
type pace struct {
	every time.Duration // one event; 0: at once

	// mu guards the fields below.
	mu   sync.Mutex
	left int
	next time.Time // when the next event is due
}

func newPace(events int, rate float64) *pace {
	p := &pace{left: events}
	if rate > 0 {
		p.every = time.Duration(float64(time.Second) / rate)
	}
	return p
}

// take returns how many of n events the caller may write, once they are due; 0 when there are none left or ctx has
// ended.
func (p *pace) take(ctx context.Context, n int) int {
	p.mu.Lock()
	now := time.Now()
	n = min(n, p.left)
	p.left -= n
	due := p.next
	if due.Before(now) {
		due = now
	}
	p.next = due.Add(time.Duration(n) * p.every)
	p.mu.Unlock()

	if n == 0 || ctx.Err() != nil {
		return 0
	}
	if wait := due.Sub(now); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return 0
		}
	}
	return n
}
