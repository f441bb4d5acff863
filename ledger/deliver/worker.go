package deliver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
)

// Config holds the settings of a Worker. Start from DefaultConfig.
type Config struct {
	// Name is how the worker calls itself in the rows it holds. Default: host name and process id.
	Name string
	// Kafka is where events come from. Without topics the worker consumes nothing and only carries on with what is due.
	Kafka KafkaConfig
	// QueryTimeout bounds a query about one recipient. Default 10 s.
	QueryTimeout time.Duration
	// Chunk is how many recipients are registered in one transaction. Default 1000, at most 10000.
	Chunk int
	// Poll is how often each channel looks for due deliveries while nothing is registered here. Default 1 s.
	Poll time.Duration
	// Grace is the age of an event up to which the reason "missing" is taken for a row that is not visible yet. Default
	// 60 s.
	Grace time.Duration
	// StopGrace is how long deliveries that had begun when the worker was told to stop may go on. Default 10 s.
	StopGrace time.Duration
	// SameDatabase says that the application's tables are in the ledger's database: then a channel that writes a row
	// there asks for eligibility in the row's transaction.
	SameDatabase bool
	// Observe, if set, is told of the end of each attempt; Notice of trouble that heals or does not. They are called by
	// several goroutines at once and must not block. A notice's error is safe to log; an observation's may name a
	// recipient.
	Observe func(Observation)
	Notice  func(error)
}

// Observation is the end of an attempt.
type Observation struct {
	Channel string
	Attempt int
	Outcome ledger.Outcome // empty: it could not be recorded
	Err     error          // why; not for a log
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Kafka: DefaultKafkaConfig(), QueryTimeout: 10 * time.Second, Chunk: 1000, Poll: time.Second, Grace: time.Minute,
		StopGrace: 10 * time.Second,
	}
}

// Validate returns nil or all that is wrong with c, joined.
func (c Config) Validate() error {
	errs := []error{c.Kafka.validate()}
	if c.QueryTimeout <= 0 || c.Poll <= 0 || c.Grace < 0 || c.StopGrace < 0 {
		errs = append(errs, errors.New("config QueryTimeout, Poll, Grace or StopGrace: too short"))
	}
	if c.Chunk < 1 || c.Chunk > 10000 {
		errs = append(errs, fmt.Errorf("config Chunk: %d, want 1 to 10000", c.Chunk))
	}
	return errors.Join(errs...)
}

// Worker delivers events by rules. See the package's documentation for how.
type Worker struct {
	cfg    Config
	rules  *Rules
	pool   *pgxpool.Pool // the ledger's
	ledger *ledger.Ledger
	app    *database
	reg    *registrar
	make   *maker
	count  *counters
	pumps  []*pump
}

// New returns a worker. app is the application's database, in which the rules' queries run, and pool the ledger's; they
// must be two pools even for one database, for a query waits with its connection for the ledger. It connects to
// nothing. Errors: what is wrong with cfg.
func New(cfg Config, rules *Rules, app, pool *pgxpool.Pool) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if app == pool {
		return nil, errors.New("the application's pool and the ledger's are one")
	}
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name worker: %w", err)
		}
		cfg.Name = fmt.Sprintf("%.200s-%d", host, os.Getpid())
	}
	lc := ledger.DefaultConfig()
	lc.Worker, lc.Poll, lc.Grace, lc.StopGrace = cfg.Name, cfg.Poll, cfg.Grace, cfg.StopGrace
	l, err := ledger.New(ledger.Pgx(pool), lc)
	if err != nil {
		return nil, err
	}
	lendPool(rules, pool)
	w := &Worker{cfg: cfg, rules: rules, pool: pool, ledger: l, count: newCounters()}
	w.app = &database{pool: app, timeout: cfg.QueryTimeout, same: cfg.SameDatabase}
	w.reg = &registrar{rules: rules, app: w.app, ledger: l, pool: pool, chunk: cfg.Chunk, count: w.count}
	w.make = &maker{rules: rules, app: w.app, ledger: l, pool: pool, grace: cfg.Grace}
	for _, c := range rules.Channels {
		p := newPump(w, c)
		for _, before := range w.pumps { // channels are in order
			if before.channel.Name == c.After {
				before.followers = append(before.followers, p)
			}
		}
		w.pumps = append(w.pumps, p)
	}
	return w, nil
}

// Stats returns a snapshot.
func (w *Worker) Stats() Stats { return w.count.snapshot() }

