package main

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/internal/state"
)

// maxTopicLabels bounds the topic label, whose values come from rows when a route names the aggregate type.
// What goes to topics beyond it is counted under otherLabel.
const maxTopicLabels = 500

// deadLetterStates lists the states that a row of outbox.dead_letters can be in.
var deadLetterStates = [...]string{"parked", "held", "requeued", "published", "discarded"}

// otherLabel stands for label values beyond a closed set.
const otherLabel = "other"

// collector turns snapshots into series when somebody scrapes. Every value that a label can have from a closed
// set is there from the first scrape, at zero, so that a rate over it sees the first increase.
type collector struct {
	src *sources
	now func() time.Time

	state, connected, slotLag, slotRetained, slotActive   *prometheus.Desc
	slotSafe, slotStatus, slotLimit, deadLetters          *prometheus.Desc
	transactions, events, walBytes, reconnects            *prometheus.Desc
	backlogEvents, backlogBytes, backlogLeft              *prometheus.Desc
	publishLag, lastConfirm                               *prometheus.Desc
	published, retries, resumed, undecided, grown, poison *prometheus.Desc
	pruned, copies                                        *prometheus.Desc

	// mu guards the field below.
	mu     sync.Mutex
	topics map[string]bool // those with a label of their own; one that has it keeps it
}

func newCollector(src *sources, now func() time.Time) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		src: src, now: now, topics: map[string]bool{},
		state:         desc("relay_state", "1 for the state the relay is in, 0 for the others.", "state"),
		connected:     desc("relay_cdc_connected", "1 while this relay holds the slot and receives."),
		transactions:  desc("relay_cdc_received_transactions_total", "Committed transactions received, empty ones included."),
		events:        desc("relay_cdc_received_events_total", "Events received from PostgreSQL, repeated ones included."),
		walBytes:      desc("relay_cdc_received_wal_bytes_total", "Bytes of replication messages received."),
		reconnects:    desc("relay_cdc_reconnects_total", "Sessions and attempts that ended, by the state they led to.", "reason"),
		slotLag:       desc("relay_slot_lag_bytes", "WAL from the slot's confirmed flush LSN to the server's current LSN.", "slot"),
		slotRetained:  desc("relay_slot_retained_bytes", "WAL that the server keeps for the slot.", "slot"),
		slotActive:    desc("relay_slot_active", "1 while any relay holds the slot.", "slot"),
		slotSafe:      desc("relay_slot_safe_wal_bytes", "WAL that may still be written before the slot can be lost; absent while there is no limit.", "slot"),
		slotStatus:    desc("relay_slot_wal_status", "1 for the slot's wal_status, 0 for the others.", "slot", "status"),
		slotLimit:     desc("relay_slot_limit_seconds", "Time to max_slot_wal_keep_size at the rate of the last minutes; absent without a limit or without growth.", "slot"),
		backlogLeft:   desc("relay_backlog_left_events", "Events from before the slot that are still to be published before the stream."),
		deadLetters:   desc("relay_dead_letters", "Rows of outbox.dead_letters; absent while they are not known.", "state"),
		backlogEvents: desc("relay_backlog_events", "Events received and not yet published."),
		backlogBytes:  desc("relay_backlog_bytes", "Encoded records accepted and not yet acknowledged."),
		publishLag:    desc("relay_publish_lag_seconds", "Age of the oldest commit with unpublished events; 0 when there is none."),
		lastConfirm:   desc("relay_last_confirm_timestamp_seconds", "When the confirmed LSN last rose; 0 when it has not yet."),
		published:     desc("relay_publish_events_total", "Events that reached an end.", "topic", "outcome"),
		retries:       desc("relay_publish_retries_total", "Tries to send a batch that did not succeed.", "reason"),
		poison:        desc("relay_sink_poison_total", "Events that could not be published, by what is wrong with them and what was done.", "class", "policy"),
		copies:        desc("relay_sink_dead_letter_copies_total", "Copies of dead letters for their dead-letter topics, by what became of them.", "result"),
		resumed:       desc("relay_sink_resumed_events_total", "Events found in Kafka from before a restart, and not published again."),
		undecided:     desc("relay_sink_resume_undecided_total", "Partitions whose end did not tell where to go on after a restart, so that events may be there twice."),
		pruned:        desc("relay_pruned_rows_total", "Rows deleted by retention.", "table"),
		grown:         desc("relay_sink_partition_growths_total", "Times that a topic's larger number of partitions was taken, so that keys moved."),
	}
}

