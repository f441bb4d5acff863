package main

import (
	"context"
	"fmt"
	"time"
)

// memoryResult is the most memory that one system had in one scenario.
type memoryResult struct {
	System   string `json:"system"`
	Scenario string `json:"scenario"`
	Rows     int    `json:"rows"`
	PeakMB   spread `json:"peak_rss_mb"`
	Seconds  spread `json:"seconds"`
	Verdict  string `json:"verdict"`
}

// memory measures peaks: with small transactions, with all rows in one, and while the broker does not answer.
func memory(ctx context.Context, b *bench) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	picked, absent, err := b.pick(ctx, b.opt.systems)
	if err != nil {
		return err
	}
	rep, err := b.newReport(ctx)
	if err != nil {
		return err
	}
	rep.Absent = absent
	scenarios := []struct {
		name    string
		k       int
		disturb func(context.Context) error
	}{
		{"drain, 10 rows a transaction", 10, nil},
		{"drain, one transaction", b.opt.rows, nil},
		{fmt.Sprintf("drain, broker frozen for %v", b.opt.outage), 10, b.freezeBroker},
	}
	for i, scene := range scenarios {
		d := &dataset{name: fmt.Sprintf("bench_memory_%d", i+1), rows: b.opt.rows, k: scene.k, keys: b.opt.keys, payload: b.opt.payload, partitions: b.opt.partitions}
		if err := b.prepare(ctx, d); err != nil {
			return err
		}
		for j := range picked {
			if !picked[j].publishes {
				continue
			}
			var runs []drainRun
			for range b.opt.repeats {
				r, err := b.drainOnce(ctx, d, &picked[j], scene.disturb)
				if err != nil {
					return err
				}
				runs = append(runs, r)
				b.say("  %-12s %s: %.0f MB in %.1f s", picked[j].name, scene.name, r.peakMB, r.seconds)
			}
			all := newDrainResult(picked[j].name, d, runs)
			rep.Memory = append(rep.Memory, memoryResult{
				System: picked[j].name, Scenario: scene.name, Rows: d.rows, PeakMB: all.PeakMB, Seconds: all.Seconds, Verdict: all.Verdict,
			})
		}
		if err := b.remove(ctx, d); err != nil {
			return err
		}
	}
	return b.publish(rep)
}

// freezeBroker stops the broker's process for a while: its sockets stay open and nobody answers.
func (b *bench) freezeBroker(ctx context.Context) error {
	if err := b.kafka.Pause(); err != nil {
		return err
	}
	wake := time.NewTimer(b.opt.outage)
	defer wake.Stop()
	select {
	case <-wake.C:
	case <-ctx.Done():
	}
	return b.kafka.Continue()
}
