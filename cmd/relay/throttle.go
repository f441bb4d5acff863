package main

import (
	"sync"
	"time"
)

// throttleInterval is how often the same trouble is told after its first time.
const throttleInterval = 30 * time.Second

// throttle lets the first of many equal messages through, then at most one per interval with the number of
// those it held back in between. Its keys come from closed sets, so it does not grow. Safe for concurrent use.
type throttle struct {
	interval time.Duration
	now      func() time.Time

	// mu guards the field below.
	mu   sync.Mutex
	seen map[string]*throttled
}

// throttled is the state of one key.
type throttled struct {
	last time.Time // when it was let through
	held int       // since then
}

func newThrottle(interval time.Duration) *throttle {
	return &throttle{interval: interval, now: time.Now, seen: map[string]*throttled{}}
}

// allow reports whether the message goes out now, and if so, how many before it did not.
func (t *throttle) allow(key string) (held int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	e := t.seen[key]
	if e == nil {
		t.seen[key] = &throttled{last: now}
		return 0, true
	}
	if now.Sub(e.last) < t.interval {
		e.held++
		return 0, false
	}
	held, e.held, e.last = e.held, 0, now
	return held, true
}

// reset makes the key's next message the first again: the trouble was over.
func (t *throttle) reset(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.seen, key)
}