// Describe sends every series's description.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.state, c.connected, c.transactions, c.events, c.walBytes, c.reconnects, c.slotLag, c.slotRetained, c.slotActive,
		c.slotSafe, c.slotStatus, c.slotLimit, c.backlogLeft, c.deadLetters,
		c.backlogEvents, c.backlogBytes, c.publishLag, c.lastConfirm, c.pruned, c.published, c.retries, c.resumed, c.undecided, c.poison, c.copies, c.grown,
	} {
		ch <- d
	}
}

// Collect reads the snapshots.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}

	current := c.src.current().State
	for _, s := range state.All {
		gauge(c.state, oneIf(s == current), string(s))
	}

	stream := c.src.stream()
	gauge(c.connected, oneIf(stream.Connected))
	counter(c.transactions, stream.ReceivedTransactions)
	counter(c.events, stream.ReceivedEvents)
	counter(c.walBytes, stream.ReceivedBytes)
	for reason, n := range closed(reconnectReasons(), stream.Reconnects) {
		counter(c.reconnects, n, reason)
	}
	gauge(c.backlogEvents, float64(stream.PendingEvents))
	gauge(c.backlogLeft, float64(stream.BacklogLeft))
	gauge(c.publishLag, publishLag(stream, c.now()))
	lastConfirm := 0.0
	if !stream.LastConfirm.IsZero() {
		lastConfirm = float64(stream.LastConfirm.UnixMilli()) / 1000
	}
	gauge(c.lastConfirm, lastConfirm)

	out := c.src.sink()
	gauge(c.backlogBytes, float64(out.BacklogBytes))
	for topic, n := range c.bound(out.Published) {
		counter(c.published, n, topic, "published")
	}
	counter(c.resumed, out.Resumed)
	for p, n := range out.Poison { // the sink's own closed set
		counter(c.poison, n, p.Class, string(p.Policy))
	}
	for result, n := range out.Copies { // the sink's own closed set
		counter(c.copies, n, result)
	}
	counter(c.undecided, out.Undecided)
	counter(c.grown, out.Grown)
	for reason, n := range out.Retries { // the sink's own closed set
		counter(c.retries, n, reason)
	}

	if c.src.pruned != nil {
		for table, n := range c.src.pruned() { // as many as the configuration names
			counter(c.pruned, n, table)
		}
	}

	// A number that is not known is left out rather than told as zero.
	if c.src.deadLetters != nil {
		if counts := c.src.deadLetters(); counts != nil {
			for _, s := range deadLetterStates {
				gauge(c.deadLetters, float64(counts[s]), s)
			}
		}
	}
	if slot, ok := c.src.slot(); ok {
		gauge(c.slotLag, float64(slot.LagBytes), c.src.slotName)
		gauge(c.slotRetained, float64(slot.RetainedBytes), c.src.slotName)
		gauge(c.slotActive, oneIf(slot.Active), c.src.slotName)
		for _, status := range walStatuses {
			gauge(c.slotStatus, oneIf(status == slot.WALStatus), c.src.slotName, status)
		}
		if slot.SafeBytes != nil {
			gauge(c.slotSafe, float64(*slot.SafeBytes), c.src.slotName)
		}
		if seconds, ok := slot.limitSeconds(); ok {
			gauge(c.slotLimit, seconds, c.src.slotName)
		}
	}
}

// bound folds the topics beyond the limit into one. Which topics keep their label is decided when they are
// first seen, because a counter must not move from one series to another.
func (c *collector) bound(byTopic map[string]uint64) map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	folded := make(map[string]uint64, len(byTopic))
	for topic, n := range byTopic {
		if !c.topics[topic] {
			if len(c.topics) >= maxTopicLabels {
				topic = otherLabel
			} else {
				c.topics[topic] = true
			}
		}
		folded[topic] += n
	}
	return folded
}

// reconnectReasons lists what a session can end in: a state, or having been told to stop.
func reconnectReasons() []string {
	reasons := []string{"stopped"}
	for _, s := range state.All {
		reasons = append(reasons, string(s))
	}
	return reasons
}

// closed returns counts for exactly the names given and otherLabel.
func closed(names []string, counts map[string]uint64) map[string]uint64 {
	all := map[string]uint64{otherLabel: 0}
	for _, n := range names {
		all[n] = 0
	}
	for name, n := range counts {
		if !slices.Contains(names, name) {
			name = otherLabel
		}
		all[name] += n
	}
	return all
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
