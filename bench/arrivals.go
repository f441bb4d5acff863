package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// arrivals keeps the times of each event, by its row.
type arrivals struct {
	warmup int // events that do not count
	sent   []time.Time
	commit []time.Duration
	late   atomic.Int64

	mu    sync.Mutex // guards the fields below
	came  []time.Time
	twice int
}

func newArrivals(o *options) *arrivals {
	warmup := int(o.warmup.Seconds() * float64(o.rate))
	n := warmup + int(o.measure.Seconds()*float64(o.rate))
	return &arrivals{warmup: warmup, sent: make([]time.Time, n+1), commit: make([]time.Duration, n+1), came: make([]time.Time, n+1)}
}

// read notes arrivals until every event has come.
func (a *arrivals) read(ctx context.Context, c *consumer) error {
	for left := len(a.came) - 1; left > 0; {
		err := c.poll(ctx, func(r *kgo.Record) {
			now := time.Now()
			n, ok := rowOfID(recordID(r))
			if !ok || n >= len(a.came) {
				return
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if !a.came[n].IsZero() {
				a.twice++
				return
			}
			a.came[n] = now
			left--
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// result sums up. Everything must have been written; with published, everything should have come.
func (a *arrivals) result(published bool) latencyRun {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := latencyRun{late: int(a.late.Load()), duplicates: a.twice}
	for n := 1; n < len(a.sent); n++ {
		if published && a.came[n].IsZero() {
			r.missing++
		}
		if n <= a.warmup {
			continue
		}
		r.commits = append(r.commits, a.commit[n])
		if published && !a.came[n].IsZero() {
			r.arrivals = append(r.arrivals, a.came[n].Sub(a.sent[n]))
		}
	}
	slices.Sort(r.commits)
	slices.Sort(r.arrivals)
	return r
}

// load writes the events on schedule, each in a transaction of its own, and calls warm when those that count begin.
// A commit that takes long delays no other, unless all connections are taken.
func (b *bench) load(ctx context.Context, d *dataset, a *arrivals, warm func() error) error {
	const connections = 8
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int, connections)
	var writers sync.WaitGroup
	interval := time.Second / time.Duration(b.opt.rate)
	var start time.Time
	started := make(chan struct{})
	for range connections {
		conn, err := b.connect(ctx, d.name)
		if err != nil {
			return err
		}
		defer closeQuietly(conn)
		writers.Go(func() {
			<-started
			for n := range due {
				now := time.Now()
				if now.Sub(start)-time.Duration(n)*interval > 20*time.Millisecond && n > a.warmup {
					a.late.Add(1)
				}
				a.sent[n] = now
				_, err := conn.Exec(ctx, `insert into outbox.events (id, event_key, aggregate_type, aggregate_id, event_type, payload)
					values ($1::text::uuid, $2, 'order', $3, 'OrderPlaced', $4::text::json)`,
					rowID(n), fmt.Sprint("order-placed:", n), string(appendKey(nil, n, d.keys)), string(appendPayload(nil, n, d.payload)))
				if err != nil {
					cancel(fmt.Errorf("write event: %w", err))
					return
				}
				a.commit[n] = time.Since(now)
			}
		})
	}
	start = time.Now()
	close(started)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	err := func() error {
		defer close(due)
		for n := 1; n < len(a.sent); n++ {
			if n == a.warmup+1 {
				if err := warm(); err != nil {
					return err
				}
			}
			select { // a tick that was missed is made up for: the schedule is kept on the average
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			for late := time.Since(start) - time.Duration(n)*interval; late > interval && n < len(a.sent)-1 && n != a.warmup; late -= interval {
				select {
				case due <- n:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				n++
			}
			select {
			case due <- n:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	}()
	writers.Wait()
	return errors.Join(err, context.Cause(ctx))
}
