package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	soft, hard, release := notifyStops(ctx, c.DrainTimeout)
	defer release()
	return relayUntil(soft, hard, p, c, log)
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
	src := &sources{slotName: c.Postgres.Slot, current: board.Current, sink: totals.Stats, slot: watch.Reading}
	metrics := newMetrics(src, version)
	opener := &opener{config: c, p: p, board: board, totals: totals, observe: metrics.Observe, now: time.Now}
	stream, err := newStream(c, opener.open, cdc.Listener{
		State: board.Set,
		Adopted: func(confirmed outbox.LSN) {
			log.Warn("slot adopted", logSlot, c.Postgres.Slot, logConfirmedLSN, confirmed.String(),
				logReason, "relay_state did not know it: what was committed before this position is not published")
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
	src.stream = stream.Stats

	// What serves the stream outlives it, so that a drain can be watched.
	serving, endServing := context.WithCancel(context.WithoutCancel(hard))
	var serve sync.WaitGroup
	defer func() {
		endServing()
		serve.Wait()
	}()
	serve.Go(func() { watch.Run(serving, nil) })
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
	table, err := cdc.ParseTable(c.Postgres.Table)
	if err != nil {
		return nil, err
	}
	cfg.Connect = c.Postgres.ConnConfig
	cfg.Slot, cfg.Publication, cfg.Table = c.Postgres.Slot, c.Postgres.Publication, table
	cfg.Ensure, cfg.SkipBacklog = c.Postgres.Ensure, c.Backlog == "skip"
	return cdc.NewStream(cfg, relaystate.Store{}, open, listener)
}

// opener makes the sink of each session.
type opener struct {
	config  *Config
	p       *process
	board   *state.Board
	totals  *sinkTotals
	observe func(sink.BatchResult)
	now     func() time.Time

	// Sessions follow one another, so nothing guards this.
	fenced []time.Time // when sessions ended because another producer had taken the identity
}

func (o *opener) open(s cdc.Session) (cdc.Sink, error) {
	cfg := sink.DefaultConfig()
	cfg.Route, cfg.Topics = o.config.Route.Topic, o.config.Route.Topics
	cfg.WindowBytes = int(o.config.WindowBytes)
	cfg.BatchBytes = min(cfg.BatchBytes, cfg.WindowBytes)
	cfg.Observe = o.observe
	if err := cfg.Validate(); err != nil {
		return nil, &state.Error{State: state.ConfigInvalid, Reason: err.Error()}
	}
	var pub sink.Publisher
	switch o.config.Sink.Type {
	case "stdout":
		pub = sink.NewStdout(o.p.stdout)
	default:
		k := sink.DefaultKafkaConfig()
		k.Brokers, k.ClientID, k.RequestTimeout = o.config.Kafka.Brokers, o.config.Kafka.ClientID, o.config.Kafka.RequestTimeout
		pub = sink.NewKafka(k, s.Source)
	}
	out := sink.New(cfg, pub, s.Source, s.Done, o.board)
	o.totals.Begin(out.Stats)
	return &contest{Sink: out, opener: o}, nil
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
