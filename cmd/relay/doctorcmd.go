package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/state"
)

// doctorTimeout bounds each request that doctor makes to a broker, and its visit to a webhook's receiver, unless less is
// configured.
const doctorTimeout = 5 * time.Second

func (p *process) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything that a relay needs, and change nothing",
		Long: `Check everything that a relay needs: PostgreSQL and its settings, rights, tables, publication, slot, what is in
the outbox, Kafka and its topics, and this machine. It changes nothing, needs no running relay and does not disturb one.
Each finding comes with what to do about it. Run it with the relay's own configuration and role.

The exit code is 1 when something failed; warnings alone leave it 0, unless --strict is given. A configuration that
is wrong in itself is exit code 2, as for relay run.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	strict := cmd.Flags().Bool("strict", false, "exit code 1 for warnings too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.check(); err != nil {
			return err
		}
		cfg, err := p.doctorConfig(l.config)
		if err != nil {
			return err
		}
		r := doctor.Examine(cmd.Context(), cfg)
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(p.stdout, r)
		} else {
			err = r.Print(p.stdout, isTerminal(p.stdout) && !noColour(p.environ))
		}
		switch {
		case err != nil:
			return fmt.Errorf("print report: %w", err)
		case r.Status == doctor.Fail:
			return fmt.Errorf("%d of %d checks failed", r.Fail, len(r.Checks))
		case r.Status == doctor.Warn && *strict:
			return fmt.Errorf("%d of %d checks warn", r.Warn, len(r.Checks))
		}
		return nil
	}
	return cmd
}

// noColour reports whether the environment asks for none: https://no-color.org.
func noColour(environ []string) bool { return environValue(environ, "NO_COLOR") != "" }

func environValue(environ []string, name string) (value string) {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			value = v
		}
	}
	return value
}

// doctorConfig translates the configuration.
func (p *process) doctorConfig(c *Config) (doctor.Config, error) {
	// No session opens a sink: nothing is run.
	stream, err := newStream(c, nil, cdc.Listener{})
	if err != nil {
		return doctor.Config{}, err
	}
	cfg := doctor.Config{
		Stream: stream, Slot: c.Postgres.Slot, Publication: c.Postgres.Publication, Failover: c.Postgres.Failover, Backlog: cdc.Backlog(c.Backlog),
		Sink: sinkConfig(c),
		Process: doctor.Process{
			Needed: baseMemory + int64(c.WindowBytes), GoLimit: goMemoryLimit(environValue(p.environ, "GOMEMLIMIT")), Limit: memoryLimit(os.ReadFile),
			Admin: c.Admin.Listen,
			Ask: func(ctx context.Context) (state.Status, bool) {
				r, err := fetchReport(ctx, c.Admin.Listen)
				if err != nil {
					return state.Status{}, false
				}
				return r.Status, true
			},
			Bind: func(ctx context.Context) error {
				ln, err := listenAdmin(ctx, c.Admin.Listen)
				if err != nil {
					return err
				}
				return ln.Close()
			},
		},
	}
	if c.Sink.Type == "webhook" {
		w, err := c.Webhook.client()
		if err != nil {
			return cfg, &hintError{err: err, hint: "the files that webhook.tls names must be there"}
		}
		w.RequestTimeout = min(w.RequestTimeout, doctorTimeout)
		cfg.Webhook = &w
	}
	if c.Sink.Type == "kafka" {
		k, err := c.Kafka.client()
		if err != nil {
			return cfg, &hintError{err: err, hint: "the files that kafka.tls names must be there"}
		}
		k.RequestTimeout = min(k.RequestTimeout, doctorTimeout)
		cfg.Kafka = &k
	}
	return cfg, nil
}

// goMemoryLimit reads GOMEMLIMIT as the Go runtime does; 0: there is none.
func goMemoryLimit(text string) int64 {
	units := []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1}}
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n <= 0 || n > math.MaxInt64/u.bytes || n == math.MaxInt64 {
			return 0
		}
		return n * u.bytes
	}
	return 0
}

// memoryLimit is the limit of the container that this process is in; 0: none is seen.
func memoryLimit(read func(string) ([]byte, error)) int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := read(path)
		if err != nil {
			continue
		}
		// An unlimited one says max, or a number near the largest there is.
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && n > 0 && n < 1<<60 {
			return n
		}
	}
	return 0
}
