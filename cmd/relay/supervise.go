package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// This file builds the component graph of a relaying process by hand, in the order of construction: log, board,
// stream with the sinks of its sessions, slot watch, admin listener. They end in the reverse order.

// relay runs until told to stop.
func relay(ctx context.Context, p *process, c *Config) error {
	log := newLogger(p.stderr, c.Log)
	limitMemory(p.environ, c.WindowBytes)
	soft, hard, release := notifyStops(ctx, c.DrainTimeout)
	defer release()
	return relayUntil(soft, hard, p, c, log)
}

// baseMemory is what a relay needs beside its window, with room for the collector to be lazy in. The program itself,
// some 16 MiB of which are resident, is not counted: with the default window 64 MiB hold all of it.
const baseMemory = 28 << 20

// limitMemory tells the garbage collector where to become eager, unless GOMEMLIMIT has: a process that shares a
// machine with a database has no business with twice the memory that it uses.
func limitMemory(environ []string, window ByteSize) {
	if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") }) {
		debug.SetMemoryLimit(baseMemory + int64(window))
	}
}

// relayUntil runs until soft ends and everything in flight is acknowledged, or until hard ends.
func relayUntil(soft, hard context.Context, p *process, c *Config, log *slog.Logger) (err error) {
	started, version := time.Now(), readBuild().Version
	// Bound before anything else starts, so that a port in use is told at once.
	var ln net.Listener
	if c.Admin.Listen != "" {
		if ln, err = listenAdmin(hard, c.Admin.Listen); err != nil {
			return err
		}
	}
	board := state.NewBoard(logStateChange(hard, log, newThrottle(throttleInterval)))
	totals := &sinkTotals{}
	watch := newSlotWatch(c.Postgres.ConnConfig, c.Postgres.Slot)
	alarm := newWALAlarm(c.Postgres.Slot, int64(c.WALWarnBytes), log)
	watch.onRead = func(r slotReading) { alarm.see(hard, r) }
	src := &sources{slotName: c.Postgres.Slot, current: board.Current, sink: totals.Stats, slot: watch.Reading,
		walWarning: alarm.warning, windowBytes: int64(c.WindowBytes)}
	var rates *meter
	metrics := newMetrics(src, version)
	opener := &opener{config: c, p: p, board: board, totals: totals, observe: metrics.Observe, notice: noticeTopics(hard, log), now: time.Now, counts: &letterCounts{}, pruning: newPruning(c, log)}
	stream, err := newStream(c, opener.open, cdc.Listener{
		State: func(s state.Status) {
			if board.Set(s); s.State == state.Backlog {
				rates.backlogReported()
			}
		},
		Adopted: func(confirmed outbox.LSN) {
			log.Warn("slot adopted", logSlot, c.Postgres.Slot, logConfirmedLSN, confirmed.String(),
				logReason, "relay_state did not know it: what was committed before this position is not published")
		},
		BacklogDone: func(published, vanished uint64) {
			log.Info("backlog published", logSlot, c.Postgres.Slot, logCount, published, logReason, fmt.Sprintf("the rows of %d events were gone", vanished))
		},
		PublicationChanged: func(what []string) {
			log.Warn("publication was changed", logPublication, c.Postgres.Publication,
				logReason, fmt.Sprintf("%s; no row is there that was written meanwhile, and none that was written and deleted would be in the stream", strings.Join(what, ", ")))
		},
		TimelineChanged: func(from, to int32) {
			log.Warn("server was promoted", logSlot, c.Postgres.Slot, logReason, fmt.Sprintf("timeline %d became %d", from, to))
		},
	})
	if err != nil {
		if ln != nil {
			err = errors.Join(err, ln.Close())
		}
		return err
	}
	opener.stream, opener.pruning.stream = stream, stream
	src.stream = stream.Stats
	rates = newMeter(stream.Stats, totals.Stats)
	src.pace = rates.Pace
	src.deadLetters, src.pruned = opener.counts.Last, opener.pruning.Gone

	// What serves the stream outlives it, so that a drain can be watched.
	serving, endServing := context.WithCancel(context.WithoutCancel(hard))
	var serve sync.WaitGroup
	defer func() {
		endServing()
		serve.Wait()
	}()
	serve.Go(func() { watch.Run(serving, nil) })
	serve.Go(func() { rates.Run(serving) })
	if ln != nil {
		a := &admin{
			current: board.Current, metrics: metrics.handler(), hosts: c.Admin.Hosts, pprof: c.Admin.Pprof,
			report: func() Report { return src.report(version, started, time.Now()) },
		}
		serve.Go(func() {
			if err := serveAdmin(serving, ln, a.handler()); err != nil {
				log.Error("admin listener ended", logErr, err)
			}
		})
	}
	if c.Sink.Type == "kafka" {
		for _, reason := range c.Kafka.givenUp() {
			log.Warn("guarantee switched off", logReason, reason)
		}
	}
	log.Info("relay started", logSlot, c.Postgres.Slot, logPublication, c.Postgres.Publication)
	err = stream.Run(soft, hard)
	if err != nil {
		return err
	}
	log.Info("relay stopped", logSlot, c.Postgres.Slot, logConfirmedLSN, stream.Stats().ConfirmedLSN.String())
	return nil
}

