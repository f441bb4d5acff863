package main

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outboxrelay/relay/sink"
)

// metrics is the process's registry. Counters and gauges are read from snapshots when somebody scrapes;
// histograms are fed as things happen.
type metrics struct {
	registry    *prometheus.Registry
	produce     prometheus.Histogram
	batch       prometheus.Histogram
	commitToAck prometheus.Histogram
}

// newMetrics returns a registry of its own with everything in it.
func newMetrics(src *sources, version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		produce: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_produce_duration_seconds",
			Help:    "Time from the first try to send a batch to its acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_batch_events",
			Help:    "Events in one acknowledged batch.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 14), // 1 to 8192
		}),
		commitToAck: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_commit_to_ack_seconds",
			Help:    "Time from the commit of a batch's oldest event, by the database's clock, to the acknowledgement, by the relay's.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 20), // 1 ms to 9 min
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "relay_build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()},
	})
	info.Set(1)
	m.registry.MustRegister(
		m.produce, m.batch, m.commitToAck, info, newCollector(src, time.Now),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Observe feeds the histograms; it is a sink's Config.Observe.
func (m *metrics) Observe(r sink.BatchResult) {
	m.produce.Observe(r.Produce.Seconds())
	m.batch.Observe(float64(r.Events))
	// Two clocks: the database's may be ahead of ours.
	m.commitToAck.Observe(max(0, r.CommitAge.Seconds()))
}

// handler serves the registry.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
