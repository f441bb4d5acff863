package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
	"github.com/outboxrelay/relay/ledger/inbox"
	"github.com/outboxrelay/relay/sink"
)

// This file builds the component graph of a delivering process: log, pools, worker, listener for health and metrics.

// databases are the pools of a worker.
type databases struct {
	app, ledger *pgxpool.Pool
	same        bool // one database, and one role in it
}

func (d *databases) close() {
	d.app.Close()
	d.ledger.Close()
}

// openDatabases makes the pools. They connect when they are used.
func openDatabases(ctx context.Context, c *Config, rules *deliver.Rules) (*databases, error) {
	most := int32(8)
	for _, channel := range rules.Channels {
		most += int32(channel.Concurrency) + 1
	}
	app, appConf, err := openPool(ctx, c.appConn, most)
	if err != nil {
		return nil, err
	}
	if c.Deliver.HTTP.SecretFile != "" {
		most += inbox.Connections
	}
	pool, ledgerConf, err := openPool(ctx, c.deliverLedgerConn, most)
	if err != nil {
		app.Close()
		return nil, err
	}
	a, b := appConf, ledgerConf
	return &databases{app, pool, a.Host == b.Host && a.Port == b.Port && a.Database == b.Database && a.User == b.User}, nil
}

// openPool makes a pool that reads the secrets anew for each connection.
func openPool(ctx context.Context, connConfig func() (*pgx.ConnConfig, error), most int32) (*pgxpool.Pool, *pgx.ConnConfig, error) {
	conf, err := connConfig()
	if err != nil {
		return nil, nil, err
	}
	if conf.RuntimeParams["application_name"] == "" {
		conf.RuntimeParams["application_name"] = "relay deliver"
	}
	conf.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may stand between
	pc, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, nil, fmt.Errorf("make pool: %w", err)
	}
	pc.ConnConfig, pc.MaxConns = conf, most
	pc.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		fresh, err := connConfig()
		if err != nil {
			return err
		}
		cc.Password = fresh.Password
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, nil, fmt.Errorf("make pool: %w", err)
	}
	return pool, conf, nil
}

// deliver runs until told to stop.
func (p *process) deliver(ctx context.Context, c *Config, rules *deliver.Rules) error {
	log := newLogger(p.stderr, c.Log)
	soft, hard, release := notifyStops(ctx, c.DrainTimeout)
	defer release()
	return p.deliverUntil(soft, hard, c, rules, log)
}

func (p *process) deliverUntil(soft, hard context.Context, c *Config, rules *deliver.Rules, log *slog.Logger) (err error) {
	version := readBuild().Version
	var ln net.Listener
	if c.Deliver.Listen != "" {
		if ln, err = new(net.ListenConfig).Listen(hard, "tcp", c.Deliver.Listen); err != nil {
			return &hintError{fmt.Errorf("listen for health and metrics: %w", err), "another one may run here: choose another deliver.listen, or set it to \"\" for none"}
		}
		defer ln.Close()
	}
	kafkaConfig, err := c.Kafka.client()
	if err != nil {
		return err
	}
	d, err := openDatabases(hard, c, rules)
	if err != nil {
		return err
	}
	defer d.close()

	cfg := deliver.DefaultConfig()
	cfg.SameDatabase, cfg.StopGrace = d.same, c.DrainTimeout
	cfg.Kafka.Brokers, cfg.Kafka.ClientID = c.Kafka.Brokers, c.Kafka.ClientID+"-deliver"
	cfg.Kafka.Group, cfg.Kafka.Topics = c.Deliver.Group, c.Deliver.Topics
	cfg.Kafka.Timeout, cfg.Kafka.Dial = c.Kafka.RequestTimeout, sink.KafkaDialer(kafkaConfig)
	t := newThrottle(throttleInterval)
	cfg.Observe = observeDeliveries(hard, log, t)
	cfg.Notice = noticeDeliveries(log, t)
	w, err := deliver.New(cfg, rules, d.app, d.ledger)
	if err != nil {
		return err
	}

	browsers, err := c.listenBrowsers(hard, d.ledger, log, t)
	if err != nil {
		return err
	}
	serving, endServing := context.WithCancel(context.WithoutCancel(hard))
	inviting, endInviting := context.WithCancel(soft) // told to stop, browsers are sent elsewhere at once
	var serve sync.WaitGroup
	defer serve.Wait()
	defer endServing()
	defer endInviting()
	var more []prometheus.Collector
	if browsers != nil {
		more = append(more, newInboxCollector(browsers.Stats))
		serve.Go(func() {
			if err := browsers.Run(inviting, browsers.ln); err != nil {
				log.Error("listener for browsers ended", logErr, err)
			}
		})
	}
	if ln != nil {
		handler := deliverHandler(w.Stats, newDeliverRegistry(w.Stats, rules, version, more...), c.Admin.Hosts)
		serve.Go(func() {
			if err := serveAdmin(serving, ln, handler); err != nil {
				log.Error("admin listener ended", logErr, err)
			}
		})
	}
	log.Info("delivery started", logCount, len(rules.Rules), logReason, fmt.Sprintf("group %s, topics %s", c.Deliver.Group, strings.Join(c.Deliver.Topics, ", ")))
	if err := w.Run(soft, hard); err != nil {
		return withDeliverHint(err)
	}
	log.Info("delivery stopped")
	return nil
}