// newStream translates the configuration.
func newStream(c *Config, open cdc.Opener, listener cdc.Listener) (*cdc.Stream, error) {
	cfg := cdc.DefaultConfig()
	p := c.plan(func(string, string, string) {}) // the configuration is checked
	cfg.Connect = c.Postgres.ConnConfig
	cfg.Slot, cfg.Publication, cfg.Tables, cfg.Messages = c.Postgres.Slot, c.Postgres.Publication, p.tables, p.messages
	cfg.Table = p.tables[0].Table
	cfg.Ensure, cfg.Failover, cfg.Backlog = c.Postgres.Ensure, c.Postgres.Failover, cdc.Backlog(c.Backlog)
	return cdc.NewStream(cfg, relaystate.Store{}, open, listener)
}

// sinkConfig translates the configuration, which is checked, as far as it is the same for every session.
func sinkConfig(c *Config) sink.Config {
	cfg := sink.DefaultConfig()
	cfg.Routes = c.plan(func(string, string, string) {}).routes
	cfg.WindowBytes = int(c.WindowBytes)
	cfg.BatchBytes = min(cfg.BatchBytes, cfg.WindowBytes)
	if c.Sink.Type == "webhook" {
		cfg.BatchBytes = sink.WebhookBatchBytes
	}
	cfg.MaxRecordBytes = int(c.MaxRecordBytes)
	cfg.CreateTopics, cfg.NoResumeCheck = c.Kafka.CreateTopics, c.Kafka.ResumeCheck == "off"
	return cfg
}

// opener makes the sink of each session.
type opener struct {
	config  *Config
	p       *process
	board   *state.Board
	totals  *sinkTotals
	observe func(sink.BatchResult)
	notice  func(topic, finding string)
	now     func() time.Time
	counts  *letterCounts
	pruning *pruning
	stream  *cdc.Stream // whose sessions these are; set before it runs

	// Sessions follow one another, so nothing guards this.
	fenced []time.Time // when sessions ended because another producer had taken the identity
}

func (o *opener) open(s cdc.Session) (cdc.Sink, error) {
	cfg := sinkConfig(o.config)
	cfg.Observe, cfg.Notice, cfg.ResumeLSN = o.observe, o.notice, s.ResumeLSN
	letters := o.letters(s)
	cfg.DeadLetters, cfg.Stopping = letters, s.Stopping
	if err := cfg.Validate(); err != nil {
		return nil, &state.Error{State: state.ConfigInvalid, Reason: err.Error()}
	}
	var pub sink.Publisher
	switch o.config.Sink.Type {
	case "stdout":
		pub = sink.NewStdout(o.p.stdout)
	case "webhook":
		w, err := o.config.Webhook.client()
		if err != nil {
			return nil, &state.Error{State: state.ConfigInvalid, Reason: err.Error(), Hint: "the files that webhook.tls names must be there"}
		}
		pub = sink.NewWebhook(w)
	default:
		k, err := o.config.Kafka.client()
		if err != nil {
			return nil, &state.Error{State: state.ConfigInvalid, Reason: err.Error(), Hint: "the files that kafka.tls names must be there"}
		}
		pub = sink.NewKafka(k, s.Source)
	}
	out := sink.New(cfg, pub, s.Source, s.Done, o.board)
	o.totals.Begin(out.Stats)
	return o.attend(&contest{Sink: out, opener: o}, out, letters), nil
}

// contest watches a sink for the end that a second producer with the same identity causes. The slot decides who
// relays, so one such end is a late word of a predecessor; several in a row, while the slot is held, are a clone
// of the database that publishes to the same cluster, and would go on for ever.
type contest struct {
	*sink.Sink
	opener *opener
}

const (
	contestEnds   = 3
	contestWindow = 10 * time.Minute
)

// Run implements cdc.Sink.
func (c *contest) Run(ctx context.Context) error {
	err := c.Sink.Run(ctx)
	if !errors.Is(err, sink.ErrFenced) {
		return err
	}
	o, now := c.opener, c.opener.now()
	recent := []time.Time{now}
	for _, t := range o.fenced {
		if now.Sub(t) < contestWindow {
			recent = append(recent, t)
		}
	}
	o.fenced = recent
	if len(recent) < contestEnds {
		return err
	}
	return &state.Error{State: state.ProducerContested, Err: err,
		Reason: fmt.Sprintf("another producer took this relay's transactional id %d times within %v, while this relay holds the slot", len(recent), contestWindow),
		Hint:   "a copy of this database with the same slot name is publishing to the same Kafka cluster: stop its relay, or give it another postgres.slot"}
}
