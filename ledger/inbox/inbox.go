package inbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Config holds the settings of an Inbox. Start from DefaultConfig.
type Config struct {
	// Keys returns the keys that tokens are checked with. It is asked for each request, so a replaced secret is found.
	Keys func() ([]Key, error)
	// Origins are the sites whose pages may ask, such as https://app.example, beside that of the server itself.
	Origins []string
	// MaxStreams bounds the streams of the process, MaxPerRecipient those of one recipient: tabs and devices. Default
	// 5000 and 10.
	MaxStreams, MaxPerRecipient int
	// Heartbeat is the time between two signs of life on a stream that has nothing to say. Default 15 s.
	Heartbeat time.Duration
	// Poll is how often the database is looked at when no signal came, while there are streams. Default 1 s.
	Poll time.Duration
	// WriteTimeout is how long a write to a client may take before the client is dropped. Default 10 s.
	WriteTimeout time.Duration
	// Notice, if set, is told of trouble that heals. It must not block.
	Notice func(error)
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{MaxStreams: 5000, MaxPerRecipient: 10, Heartbeat: 15 * time.Second, Poll: time.Second, WriteTimeout: 10 * time.Second}
}

// Validate returns nil or all that is wrong with c, joined.
func (c Config) Validate() error {
	var errs []error
	if c.Keys == nil {
		errs = append(errs, errors.New("config Keys: nil"))
	}
	if c.MaxStreams < 1 || c.MaxPerRecipient < 1 {
		errs = append(errs, errors.New("config MaxStreams, MaxPerRecipient: want 1 or more"))
	}
	if c.Heartbeat <= 0 || c.Poll <= 0 || c.WriteTimeout <= 0 {
		errs = append(errs, errors.New("config Heartbeat, Poll, WriteTimeout: too short"))
	}
	return errors.Join(errs...)
}

// Connections is how many connections of the pool an Inbox uses at most.
const Connections = maxQueries + 1

// maxQueries is how many queries run at a time.
const maxQueries = 8

// Inbox serves notifications. See the package's documentation.
type Inbox struct {
	cfg   Config
	pool  *pgxpool.Pool
	hub   *hub
	feed  *feed
	count *counters
	slots chan struct{} // one for each query that may run
	ended chan struct{} // closed when streams are to end
}

// New returns an inbox for the ledger's database. It connects to nothing. Errors: what is wrong with cfg.
func New(cfg Config, pool *pgxpool.Pool) (*Inbox, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Inbox{cfg: cfg, pool: pool, count: newCounters(), slots: make(chan struct{}, maxQueries), ended: make(chan struct{})}
	b.hub = newHub(cfg.MaxStreams, cfg.MaxPerRecipient)
	b.feed = &feed{inbox: b, wake: make(chan struct{}, 1)}
	return b, nil
}

// Limits of the listener.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = 60 * time.Second
	closeTimeout  = 3 * time.Second
	maxHeader     = 16 << 10
)

// Run serves ln until ctx ends: then it tells the streams to come back in a moment, to another process or the next one,
// and lets requests finish. It closes ln, owns every goroutine it starts, and is called once. Errors: of ln.
func (b *Inbox) Run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler: b, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
	}
	feeding, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { b.feed.run(feeding) })
	running.Go(func() { b.feed.listen(feeding) })

	served := make(chan error, 1)
	running.Go(func() { served <- srv.Serve(ln) })
	select {
	case err := <-served:
		close(b.ended)
		return fmt.Errorf("serve notifications: %w", err)
	case <-ctx.Done():
	}
	close(b.ended)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := srv.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	if err != nil {
		return fmt.Errorf("close notifications: %w", err)
	}
	return nil
}

// Stats returns a snapshot.
func (b *Inbox) Stats() Stats {
	s := b.count.snapshot()
	s.Streams = b.hub.size()
	return s
}

func (b *Inbox) notice(err error) {
	if b.cfg.Notice != nil {
		b.cfg.Notice(err)
	}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
