package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/sink"
)

func TestMeter(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var stream cdc.Stats
	out := sink.Stats{Published: map[string]uint64{}, Retries: map[string]uint64{}}
	m := newMeter(func() cdc.Stats { return stream }, func() sink.Stats {
		return sink.Stats{}.Add(out) // a copy, as of a real one
	})
	m.now = func() time.Time { return now }
	pass := func(d time.Duration, received, published, timeouts uint64) {
		now = now.Add(d)
		stream.ReceivedEvents += received
		out.Published["a"] += published
		out.Retries["timeout"] += timeouts
	}
	check := func(want pace) {
		t.Helper()
		if diff := cmp.Diff(want, m.Pace()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	check(pace{})
	m.take()
	pass(meterInterval, 50, 40, 3)
	check(pace{Over: meterInterval, Received: 10, Published: 8, Retries: map[string]uint64{"timeout": 3}, RetriesOver: meterInterval})
	m.take()
	pass(meterInterval, 5, 10, 0)
	// The rates are of the last interval, the retries of the whole memory.
	check(pace{Over: meterInterval, Received: 1, Published: 2, Retries: map[string]uint64{"timeout": 3}, RetriesOver: 2 * meterInterval})
	for range 13 {
		m.take()
		pass(meterInterval, 0, 0, 0)
	}
	if got := m.Pace(); len(got.Retries) > 0 || got.Received != 0 || len(m.samples) > 14 {
		t.Errorf("what was a minute ago still counts: %+v, %d samples", got, len(m.samples))
	}

	// A backlog begins between two samples, and goes.
	stream.BacklogLeft = 1000
	m.backlogReported()
	pass(time.Second, 0, 0, 0)
	stream.BacklogLeft = 900
	m.take()
	pass(10*time.Second, 0, 0, 0)
	stream.BacklogLeft = 400
	if got := m.Pace(); got.BacklogTotal != 1000 || got.BacklogLeft != 400 || got.BacklogRate != 50 {
		t.Errorf("backlog: %+v", got)
	}
	stream.BacklogLeft = 0
	if got := m.Pace(); got.BacklogTotal != 0 || got.BacklogRate != 0 {
		t.Errorf("the backlog is over: %+v", got)
	}
	stream.BacklogLeft = 10
	if got := m.Pace(); got.BacklogTotal != 10 {
		t.Errorf("the next backlog: %+v", got)
	}
}
