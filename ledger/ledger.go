package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Config holds the settings of a Ledger. What is decided for each channel (lease, attempts, policy for uncertain
// rows, retention) is in table ledger.channels, for every worker in every language must see the same.
type Config struct {
	// Worker names this process in the rows it holds, for operators. Default: host name and process id.
	Worker string
	// Margin is how long before the end of its lease a holder stops: it must cover what passes between the
	// database's clock and the effect. Default 2 s; at most a quarter of the lease is taken.
	Margin time.Duration
	// MinLeft is how much of the lease must be left for an effect to begin. Default 5 s; at most half of the lease
	// is asked for.
	MinLeft time.Duration
	// Grace is the age of an event up to which a missing business row is taken for one that is not visible yet, see
	// ErrMissing. Default 60 s.
	Grace time.Duration
	// FinishTimeout bounds how long Deliver and Run try to record what happened while the database does not answer.
	// Default 15 s.
	FinishTimeout time.Duration
	// Workers is how many reservations Run works on at a time. Default 8. The pool needs two connections more than
	// that to let none wait for another.
	Workers int
	// Poll is how often Run looks for due rows when there were none. Default 1 s.
	Poll time.Duration
	// StopGrace is how long Run lets effects go on that had begun when it was told to stop. Default 10 s.
	StopGrace time.Duration
	// Replay is how long after an event its source may repeat it: the outbox's replay horizon plus the topic's
	// retention. Check, and Run before it starts, refuse channels with a shorter horizon. 0: not checked.
	Replay time.Duration
	// Observe, if set, is called at the end of each attempt of Deliver and Run and for each of their failures to
	// reach the database. It may be called by several goroutines at once and must not block.
	Observe func(Observation)
}

// Observation is what happened to one reservation, or to the loop that looks for them.
type Observation struct {
	Reservation Reservation   // zero: the loop's own failure
	Outcome     Outcome       // empty: none was recorded
	Err         error         // why; nil after a delivery
	Held        time.Duration // from reserving to the end
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Margin: 2 * time.Second, MinLeft: 5 * time.Second, Grace: time.Minute, FinishTimeout: 15 * time.Second,
		Workers: 8, Poll: time.Second, StopGrace: 10 * time.Second,
	}
}

// Validate returns nil or all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	for _, d := range []struct {
		name  string
		value time.Duration
		zero  bool
	}{
		{"Margin", c.Margin, true}, {"MinLeft", c.MinLeft, true}, {"Grace", c.Grace, true}, {"StopGrace", c.StopGrace, true},
		{"Replay", c.Replay, true}, {"FinishTimeout", c.FinishTimeout, false}, {"Poll", c.Poll, false},
	} {
		if d.value < 0 || d.value == 0 && !d.zero {
			errs = append(errs, fmt.Errorf("config %s: %v is too short", d.name, d.value))
		}
	}
	if c.Workers < 1 {
		errs = append(errs, fmt.Errorf("config Workers: %d, want 1 or more", c.Workers))
	}
	if err := checkText("config Worker", c.Worker, 0, maxWorker); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// maxWorker is the limit of a worker's name, in characters.
const maxWorker = 255

// Ledger makes deliveries through the functions of schema ledger. It is safe for concurrent use. Methods that take
// a DBTX run on it, in the caller's transaction if it is one; nil stands for the ledger's own pool, with a
// transaction to itself that is repeated after a serialization failure or a deadlock.
type Ledger struct {
	db       DBTX
	cfg      Config
	explicit atomic.Bool // the pool's sessions default to an isolation that the functions refuse
	counters counters
}

// New returns a ledger on a pool: Pgx of a *pgxpool.Pool or SQL of a *sql.DB. It connects to nothing and starts
// nothing. Errors: ErrNotPool; all mistakes in cfg, joined.
func New(db DBTX, cfg Config) (*Ledger, error) {
	if db == nil || db.kind() != pool {
		return nil, ErrNotPool
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Worker == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name worker: %w", err)
		}
		cfg.Worker = fmt.Sprintf("%.200s-%d", host, os.Getpid())
	}
	return &Ledger{db: db, cfg: cfg}, nil
}

// observe reports the end of an attempt.
func (l *Ledger) observe(o Observation) {
	if l.cfg.Observe != nil {
		l.cfg.Observe(o)
	}
}

// Check refuses channels that forget sooner than their source can repeat: with a horizon shorter than Config.Replay, or
// without one while their rows are purged, a late repetition would be a second delivery. (That retention is not
// shorter than the horizon, the table itself sees to.) Errors: ErrHorizon.
func (l *Ledger) Check(ctx context.Context) error {
	type channel struct {
		name    string
		horizon float64 // seconds
	}
	const query = `SELECT c.channel, extract(epoch FROM coalesce(c.horizon, d.horizon))::float8
FROM ledger.channels c, ledger.channels d
WHERE d.channel = '*' AND coalesce(c.retention, d.retention) > '0' ORDER BY c.channel`
	var channels []channel
	err := l.call(ctx, nil, func(db DBTX) (err error) {
		channels, err = collect(ctx, db, func(row Row) (c channel, err error) {
			return c, row.Scan(&c.name, &c.horizon)
		}, query)
		return err
	})
	if err != nil {
		return fmt.Errorf("read channels: %w", err)
	}
	var errs []error
	for _, c := range channels {
		if c.horizon < l.cfg.Replay.Seconds() {
			errs = append(errs, fmt.Errorf("channel %q: %w: %.0f s, and its source may repeat for %.0f s",
				c.name, ErrHorizon, c.horizon, l.cfg.Replay.Seconds()))
		}
	}
	return errors.Join(errs...)
}