// observeDeliveries logs the ends of attempts. Their errors are not told: they may name who was to get what. The ledger
// keeps them, and relay ledger shows them to those who may see them.
func observeDeliveries(ctx context.Context, log *slog.Logger, t *throttle) func(deliver.Observation) {
	return func(o deliver.Observation) {
		level, message := slog.LevelDebug, "delivery attempted"
		switch o.Outcome {
		case ledger.Failed, ledger.Fenced, "":
			level, message = slog.LevelWarn, "delivery failed"
		case ledger.Dead, ledger.Uncertain:
			level, message = slog.LevelError, "delivery needs a person"
		}
		attrs := []any{logChannel, o.Channel, logAttempt, o.Attempt, logReason, outcomeLabel(o.Outcome)}
		if level > slog.LevelDebug {
			held, ok := t.allow(o.Channel + " " + string(o.Outcome))
			if !ok {
				return
			}
			attrs = append(attrs, logCount, held+1)
		}
		log.Log(ctx, level, message, attrs...)
	}
}

// noticeDeliveries logs trouble, the same once and then every 30 s.
func noticeDeliveries(log *slog.Logger, t *throttle) func(error) {
	return func(err error) {
		// What a text begins with says what it is about; its numbers change.
		kind, _, _ := strings.Cut(errText(err), " at offset ")
		if i := strings.IndexAny(kind, "0123456789"); i >= 0 {
			kind = kind[:i]
		}
		held, ok := t.allow("notice " + kind[:min(len(kind), 60)])
		if !ok {
			return
		}
		log.Warn("delivery held up", logErr, err, logCount, held+1)
	}
}

// deliverStatus is what /readyz and /status.json show.
type deliverStatus struct {
	State      string                               `json:"state"` // starting, rejoining, stalled, delivering
	Reason     string                               `json:"reason,omitempty"`
	Partitions int                                  `json:"partitions"`
	Lag        int64                                `json:"lag_records"`
	Held       map[string]int                       `json:"held"`
	Records    map[deliver.RecordOutcome]uint64     `json:"records"`
	Attempts   map[string]map[ledger.Outcome]uint64 `json:"attempts"`
}

func deliverReport(s deliver.Stats) deliverStatus {
	r := deliverStatus{State: "delivering", Partitions: s.Partitions, Lag: s.Lag, Held: s.Held, Records: s.Records, Attempts: s.Attempts}
	switch {
	case s.Rebalances == 0:
		r.State, r.Reason = "starting", "not yet a member of the consumer group"
	case !s.Member:
		r.State, r.Reason = "rejoining", "no member of the consumer group: it shares out its partitions anew, or Kafka does not answer"
	case s.Stalled != "":
		r.State, r.Reason = "stalled", errText(errors.New(s.Stalled))
	}
	return r
}

func deliverHandler(stats func() deliver.Stats, metrics http.Handler, hosts []string) http.Handler {
	a := &admin{hosts: hosts}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", a.healthz)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := deliverReport(stats())
		code := http.StatusOK
		if r.State != "delivering" {
			code = http.StatusServiceUnavailable
		}
		writeJSON(w, code, map[string]string{"state": r.State, "reason": r.Reason})
	})
	mux.HandleFunc("/status.json", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, deliverReport(stats())) })
	mux.Handle("/metrics", metrics)
	return a.guard(mux)
}

// outcomeLabel names an outcome, none included.
func outcomeLabel(o ledger.Outcome) string {
	if o == "" {
		return "unrecorded"
	}
	return string(o)
}
