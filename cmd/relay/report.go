package main

import (
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
)

// Report is what /status.json tells and relay status shows. Its fields are API: they may be added to, and none
// changes its name or its meaning.
type Report struct {
	state.Status
	Version    string           `json:"version"`
	StartedAt  time.Time        `json:"started_at"`
	Slot       SlotReport       `json:"slot"`
	Received   ReceivedReport   `json:"received"`
	Published  PublishedReport  `json:"published"`
	Backlog    BacklogReport    `json:"backlog"`
	Before     *BeforeReport    `json:"before_stream"` // null while nothing goes before the stream
	Publishing PublishingReport `json:"publishing"`
	Rates      *RatesReport     `json:"rates"` // null in the first second

	// DeadLetters counts the rows of outbox.dead_letters by state; null while they are not known.
	DeadLetters map[string]int64 `json:"dead_letters"`
}

// SlotReport is the replication slot as the server and the stream see it. The server's numbers are null, its
// words empty, while they are not known.
type SlotReport struct {
	Name          string     `json:"name"`
	Held          bool       `json:"held"` // by this relay
	Sessions      uint64     `json:"sessions"`
	ReceivedLSN   string     `json:"received_lsn"`
	ConfirmedLSN  string     `json:"confirmed_lsn"`
	ConfirmedAt   *time.Time `json:"confirmed_at"`   // when it last rose; null: not since the process started
	LagBytes      *int64     `json:"lag_bytes"`      // from the confirmed flush LSN to the server's current one
	RetainedBytes *int64     `json:"retained_bytes"` // WAL the server keeps for the slot

	Active            *bool    `json:"active"`             // some relay reads from it
	ActivePID         *int32   `json:"active_pid"`         // that relay's walsender
	ActiveApplication string   `json:"active_application"` // that relay's application_name
	WALStatus         string   `json:"wal_status"`         // reserved, extended, unreserved or lost
	Invalidation      string   `json:"invalidation_reason"`
	LimitBytes        *int64   `json:"limit_bytes"`             // max_slot_wal_keep_size; null: unlimited
	SafeWALBytes      *int64   `json:"safe_wal_bytes"`          // that may still be written before the slot can be lost
	GrowthPerSecond   *float64 `json:"growth_bytes_per_second"` // of retained_bytes
	LimitSeconds      *float64 `json:"limit_seconds"`           // until the limit at that rate; null: never
	Warning           string   `json:"warning"`                 // empty: nothing to warn of
}

// ReceivedReport counts what came from PostgreSQL since the process started.
type ReceivedReport struct {
	Transactions uint64 `json:"transactions"`
	Events       uint64 `json:"events"`
	Bytes        uint64 `json:"bytes"`
}

// PublishedReport counts what went out since the process started.
type PublishedReport struct {
	Events  uint64 `json:"events"`
	Retries uint64 `json:"retries"`
}

// BacklogReport is what was received and is not yet published.
type BacklogReport struct {
	Events            uint64  `json:"events"`
	Bytes             uint64  `json:"bytes"`
	PublishLagSeconds float64 `json:"publish_lag_seconds"` // since the oldest unpublished commit
}

// BeforeReport is about the events that were committed before the slot was made and go before the stream.
type BeforeReport struct {
	Left            uint64   `json:"left"`
	Done            uint64   `json:"done"` // by this process
	EventsPerSecond *float64 `json:"events_per_second"`
	SecondsLeft     *float64 `json:"seconds_left"` // at that rate
}

// PublishingReport is what the sink does.
type PublishingReport struct {
	InFlightEvents    uint64            `json:"in_flight_events"` // accepted and not yet acknowledged
	InFlightBytes     uint64            `json:"in_flight_bytes"`
	WindowBytes       int64             `json:"window_bytes"` // limit of in_flight_bytes
	Lanes             int               `json:"lanes"`        // partitions written to
	HaltedLanes       int               `json:"halted_lanes"`
	RetriesLastMinute map[string]uint64 `json:"retries_last_minute"` // by reason; those that were
	ResumedEvents     uint64            `json:"resumed_events"`      // found in Kafka after a restart
	UndecidedChecks   uint64            `json:"undecided_checks"`    // partitions where that could not be told: duplicates
}

