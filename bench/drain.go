package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// drainRun is one system emptying one slot.
type drainRun struct {
	seconds float64 // from the start of the process until every row has been seen
	first   float64 // until the first row was; 0: nobody looked
	cpu     cpuSeconds
	peakMB  float64
	verdict *verdict // nil: there is no topic to judge
}

// drain measures how fast rows that wait in a slot come out.
func drain(ctx context.Context, b *bench) error {
	sets, err := b.datasets()
	if err != nil {
		return err
	}
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
	for _, set := range sets {
		results, err := b.drainSet(ctx, set.dataset, picked)
		if err != nil {
			return err
		}
		for i := range results {
			results[i].X = set.x
		}
		rep.Drain = append(rep.Drain, results...)
	}
	rep.summarise()
	return b.publish(rep)
}

// drainSet lets every system drain one data set, taking turns.
func (b *bench) drainSet(ctx context.Context, d *dataset, picked []system) ([]drainResult, error) {
	if err := b.prepare(ctx, d); err != nil {
		return nil, err
	}
	runs := make([][]drainRun, len(picked))
	for i := range b.opt.repeats {
		for j := range picked {
			at := (i + j) % len(picked) // nobody is always the first
			r, err := b.drainOnce(ctx, d, &picked[at], nil)
			if err != nil {
				return nil, err
			}
			runs[at] = append(runs[at], r)
			b.say("  %-14s k=%-5d %8.0f rows/s, system %.1f s CPU, %.0f MB, others %.2f cores, load %s", picked[at].name, d.k,
				float64(d.rows)/r.seconds, r.cpu.System, r.peakMB, r.cpu.Others, loadAverage())
		}
	}
	var results []drainResult
	for i := range picked {
		results = append(results, newDrainResult(picked[i].name, d, runs[i]))
	}
	for i := range results {
		for j := range picked {
			results[i].compare(picked[j].name, runs[i], runs[j])
		}
	}
	return results, b.remove(ctx, d)
}

// drainOnce is one run. disturb, if not nil, is called once the slot is held.
func (b *bench) drainOnce(ctx context.Context, d *dataset, s *system, disturb func(context.Context) error) (_ drainRun, err error) {
	if err := b.copySlot(ctx, d); err != nil {
		return drainRun{}, err
	}
	t := &target{database: d.name, dsn: b.pg.DSN(d.name, ""), rows: d.rows, profile: b.opt.profile != "" && s.name == "relay"}
	var c *consumer
	if s.publishes {
		if t.topic, err = b.newTopic(ctx, d.partitions); err != nil {
			return drainRun{}, err
		}
		if c, err = b.newConsumer(t.topic, 50*time.Millisecond); err != nil {
			return drainRun{}, err
		}
		defer c.client.Close()
	}
	cmd, err := s.command(b, t)
	if err != nil {
		return drainRun{}, err
	}
	m := meter{broker: b.kafka.PID()}
	before, err := m.read()
	if err != nil {
		return drainRun{}, err
	}
	start := time.Now()
	p, err := launch(s.name, cmd)
	if err != nil {
		return drainRun{}, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	gctx, cancel := p.guard(ctx, b.opt.timeout)
	defer cancel()

	seen := make(chan result[sight], 1)
	go func() { // ends with gctx
		at, err := awaitDrained(gctx, p, c, d.rows)
		seen <- result[sight]{at, err}
	}()
	m.system = p.PID()
	if m.walsender, err = b.awaitWalsender(gctx); err != nil {
		return drainRun{}, err
	}
	if t.profile {
		b.saveProfile(gctx, t.admin, d)
	}
	if disturb != nil {
		if err := disturb(gctx); err != nil {
			return drainRun{}, err
		}
	}
	at := <-seen
	if at.err != nil {
		return drainRun{}, fmt.Errorf("drain by %s: %w", s.name, at.err)
	}
	after, err := m.read()
	if err != nil {
		return drainRun{}, err
	}
	peak, err := peakRSSOf(p.PID())
	if err != nil {
		return drainRun{}, err
	}
	if t.profile {
		b.saveMetrics(gctx, t.admin, d)
	}
	r := drainRun{seconds: at.value.last.Sub(start).Seconds(), cpu: after.since(before), peakMB: float64(peak) / (1 << 20)}
	if c == nil {
		return r, nil
	}
	r.first = at.value.first.Sub(start).Seconds()
	v, err := b.verify(gctx, t.topic, d)
	if err != nil {
		return r, err
	}
	r.verdict = &v
	if !v.exact() {
		b.say("  %s: %s", s.name, v)
	}
	return r, b.deleteTopic(ctx, t.topic)
}

type result[T any] struct {
	value T
	err   error
}

// awaitDrained waits until the consumer has seen every row, or, without one, until the process says that it has.
func awaitDrained(ctx context.Context, p *process, c *consumer, rows int) (sight, error) {
	if c != nil {
		return c.awaitRows(ctx, rows)
	}
	// The pipe has no context of its own.
	stop := context.AfterFunc(ctx, func() { _ = p.ready.SetReadDeadline(time.Now()) })
	defer stop()
	_, err := bufio.NewReader(p.ready).ReadString('\n')
	now := time.Now()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if p.WaitFor(time.Second); !p.Running() {
			err = fmt.Errorf("%s ended: %v\n%s", p.name, p.Err(), p.tail())
		}
		return sight{}, err
	}
	return sight{last: now}, nil
}

// awaitWalsender returns the process id of the walsender once the run's slot is held. It asks often enough to learn
// of it in the shortest run, and over one connection, so as not to disturb.
func (b *bench) awaitWalsender(ctx context.Context) (pid int, err error) {
	conn, err := b.connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer closeQuietly(conn)
	err = poll(ctx, 20*time.Millisecond, func() (bool, error) {
		err := conn.QueryRow(ctx, "select coalesce(max(active_pid), 0) from pg_replication_slots where slot_name = $1", runSlot).Scan(&pid)
		if err != nil {
			return false, fmt.Errorf("find walsender: %w", err)
		}
		return pid != 0, nil
	})
	return pid, err
}

// writeFile leaves a file where the command line asked for one.
func writeFile(path string, data []byte) error {
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	return nil
}
