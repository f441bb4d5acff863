package deliver

import (
	"maps"
	"sync"

	"github.com/outboxrelay/relay/ledger"
)

// Stats is a snapshot of what a Worker did since it was made.
type Stats struct {
	Records    map[RecordOutcome]uint64             // by what became of them
	Parked     map[Class]uint64                     // records, by what is wrong with them
	Registered map[string]map[ledger.Outcome]uint64 // deliveries, by channel and registered, known or expired
	Attempts   map[string]map[ledger.Outcome]uint64 // attempts, by channel and how they ended
	Held       map[string]int                       // deliveries that this process holds now, by channel
	Member     bool                                 // of the group now
	Partitions int                                  // assigned now
	Lag        int64                                // records behind the ends of those
	Rebalances uint64                               // generations of the group that began
	Skipped    uint64                               // records that the topic no longer had when they were to be read
	Stalled    string                               // why registering does not go on; empty: it does
}

type counters struct {
	// mu guards the fields below.
	mu    sync.Mutex
	stats Stats
	lag   map[partition]int64
	stuck map[partition]string
}

type partition struct {
	topic string
	id    int
}

func newCounters() *counters {
	return &counters{
		stats: Stats{
			Records: map[RecordOutcome]uint64{}, Parked: map[Class]uint64{}, Registered: map[string]map[ledger.Outcome]uint64{},
			Attempts: map[string]map[ledger.Outcome]uint64{}, Held: map[string]int{},
		},
		lag: map[partition]int64{}, stuck: map[partition]string{},
	}
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Records, s.Parked, s.Held = maps.Clone(s.Records), maps.Clone(s.Parked), maps.Clone(s.Held)
	s.Registered, s.Attempts = cloneDeep(s.Registered), cloneDeep(s.Attempts)
	s.Partitions = len(c.lag)
	for _, n := range c.lag {
		s.Lag += n
	}
	for _, why := range c.stuck {
		s.Stalled = why
	}
	return s
}

func cloneDeep(m map[string]map[ledger.Outcome]uint64) map[string]map[ledger.Outcome]uint64 {
	out := make(map[string]map[ledger.Outcome]uint64, len(m))
	for k, v := range m {
		out[k] = maps.Clone(v)
	}
	return out
}

func (c *counters) record(o RecordOutcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Records[o]++
}

func (c *counters) parked(class Class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Parked[class]++
}

func (c *counters) registered(channel string, n ledger.Registration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(c.stats.Registered, channel, ledger.Registered, n.Inserted)
	add(c.stats.Registered, channel, ledger.Known, n.Known)
	add(c.stats.Registered, channel, ledger.Expired, n.Expired)
}

func (c *counters) attempt(channel string, o ledger.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	add(c.stats.Attempts, channel, o, 1)
}

func add(m map[string]map[ledger.Outcome]uint64, channel string, o ledger.Outcome, n int) {
	if n == 0 {
		return
	}
	if m[channel] == nil {
		m[channel] = map[ledger.Outcome]uint64{}
	}
	m[channel][o] += uint64(n)
}

func (c *counters) held(channel string, change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Held[channel] += change
}

func (c *counters) rebalance() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Rebalances++
}

func (c *counters) member(yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Member = yes
}

func (c *counters) skipped(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Skipped += uint64(n)
}

func (c *counters) behind(p partition, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag[p] = n
}

// stalled says that p does not go on; "" that it does.
func (c *counters) stalled(p partition, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if why == "" {
		delete(c.stuck, p)
		return
	}
	c.stuck[p] = why
}

// revoked forgets a partition.
func (c *counters) revoked(p partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.lag, p)
	delete(c.stuck, p)
}
