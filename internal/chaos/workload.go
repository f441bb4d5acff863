package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Config says what a workload does.
type Config struct {
	// URL is the database, a superuser's: the workload ends sessions of its own. Its server must allow a prepared
	// transaction per writer (max_prepared_transactions).
	URL string
	// Seed fixes what each writer tries.
	Seed uint64
	// Writers is the number of connections that write at the same time.
	Writers int
	// Aggregates is the number of aggregates they contend for; a few get most of the events.
	Aggregates int
	// Pause is the mean time between two transactions of a writer. 0: none.
	Pause time.Duration
	// LargeRows is the size of the large transactions, up to three times as many. 0: there are none.
	LargeRows int
}

// Workload writes to the database, as an application would whose luck is bad.
type Workload struct {
	cfg Config

	// mu guards the field below.
	mu    sync.Mutex
	tally map[string]int
}

// New returns a workload that has not started anything.
func New(cfg Config) *Workload { return &Workload{cfg: cfg, tally: map[string]int{}} }

// Tally returns how many transactions of each kind went as meant. What the others came to, only the truth knows.
func (w *Workload) Tally() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[string]int, len(w.tally))
	for kind, n := range w.tally {
		all[kind] = n
	}
	return all
}

// Run writes until ctx ends; transactions under way are finished. A server that goes away, and whatever follows
// from it, is waited for; any other error is a fault of the workload and returned.
func (w *Workload) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	var once sync.Once
	var failure error
	for i := range w.cfg.Writers {
		running.Go(func() {
			wr := newWriter(w, i)
			defer wr.disconnect(ctx)
			if err := wr.run(ctx); err != nil {
				once.Do(func() { failure = fmt.Errorf("writer %d: %w", i, err) })
				cancel(err)
			}
		})
	}
	running.Wait()
	return failure
}

// writer is one connection that writes one transaction after the other.
type writer struct {
	load  *Workload
	index int
	rng   *rand.Rand
	zipf  *rand.Zipf
	gid   string // prefix of the names of its prepared transactions, unique in the server
	conn  *pgx.Conn
	done  int
}

func newWriter(load *Workload, index int) *writer {
	rng := rand.New(rand.NewPCG(load.cfg.Seed, uint64(index)))
	return &writer{
		load: load, index: index, rng: rng,
		zipf: rand.NewZipf(rng, 1.2, 4, uint64(load.cfg.Aggregates-1)),
		gid:  fmt.Sprintf("%s%s_%d_", gidPrefix, databaseOf(load.cfg.URL), index),
	}
}

// gidPrefix begins the names of the workload's prepared transactions.
const gidPrefix = "chaos_"

func databaseOf(url string) string {
	if cfg, err := pgx.ParseConfig(url); err == nil {
		return cfg.Database
	}
	return ""
}

func (w *writer) run(ctx context.Context) error {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	for ctx.Err() == nil {
		if w.conn == nil || w.conn.IsClosed() {
			if !w.connect(ctx) {
				w.pause(ctx, 20*time.Millisecond)
				continue
			}
		}
		pick := w.rng.IntN(total)
		i := 0
		for ; pick >= kinds[i].weight; i++ {
			pick -= kinds[i].weight
		}
		w.done++
		// A transaction is finished although the run is to end, but a server that hangs is not waited for.
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		err := kinds[i].do(w, work)
		cancel()
		switch {
		case err == nil:
			w.load.mu.Lock()
			w.load.tally[kinds[i].name]++
			w.load.mu.Unlock()
		case !faultOfServer(err):
			return fmt.Errorf("%s: %w", kinds[i].name, err)
		}
		if w.load.cfg.Pause > 0 {
			w.pause(ctx, time.Duration(w.rng.Int64N(int64(2*w.load.cfg.Pause))))
		}
	}
	return nil
}

// connect reports whether the server let us in. Prepared transactions that a lost connection left hold locks, so
// their fate is decided first.
func (w *writer) connect(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	cfg, err := pgx.ParseConfig(w.load.cfg.URL)
	if err != nil {
		return false
	}
	cfg.RuntimeParams["application_name"] = applicationName
	cfg.RuntimeParams["lock_timeout"] = "5s"
	if w.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return false
	}
	verb := "ROLLBACK"
	if w.rng.IntN(2) == 0 {
		verb = "COMMIT"
	}
	return settlePrepared(ctx, w.conn, w.gid, verb) == nil
}

func (w *writer) disconnect(ctx context.Context) {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // everything is committed or gone
}

func (w *writer) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// faultOfServer reports whether an error is what an application sees of a server that is killed, stopped or
// overloaded, rather than of a statement that is wrong.
func faultOfServer(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true // of the connection
	}
	if len(pg.Code) != 5 {
		return false
	}
	switch pg.Code[:2] {
	case "08", "53", "57", "58", "40": // connection, resources, intervention, system, rollback
		return true
	}
	return pg.Code == "55P03" // lock_timeout
}

const applicationName = "chaos writer"

// Quiesce makes the truth final after Run: it waits until every session of the workload is gone, for one that was
// cut off may still be committing, and rolls back what is still prepared.
func Quiesce(ctx context.Context, conn *pgx.Conn) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var sessions int
		if err := conn.QueryRow(ctx, `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = $1`, applicationName).Scan(&sessions); err != nil {
			return fmt.Errorf("count writers: %w", err)
		}
		if sessions == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d writers to go: %w", sessions, context.Cause(ctx))
		}
	}
	return settlePrepared(ctx, conn, gidPrefix, "ROLLBACK")
}

// settlePrepared ends the database's prepared transactions whose names begin with prefix.
func settlePrepared(ctx context.Context, conn *pgx.Conn, prefix, verb string) error {
	rows, err := conn.Query(ctx, `
		SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)`, prefix)
	if err != nil {
		return fmt.Errorf("list prepared transactions: %w", err)
	}
	gids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("list prepared transactions: %w", err)
	}
	for _, gid := range gids {
		if _, err := conn.Exec(ctx, fmt.Sprintf(`%s PREPARED '%s'`, verb, strings.ReplaceAll(gid, "'", "''"))); err != nil {
			return fmt.Errorf("settle prepared transaction: %w", err)
		}
	}
	return nil
}
