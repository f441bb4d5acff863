package main

import (
	"context"
	"sync"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/sink"
)

const (
	meterInterval = 5 * time.Second // between two samples; rates are over the last one or two of them
	meterMemory   = time.Minute     // how far back samples go
)

// sample is what was counted up to a moment.
type sample struct {
	at                  time.Time
	received, published uint64
	retries             map[string]uint64
	left                uint64 // of the events that go before the stream; 0: none are
}

// pace is how fast a relay goes. Its rates are a second.
type pace struct {
	Over                time.Duration // that the rates are of; 0: not known yet
	Received, Published float64
	Retries             map[string]uint64 // by reason, within meterMemory; those that were
	RetriesOver         time.Duration     // the part of meterMemory that is known

	BacklogTotal uint64  // events that went, go or will go before the stream
	BacklogLeft  uint64  // of these
	BacklogRate  float64 // published of these, over up to meterMemory; 0: not known
}

// meter samples the counters of a process now and then, so that one look at it shows rates. Safe for concurrent
// use.
type meter struct {
	stream func() cdc.Stats
	sink   func() sink.Stats
	now    func() time.Time

	// mu guards the fields below.
	mu      sync.Mutex
	samples []sample // the oldest first
	total   uint64   // the most events that were left since there last were none
}

func newMeter(stream func() cdc.Stats, sink func() sink.Stats) *meter {
	return &meter{stream: stream, sink: sink, now: time.Now}
}

// Run samples until ctx ends.
func (m *meter) Run(ctx context.Context) {
	ticker := time.NewTicker(meterInterval)
	defer ticker.Stop()
	for {
		m.take()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// take adds a sample.
func (m *meter) take() {
	s := m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLeft(s.left)
	m.samples = append(m.samples, s)
	for len(m.samples) > 1 && s.at.Sub(m.samples[0].at) > meterMemory {
		m.samples = m.samples[1:]
	}
}

// backlogReported looks how many events are left, for between two samples a backlog may begin.
func (m *meter) backlogReported() {
	left := m.stream().BacklogLeft
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLeft(left)
}

func (m *meter) noteLeft(left uint64) {
	if m.total = max(m.total, left); left == 0 {
		m.total = 0
	}
}

func (m *meter) look() sample {
	stream, out := m.stream(), m.sink()
	s := sample{at: m.now(), received: stream.ReceivedEvents, retries: out.Retries, left: stream.BacklogLeft}
	for _, n := range out.Published {
		s.published += n
	}
	return s
}

// Pace compares now with before.
func (m *meter) Pace() pace {
	s := m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLeft(s.left)
	p := pace{BacklogTotal: m.total, BacklogLeft: s.left}
	if len(m.samples) == 0 {
		return p
	}
	recent := m.samples[0]
	for _, old := range m.samples {
		if s.at.Sub(old.at) >= meterInterval {
			recent = old
		}
	}
	if p.Over = s.at.Sub(recent.at); p.Over < time.Second { // too short to say anything
		p.Over = 0
	} else {
		p.Received = float64(s.received-min(s.received, recent.received)) / p.Over.Seconds()
		p.Published = float64(s.published-min(s.published, recent.published)) / p.Over.Seconds()
	}
	first := m.samples[0]
	p.Retries, p.RetriesOver = map[string]uint64{}, s.at.Sub(first.at)
	for reason, n := range s.retries {
		if n > first.retries[reason] {
			p.Retries[reason] = n - first.retries[reason]
		}
	}
	for _, old := range m.samples {
		if took := s.at.Sub(old.at).Seconds(); s.left > 0 && old.left >= s.left && took >= 1 {
			p.BacklogRate = float64(old.left-s.left) / took
			break
		}
	}
	return p
}
