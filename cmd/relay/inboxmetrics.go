package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/ledger/inbox"
)

// inboxCollector turns an inbox's snapshot into series when somebody scrapes.
type inboxCollector struct {
	stats func() inbox.Stats

	streams, opened, ended, sent, listed, refused *prometheus.Desc
}

func newInboxCollector(stats func() inbox.Stats) *inboxCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("relay_deliver_http_"+name, help, labels, nil)
	}
	return &inboxCollector{
		stats:   stats,
		streams: desc("streams", "Streams of notifications that are open."),
		opened:  desc("streams_opened_total", "Streams that were opened."),
		ended:   desc("streams_ended_total", "Streams that ended, by why.", "reason"),
		sent:    desc("notifications_sent_total", "Notifications sent on streams; one that is sent to two tabs counts twice."),
		listed:  desc("lists_total", "Answered requests for a list."),
		refused: desc("refused_total", "Refused requests, by what was wrong.", "class"),
	}
}

// Describe sends every series's description.
func (c *inboxCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.streams, c.opened, c.ended, c.sent, c.listed, c.refused} {
		ch <- d
	}
}

// Collect reads a snapshot.
func (c *inboxCollector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	s := c.stats()
	ch <- prometheus.MustNewConstMetric(c.streams, prometheus.GaugeValue, float64(s.Streams))
	counter(c.opened, s.Opened)
	for _, why := range inbox.EndReasons() {
		counter(c.ended, s.Ended[why], string(why))
	}
	counter(c.sent, s.Sent)
	counter(c.listed, s.Listed)
	for _, class := range inbox.RefusalClasses() {
		counter(c.refused, s.Refused[class], class)
	}
}