// RatesReport is how fast it went over the last seconds.
type RatesReport struct {
	OverSeconds        float64 `json:"over_seconds"`
	ReceivedPerSecond  float64 `json:"received_events_per_second"`
	PublishedPerSecond float64 `json:"published_events_per_second"`
}

// report assembles the page from the process's snapshots.
func (s *sources) report(version string, started, now time.Time) Report {
	stream, sink := s.stream(), s.sink()
	r := Report{
		Status:    s.current(),
		Version:   version,
		StartedAt: started,
		Slot: SlotReport{
			Name: s.slotName, Held: stream.Connected, Sessions: stream.Sessions,
			ReceivedLSN: stream.ReceivedLSN.String(), ConfirmedLSN: stream.ConfirmedLSN.String(),
		},
		Received: ReceivedReport{Transactions: stream.ReceivedTransactions, Events: stream.ReceivedEvents, Bytes: stream.ReceivedBytes},
		Backlog:  BacklogReport{Events: stream.PendingEvents, Bytes: sink.BacklogBytes, PublishLagSeconds: publishLag(stream, now)},
		Publishing: PublishingReport{
			InFlightEvents: sink.BacklogEvents, InFlightBytes: sink.BacklogBytes, WindowBytes: s.windowBytes,
			Lanes: sink.Lanes, HaltedLanes: sink.HaltedLanes, RetriesLastMinute: map[string]uint64{},
			ResumedEvents: sink.Resumed, UndecidedChecks: sink.Undecided,
		},
	}
	if !stream.LastConfirm.IsZero() {
		r.Slot.ConfirmedAt = &stream.LastConfirm
	}
	if slot, ok := s.slot(); ok {
		r.Slot.read(&slot)
		if s.walWarning != nil {
			r.Slot.Warning = s.walWarning(&slot)
		}
	}
	for _, n := range sink.Published {
		r.Published.Events += n
	}
	for _, n := range sink.Retries {
		r.Published.Retries += n
	}
	if s.pace != nil {
		r.keepPace(s.pace())
	}
	if s.deadLetters != nil {
		r.DeadLetters = s.deadLetters()
	}
	return r
}

// read takes what the server says.
func (s *SlotReport) read(r *slotReading) {
	s.LagBytes, s.RetainedBytes = &r.LagBytes, &r.RetainedBytes
	s.Active, s.WALStatus, s.Invalidation = &r.Active, r.WALStatus, r.Invalidation
	if r.HolderPID != 0 {
		s.ActivePID, s.ActiveApplication = &r.HolderPID, r.Application
	}
	s.LimitBytes, s.SafeWALBytes, s.GrowthPerSecond = r.LimitBytes, r.SafeBytes, r.Growth
	if seconds, ok := r.limitSeconds(); ok {
		s.LimitSeconds = &seconds
	}
}

// keepPace takes the rates.
func (r *Report) keepPace(p pace) {
	if p.Over > 0 {
		r.Rates = &RatesReport{OverSeconds: p.Over.Seconds(), ReceivedPerSecond: p.Received, PublishedPerSecond: p.Published}
	}
	if p.Retries != nil {
		r.Publishing.RetriesLastMinute = p.Retries
	}
	if p.BacklogLeft == 0 {
		return
	}
	r.Before = &BeforeReport{Left: p.BacklogLeft, Done: p.BacklogTotal - p.BacklogLeft}
	if p.BacklogRate > 0 {
		left := float64(p.BacklogLeft) / p.BacklogRate
		r.Before.EventsPerSecond, r.Before.SecondsLeft = &p.BacklogRate, &left
	}
}

// publishLag is the age of the oldest commit whose events are not all published, in seconds; 0 when there is
// none. The commit's time is the server's clock, ours may be behind it.
func publishLag(stream cdc.Stats, now time.Time) float64 {
	if stream.OldestPending.IsZero() {
		return 0
	}
	return max(0, now.Sub(stream.OldestPending).Seconds())
}
