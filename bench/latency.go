package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// latencyResult is what the runs of one system at one rate gave. Times are in milliseconds.
type latencyResult struct {
	System       string `json:"system"`
	Rate         int    `json:"rate"`
	Events       int    `json:"events"` // measured ones of one run
	Runs         int    `json:"runs"`
	P50          spread `json:"p50_ms"` // from just before the INSERT is sent to the consumer
	P95          spread `json:"p95_ms"`
	P99          spread `json:"p99_ms"`
	Max          spread `json:"max_ms"`
	CommitP50    spread `json:"commit_p50_ms"` // of the INSERT, which commits
	CommitP99    spread `json:"commit_p99_ms"`
	Late         spread `json:"late_commits"` // sent over 20 ms behind schedule: the machine was busy
	SystemCPU    spread `json:"system_cpu_seconds"`
	WalsenderCPU spread `json:"walsender_cpu_seconds"`
	BrokerCPU    spread `json:"broker_cpu_seconds"`
	Others       spread `json:"others_cores"`
	PeakMB       spread `json:"peak_rss_mb"`
	Missing      int    `json:"missing"`
	Duplicates   int    `json:"duplicates"`
}

// latencyRun is one of them.
type latencyRun struct {
	arrivals, commits   []time.Duration // sorted
	late                int
	missing, duplicates int
	cpu                 cpuSeconds
	peakMB              float64
}

// noSystem is the name under which commits are timed with nobody reading.
const noSystem = "none"

// latency measures the time from commit to consumer under a steady load.
func latency(ctx context.Context, b *bench) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Clone(b.opt.systems), func(s string) bool { return s == noSystem })
	picked, absent, err := b.pick(ctx, names)
	if err != nil {
		return err
	}
	if len(names) < len(b.opt.systems) {
		picked = append([]system{{name: noSystem}}, picked...)
	}
	rep, err := b.newReport(ctx)
	if err != nil {
		return err
	}
	rep.Absent = absent
	runs := make([][]latencyRun, len(picked))
	for i := range b.opt.repeats {
		for j := range picked {
			at := (i + j) % len(picked)
			s := &picked[at]
			if s.name != noSystem && !s.publishes {
				return fmt.Errorf("%w: %s publishes nothing, so it has no latency", errUsage, s.name)
			}
			r, err := b.latencyOnce(ctx, s)
			if err != nil {
				return err
			}
			runs[at] = append(runs[at], r)
			b.say("  %-12s p50 %.2f ms, p99 %.2f ms, commit p50 %.2f ms, system %.1f s CPU, others %.2f cores, load %s", s.name, milliseconds(quantile(r.arrivals, 0.5)),
				milliseconds(quantile(r.arrivals, 0.99)), milliseconds(quantile(r.commits, 0.5)), r.cpu.System, r.cpu.Others, loadAverage())
		}
	}
	for i := range picked {
		rep.Latency = append(rep.Latency, newLatencyResult(picked[i].name, b.opt.rate, runs[i]))
	}
	return b.publish(rep)
}

func newLatencyResult(name string, rate int, runs []latencyRun) latencyResult {
	at := func(of func(latencyRun) []time.Duration, q float64) spread {
		return collect(runs, func(r latencyRun) float64 { return milliseconds(quantile(of(r), q)) })
	}
	arrivals := func(r latencyRun) []time.Duration { return r.arrivals }
	commits := func(r latencyRun) []time.Duration { return r.commits }
	l := latencyResult{
		System: name, Rate: rate, Runs: len(runs),
		P50: at(arrivals, 0.5), P95: at(arrivals, 0.95), P99: at(arrivals, 0.99), Max: at(arrivals, 1),
		CommitP50: at(commits, 0.5), CommitP99: at(commits, 0.99),
		Late:         collect(runs, func(r latencyRun) float64 { return float64(r.late) }),
		SystemCPU:    collect(runs, func(r latencyRun) float64 { return r.cpu.System }),
		WalsenderCPU: collect(runs, func(r latencyRun) float64 { return r.cpu.Walsender }),
		BrokerCPU:    collect(runs, func(r latencyRun) float64 { return r.cpu.Broker }),
		Others:       collect(runs, func(r latencyRun) float64 { return r.cpu.Others }),
		PeakMB:       collect(runs, func(r latencyRun) float64 { return r.peakMB }),
	}
	for _, r := range runs {
		l.Events = len(r.commits)
		l.Missing += r.missing
		l.Duplicates += r.duplicates
	}
	return l
}

// latencyOnce is one run, in a database of its own.
func (b *bench) latencyOnce(ctx context.Context, s *system) (_ latencyRun, err error) {
	b.runs++
	d := &dataset{name: fmt.Sprintf("bench_latency_%d", b.runs), k: 1, keys: b.opt.keys, payload: b.opt.payload, partitions: b.opt.partitions}
	if err := b.prepare(ctx, d); err != nil {
		return latencyRun{}, err
	}
	defer func() { err = errors.Join(err, b.remove(ctx, d)) }()
	a := newArrivals(b.opt)
	if s.name == noSystem {
		err := b.load(ctx, d, a, func() error { return nil })
		return a.result(false), err
	}
	if err := b.copySlot(ctx, d); err != nil {
		return latencyRun{}, err
	}
	t := &target{database: d.name, dsn: b.pg.DSN(d.name, ""), lowDelay: true}
	if t.topic, err = b.newTopic(ctx, d.partitions); err != nil {
		return latencyRun{}, err
	}
	c, err := b.newConsumer(t.topic, time.Second)
	if err != nil {
		return latencyRun{}, err
	}
	defer c.client.Close()
	cmd, err := s.command(b, t)
	if err != nil {
		return latencyRun{}, err
	}
	p, err := launch(s.name, cmd)
	if err != nil {
		return latencyRun{}, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	gctx, cancel := p.guard(ctx, b.opt.timeout)
	defer cancel()
	m := meter{system: p.PID(), broker: b.kafka.PID()}
	if m.walsender, err = b.awaitWalsender(gctx); err != nil {
		return latencyRun{}, err
	}
	read := make(chan error, 1)
	go func() { read <- a.read(gctx, c) }()
	var before usage
	err = b.load(gctx, d, a, func() (err error) { before, err = m.read(); return err })
	if err != nil {
		return latencyRun{}, err
	}
	after, err := m.read()
	if err != nil {
		return latencyRun{}, err
	}
	// What is on its way gets a moment; what has not come by then is missing.
	late, stop := context.WithTimeout(gctx, 5*time.Second)
	defer stop()
	select {
	case err := <-read:
		if err != nil {
			return latencyRun{}, err
		}
	case <-late.Done():
		cancel()
		<-read
	}
	peak, err := peakRSSOf(p.PID())
	if err != nil {
		return latencyRun{}, err
	}
	r := a.result(true)
	r.cpu, r.peakMB = after.since(before), float64(peak)/(1<<20)
	return r, nil
}
