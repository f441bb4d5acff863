package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/pgserver"
)

// bench is one invocation: its options, its servers, and where it speaks.
type bench struct {
	command  string
	opt      *options
	out      io.Writer
	progress io.Writer

	dir   *child.TempDir // binaries, logs
	pg    *pgserver.Server
	kafka *kafkaserver.Broker
	relay string // the built binary
	runs  int    // so far; makes names of topics

	began    time.Time
	speaking sync.Mutex // guards progress
}

// say reports progress, with the seconds since the beginning.
func (b *bench) say(format string, args ...any) {
	b.speaking.Lock()
	defer b.speaking.Unlock()
	fmt.Fprintf(b.progress, "%6.1f "+format+"\n", append([]any{time.Since(b.began).Seconds()}, args...)...)
}

// start makes everything ready that a system needs to be measured, at once.
func (b *bench) start(ctx context.Context) error {
	if err := b.workspace(); err != nil {
		return err
	}
	parts := []func(context.Context) error{b.startPostgres, b.startKafka, b.buildRelay}
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, part := range parts {
		all.Go(func() { errs[i] = part(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// startPostgres starts a server that flushes to disk, as the ones that matter do.
func (b *bench) startPostgres(ctx context.Context) error {
	if err := b.workspace(); err != nil {
		return err
	}
	free, err := availableMemory()
	if err != nil {
		return err
	}
	buffers := "1GB"
	if free < 6<<30 {
		buffers = "256MB"
	}
	b.say("starting PostgreSQL, shared_buffers %s", buffers)
	b.pg, err = pgserver.Start(ctx, pgserver.Config{Major: b.opt.major, Fsync: true, Settings: map[string]string{
		"shared_buffers": buffers,
		// No checkpoint but those that the bench asks for between runs.
		"max_wal_size":       "32GB",
		"checkpoint_timeout": "1h",
	}})
	return err
}

// startKafka starts a broker with Kafka's own choices for the JVM, and a heap that is never the limit.
func (b *bench) startKafka(ctx context.Context) error {
	b.say("starting Kafka")
	var err error
	b.kafka, err = kafkaserver.Start(ctx, kafkaserver.Config{
		HeapMB: 1024,
		JVM:    []string{"-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"},
	})
	if err != nil {
		return err
	}
	return b.warmBroker(ctx)
}

func (b *bench) workspace() (err error) {
	if b.dir == nil {
		b.dir, err = child.NewTempDir("relay-bench-")
	}
	return err
}

// buildRelay builds the binary as it is shipped.
func (b *bench) buildRelay(ctx context.Context) error {
	if b.relay != "" {
		return nil
	}
	if err := b.workspace(); err != nil {
		return err
	}
	b.say("building relay")
	path := filepath.Join(b.dir.Path, "relay")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "github.com/outboxrelay/relay/cmd/relay")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build relay: %w\n%s", err, out)
	}
	b.relay = path
	return nil
}

// close ends the servers and removes what the bench made.
func (b *bench) close() error {
	var errs []error
	if b.kafka != nil {
		errs = append(errs, b.kafka.Close())
	}
	if b.pg != nil {
		errs = append(errs, b.pg.Close())
	}
	if b.dir != nil {
		errs = append(errs, b.dir.Remove())
	}
	return errors.Join(errs...)
}

// connect opens a session in a database of the server.
func (b *bench) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, b.pg.DSN(database, ""))
	if err != nil {
		return nil, fmt.Errorf("connect to database %q: %w", database, err)
	}
	return conn, nil
}

// exec runs statements, one after another, in a session of their own.
func (b *bench) exec(ctx context.Context, database string, statements ...string) error {
	conn, err := b.connect(ctx, database)
	if err != nil {
		return err
	}
	defer closeQuietly(conn)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("run %.60q: %w", sql, err)
		}
	}
	return nil
}

// closeQuietly ends a session whose work is done.
func closeQuietly(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server is ours and goes soon
}

// poll calls check every interval until it says yes.
func poll(ctx context.Context, interval time.Duration, check func() (bool, error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if ok, err := check(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
