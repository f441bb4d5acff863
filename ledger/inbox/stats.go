package inbox

import (
	"maps"
	"sync"
)

// EndReason is why a stream ended.
type EndReason string

// The reasons. EndReasons lists them.
const (
	EndLeft    EndReason = "left"    // the client went
	EndExpired EndReason = "expired" // its token did
	EndSlow    EndReason = "slow"    // the client took too long to take what was sent
	EndStopped EndReason = "stopped" // the process stops
)

// EndReasons returns all reasons.
func EndReasons() []EndReason { return []EndReason{EndLeft, EndExpired, EndSlow, EndStopped} }

// RefusalClasses returns what requests are counted by that were refused.
func RefusalClasses() []string {
	return []string{"token", "origin", "limit", "tenant", "request", "database"}
}

// Stats is a snapshot of what an Inbox did since it was made.
type Stats struct {
	Streams int                  // open now
	Opened  uint64               // streams
	Ended   map[EndReason]uint64 // streams, by why
	Sent    uint64               // notifications, on streams
	Listed  uint64               // answered requests for a list
	Refused map[string]uint64    // requests, by class
}

type counters struct {
	// mu guards stats.
	mu    sync.Mutex
	stats Stats
}

func newCounters() *counters {
	return &counters{stats: Stats{Ended: map[EndReason]uint64{}, Refused: map[string]uint64{}}}
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Ended, s.Refused = maps.Clone(s.Ended), maps.Clone(s.Refused)
	return s
}

func (c *counters) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Opened++
}

func (c *counters) ended(why EndReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Ended[why]++
}

func (c *counters) sent(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Sent += uint64(n)
}

func (c *counters) listed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Listed++
}

func (c *counters) refused(class string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Refused[class]++
}
