package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// contender is one way to write rows, k in each transaction.
type contender struct {
	name string
	// table is what it writes to; it is emptied before each run.
	table string
	// before runs once, untimed: what the timed part must find there already.
	before bool
	do     func(ctx context.Context, conn *pgx.Conn, first, k int) error
}

// rateResult is what the runs of one contender gave.
type rateResult struct {
	System     string  `json:"system"`
	K          int     `json:"k"`
	Clients    int     `json:"clients"`
	Rows       int     `json:"rows"`
	Runs       int     `json:"runs"`
	RowsPerSec spread  `json:"rows_per_second"`
	P50        spread  `json:"transaction_p50_ms"`
	P99        spread  `json:"transaction_p99_ms"`
	ToBare     float64 `json:"to_bare"`   // rows a second over the bare statement's, median of the repeats' ratios
	DeadRows   int64   `json:"dead_rows"` // versions that the last run's timed part left behind
}

type rateRun struct {
	rowsPerSec float64
	times      []time.Duration // of transactions, sorted
	dead       int64
}

// compareRates lets the contenders take turns, for each k.
func (b *bench) compareRates(ctx context.Context, database string, contenders []contender) ([]rateResult, error) {
	var picked []contender
	for _, name := range b.opt.systems {
		i := slices.IndexFunc(contenders, func(c contender) bool { return c.name == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: unknown system %q", errUsage, name)
		}
		picked = append(picked, contenders[i])
	}
	var all []rateResult
	for _, k := range b.opt.k {
		runs := make([][]rateRun, len(picked))
		for i := range b.opt.repeats {
			for j := range picked {
				at := (i + j) % len(picked)
				r, err := b.rateOnce(ctx, database, &picked[at], k)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", picked[at].name, err)
				}
				runs[at] = append(runs[at], r)
				b.say("  %-10s k=%-4d %8.0f rows/s, load %s", picked[at].name, k, r.rowsPerSec, loadAverage())
			}
		}
		bare := slices.IndexFunc(picked, func(c contender) bool { return c.name == "bare" })
		for i := range picked {
			r := rateResult{
				System: picked[i].name, K: k, Clients: b.opt.clients, Rows: b.opt.rows, Runs: len(runs[i]),
				RowsPerSec: collect(runs[i], func(r rateRun) float64 { return r.rowsPerSec }),
				P50:        collect(runs[i], func(r rateRun) float64 { return milliseconds(quantile(r.times, 0.5)) }),
				P99:        collect(runs[i], func(r rateRun) float64 { return milliseconds(quantile(r.times, 0.99)) }),
				DeadRows:   runs[i][len(runs[i])-1].dead,
			}
			if bare >= 0 {
				var ratios []float64
				for j := range runs[i] {
					ratios = append(ratios, runs[i][j].rowsPerSec/runs[bare][j].rowsPerSec)
				}
				r.ToBare = spreadOf(ratios).Median
			}
			all = append(all, r)
		}
	}
	return all, nil
}

// rateOnce is one run: several clients share the rows out among themselves.
func (b *bench) rateOnce(ctx context.Context, database string, c *contender, k int) (rateRun, error) {
	// One row a transaction is bound by the disk: fewer do.
	rows := max(b.opt.rows, 20*k*b.opt.clients)
	if err := b.exec(ctx, database, "truncate "+c.table, "vacuum "+c.table, "checkpoint"); err != nil {
		return rateRun{}, err
	}
	if c.before {
		if _, _, err := b.clients(ctx, database, c, rows, k); err != nil {
			return rateRun{}, err
		}
	}
	before, err := b.deadRows(ctx, database, c.table)
	if err != nil {
		return rateRun{}, err
	}
	elapsed, times, err := b.clients(ctx, database, c, rows, k)
	if err != nil {
		return rateRun{}, err
	}
	after, err := b.deadRows(ctx, database, c.table)
	return rateRun{rowsPerSec: float64(rows/k*k) / elapsed.Seconds(), times: times, dead: after - before}, err
}

// clients writes the rows and returns how long it took, and how long each transaction did.
func (b *bench) clients(ctx context.Context, database string, c *contender, rows, k int) (time.Duration, []time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var mu sync.Mutex // guards all
	var all []time.Duration
	var group sync.WaitGroup
	begin := make(chan struct{})
	for range b.opt.clients {
		conn, err := b.connect(ctx, database)
		if err != nil {
			return 0, nil, err
		}
		defer closeQuietly(conn)
		group.Go(func() {
			<-begin
			var times []time.Duration
			for {
				first := int(next.Add(int64(k))) - k + 1
				if first+k-1 > rows {
					break
				}
				start := time.Now()
				if err := c.do(ctx, conn, first, k); err != nil {
					cancel(err)
					return
				}
				times = append(times, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, times...)
		})
	}
	start := time.Now()
	close(begin)
	group.Wait()
	elapsed := time.Since(start)
	slices.Sort(all)
	return elapsed, all, context.Cause(ctx)
}

// deadRows asks how many row versions of a table nobody needs. Sessions report what they did when they end.
func (b *bench) deadRows(ctx context.Context, database, table string) (int64, error) {
	conn, err := b.connect(ctx, database)
	if err != nil {
		return 0, err
	}
	defer closeQuietly(conn)
	err = poll(ctx, 10*time.Millisecond, func() (bool, error) {
		var others int
		err := conn.QueryRow(ctx, "select count(*) from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()").Scan(&others)
		return others == 0, err
	})
	var dead int64
	if err == nil {
		err = conn.QueryRow(ctx, "select n_dead_tup from pg_stat_all_tables where relid = $1::text::regclass", table).Scan(&dead)
	}
	if err != nil {
		return 0, fmt.Errorf("count dead rows of %q: %w", table, err)
	}
	return dead, nil
}

// expect is an error unless n rows were touched.
func expect(what string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s: %d of %d rows", what, got, want)
	}
	return nil
}

var errOutcome = errors.New("bench: unexpected outcome")
