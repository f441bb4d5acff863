package main

import (
	"net/http"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// deliverCollector turns a worker's snapshot into series when somebody scrapes. Channels are those of the rules file, so
// every label comes from a closed set.
type deliverCollector struct {
	stats    func() deliver.Stats
	channels []string

	records, parked, registered, attempts, held   *prometheus.Desc
	partitions, lag, rebalances, skipped, stalled *prometheus.Desc
}

func newDeliverCollector(stats func() deliver.Stats, rules *deliver.Rules) *deliverCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("relay_deliver_"+name, help, labels, nil)
	}
	c := &deliverCollector{
		stats:      stats,
		records:    desc("records_total", "Records read, by what became of them.", "outcome"),
		parked:     desc("parked_records_total", "Records that could not be handled and are kept in ledger.parked_records.", "class"),
		registered: desc("registered_total", "Deliveries registered: registered for new ones, known for repetitions, expired for those that come too late.", "channel", "outcome"),
		attempts:   desc("attempts_total", "Attempts at deliveries that ended.", "channel", "outcome"),
		held:       desc("held", "Deliveries that this process holds now.", "channel"),
		partitions: desc("partitions", "Partitions that this process reads."),
		lag:        desc("lag_records", "Records behind the ends of those partitions."),
		rebalances: desc("rebalances_total", "Generations of the consumer group that this process has seen."),
		skipped:    desc("skipped_records_total", "Records that the topic no longer had when they were to be read."),
		stalled:    desc("stalled", "1 while registering is held up; /readyz says why."),
	}
	for _, s := range rules.Channels {
		c.channels = append(c.channels, s.Name)
	}
	return c
}

// newDeliverRegistry returns the page with everything in it.
func newDeliverRegistry(stats func() deliver.Stats, rules *deliver.Rules, version string, more ...prometheus.Collector) http.Handler {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "relay_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(info, newDeliverCollector(stats, rules), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(more...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Describe sends every series's description.
func (c *deliverCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.records, c.parked, c.registered, c.attempts, c.held, c.partitions, c.lag, c.rebalances, c.skipped, c.stalled,
	} {
		ch <- d
	}
}

// Collect reads a snapshot.
func (c *deliverCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := c.stats()
	for _, o := range deliver.RecordOutcomes() {
		counter(c.records, s.Records[o], string(o))
	}
	for _, class := range deliver.Classes() {
		counter(c.parked, s.Parked[class], string(class))
	}
	for _, channel := range c.channels {
		for _, o := range []ledger.Outcome{ledger.Registered, ledger.Known, ledger.Expired} {
			counter(c.registered, s.Registered[channel][o], channel, string(o))
		}
		for _, o := range []ledger.Outcome{
			ledger.Delivered, ledger.AlreadyDelivered, ledger.LateAccepted, ledger.Skipped, ledger.Failed, ledger.Dead, ledger.Uncertain,
			ledger.Released, ledger.Fenced, ledger.LeaseShort, ledger.AlreadyBegun, ledger.NotBegun, ledger.Gone, "",
		} {
			counter(c.attempts, s.Attempts[channel][o], channel, outcomeLabel(o))
		}
		gauge(c.held, float64(s.Held[channel]), channel)
	}
	gauge(c.partitions, float64(s.Partitions))
	gauge(c.lag, float64(s.Lag))
	counter(c.rebalances, s.Rebalances)
	counter(c.skipped, s.Skipped)
	gauge(c.stalled, oneIf(s.Stalled != ""))
}
