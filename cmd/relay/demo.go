//go:build !nodemo

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/outboxrelay/relay/internal/demo"
)

// demoDrain is how long a demo that was told to stop waits for what is in flight.
const demoDrain = 20 * time.Second

// demoView is how the demo is shown.
type demoView interface {
	listener() demo.Listener
	// stopping says that a stop was asked for. It may be called at any time.
	stopping()
	// log returns a writer for the log, which goes to the same terminal.
	log(io.Writer) io.Writer
	summary(demo.Summary)
}

// demoAction returns what relay demo does.
func demoAction() func(context.Context, *process, *demoOptions) error { return runDemo }

// runDemo plays the demo with the relay that relay run runs.
func runDemo(ctx context.Context, p *process, o *demoOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A terminal that is closed, or a pipe whose reader leaves, must not end the process before it has cleaned up.
	ctx, ignoreHangup := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer ignoreHangup()
	broken := make(chan os.Signal, 1) // nobody reads it: the write that failed returns its error
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	soft, hard, release := notifyStops(ctx, demoDrain)
	defer release()

	out := &stoppingWriter{w: p.stdout, stop: cancel}
	var view demoView = newDemoText(out, isTerminal(p.stdout) && !dumbTerminal(p.environ))
	if o.json {
		view = &demoJSON{w: out}
	}
	defer context.AfterFunc(soft, view.stopping)()

	logging := LogConfig{Level: slog.LevelError, Format: "json"} // one broker, one replica: of that nobody needs a warning
	if isTerminal(p.stderr) {
		logging.Format = "text"
	}
	log := newLogger(view.log(p.stderr), logging)
	summary, err := demo.Run(soft, hard, demo.Config{
		Events: o.events, Rate: o.rate, PostgresMajor: o.major,
		Listener: view.listener(),
		Relay: func(soft, hard context.Context, t demo.Target) error {
			return relayUntil(soft, hard, p, demoConfig(t), log)
		},
	})
	if summary.PostgresVersion != "" { // something was checked
		view.summary(summary)
	}
	switch wrong := summary.Err(); {
	case err == demo.ErrStopped && !o.once:
		return nil // a clean end, if an early one
	case err != nil:
		return err
	case wrong != nil:
		return wrong
	case out.err != nil:
		return out.err
	case o.once && summary.Committed != o.events:
		return fmt.Errorf("run demo: stopped after %d of %d events", summary.Committed, o.events)
	}
	return nil
}

// demoConfig is what a user of the demo's servers would configure.
func demoConfig(t demo.Target) *Config {
	c := defaultConfig()
	c.Postgres.URL = NewSecret(t.PostgresURL)
	c.Postgres.Ensure = true
	c.Kafka.Brokers = t.Brokers
	c.Route.Topic = t.Topic
	c.Admin.Listen = t.AdminAddress
	return c
}

// stoppingWriter ends the demo when what it shows cannot be written. Calls follow one another.
type stoppingWriter struct {
	w    io.Writer
	stop context.CancelCauseFunc
	err  error // the first
}

func (s *stoppingWriter) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(b)
	if err != nil {
		s.err = fmt.Errorf("show demo: %w", err)
		s.stop(s.err)
	}
	return n, err
}