// Run consumes and delivers until soft ends: then it takes nothing new, gives back what has not begun, leaves the group,
// and returns nil when what had begun has ended, at the latest when hard ends or Config.StopGrace has passed. Any
// number of processes may run with the same rules and group.
//
// Before it begins it tells the ledger of the rules' channels. Errors: of that; and those of the ledger that trying
// again cannot help, such as a missing right.
func (w *Worker) Run(soft, hard context.Context) error {
	if err := w.configure(soft); err != nil {
		if soft.Err() != nil {
			return nil
		}
		return err
	}
	soft, stop := context.WithCancelCause(soft)
	defer stop(nil)
	bounded, stopHard := context.WithCancelCause(context.WithoutCancel(hard))
	defer stopHard(nil)
	defer context.AfterFunc(hard, func() { stopHard(context.Cause(hard)) })()

	var running sync.WaitGroup
	errs := make([]error, len(w.pumps)+1)
	start := func(i int, run func() error) {
		running.Go(func() {
			if errs[i] = run(); errs[i] != nil {
				stop(errs[i])
			}
		})
	}
	for i, p := range w.pumps {
		start(i, func() error { return p.run(soft, bounded) })
	}
	if len(w.cfg.Kafka.Topics) > 0 {
		start(len(w.pumps), func() error { return w.consume(soft) })
	}
	var grace sync.WaitGroup
	grace.Go(func() { stopAfter(soft, bounded, w.cfg.StopGrace, stopHard) })
	<-soft.Done()
	running.Wait()
	stopHard(nil)
	grace.Wait()
	return errors.Join(errs...)
}

// errStopGrace is the cause of the end of effects that could not be waited for any longer.
var errStopGrace = errors.New("deliver: stopped while the effect ran")

// stopAfter ends hard when grace has passed since soft ended.
func stopAfter(soft, hard context.Context, grace time.Duration, stop context.CancelCauseFunc) {
	select {
	case <-soft.Done():
	case <-hard.Done():
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-timer.C:
		stop(errStopGrace)
	case <-hard.Done():
	}
}

// configure tells the ledger of the channels, the first before those that come after it.
func (w *Worker) configure(ctx context.Context) error {
	const query = `SELECT ledger.configure_channel($1::text, mode => $2::text, on_uncertain => $3::text, provider_window => $4::text::interval,
  after_channel => $5::text, max_attempts => $6::text::integer, lease => $7::text::interval, backoff_min => $8::text::interval, backoff_max => $9::text::interval)`
	for _, c := range w.rules.Channels {
		var attempts any
		if c.MaxAttempts > 0 {
			attempts = fmt.Sprint(c.MaxAttempts)
		}
		for failures := 0; ; failures++ {
			var outcome string
			err := w.pool.QueryRow(ctx, query, describe, c.Name, c.mode(), optional(c.OnUncertain), interval(c.ProviderWindow), optional(c.After),
				attempts, interval(c.Lease), interval(c.BackoffMin), interval(c.BackoffMax)).Scan(&outcome)
			if err == nil && outcome == "differs" {
				err = w.compare(ctx, c)
			}
			if err == nil {
				break
			}
			err = fmt.Errorf("configure channel %q: %w", c.Name, err)
			if ctx.Err() != nil || errors.Is(err, errMode) || !ledger.Transient(err) {
				return err
			}
			w.notice(err)
			_ = pause(ctx, backoff(failures+2)) // its end ends the next try
		}
	}
	return nil
}

// errMode ends a worker: no time heals it.
var errMode = errors.New("another mode")

// compare deals with a channel of which the ledger says something else than the rules. What a doubt leads to may have been
// made stricter by who runs the ledger, so that is told and stays; a channel of another mode cannot be used.
func (w *Worker) compare(ctx context.Context, c *ChannelSetting) error {
	var mode, onUncertain string
	err := w.pool.QueryRow(ctx, `SELECT coalesce(c.mode, d.mode), coalesce(c.on_uncertain, d.on_uncertain)
  FROM ledger.channels c, ledger.channels d WHERE c.channel = $1::text AND d.channel = '*'`, describe, c.Name).Scan(&mode, &onUncertain)
	switch {
	case err != nil:
		return err
	case mode != c.mode():
		return fmt.Errorf("%w: its kind needs %s, the ledger has %s: relay ledger channels set %s --mode %s, or another name for it", errMode, c.mode(), mode, c.Name, c.mode())
	}
	w.notice(fmt.Errorf("channel %q: the rules say on_uncertain %s, the ledger has %s, which stays: relay ledger channels set %s --on-uncertain %s changes it",
		c.Name, c.OnUncertain, onUncertain, c.Name, c.OnUncertain))
	return nil
}

func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func interval(d time.Duration) any {
	if d == 0 {
		return nil
	}
	// PostgreSQL 14 reads no number of more than 32 bits.
	return fmt.Sprintf("%d hours %.6f seconds", d/time.Hour, (d % time.Hour).Truncate(time.Microsecond).Seconds())
}

// registered has the channels look for work now.
func (w *Worker) registered() {
	for _, p := range w.pumps {
		p.poke()
	}
}

// notice tells of trouble, without what it may quote of the data.
func (w *Worker) notice(err error) {
	if w.cfg.Notice != nil {
		w.cfg.Notice(safe(err))
	}
}
