package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

const sectionKafka = "Kafka"

func (p *patient) kafka() []step {
	return []step{
		{sectionKafka, "brokers", nil, p.brokers},
		{sectionKafka, "producer", []string{"brokers"}, p.producer},
		{sectionKafka, "routes", []string{"tables", "grants"}, p.withDB(p.routes, "routes")},
		{sectionKafka, "topics", []string{"brokers"}, p.look},
		{sectionKafka, "dead-letter topics", []string{"brokers"}, p.copies},
	}
}

// survey looks at the cluster as this relay.
func (p *patient) survey() *sink.Survey {
	source := "unknown"
	if p.system != "" {
		source = cdc.SourceOf(p.system, p.server.Database, p.cfg.Slot)
	}
	return sink.NewSurvey(*p.cfg.Kafka, source)
}

// brokers connects to each: first to those that are configured, then to those that the cluster names, which is where the
// records go.
func (p *patient) brokers(ctx context.Context, s *sheet) {
	v := p.survey()
	var first string
	var errs []error
	reached := map[string]bool{}
	for _, address := range p.cfg.Kafka.Brokers {
		b, err := v.Broker(ctx, address)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if first == "" {
			first = address
		}
		reached[address] = true
		p.broker(s, b)
	}
	for _, err := range errs {
		if e := state.Of(err); first != "" && e != nil {
			s.warn("bootstrap broker", do("take it out of kafka.brokers, or bring it back. "+e.Hint), "%s", e.Reason)
			continue
		}
		s.broken("bootstrap broker", err)
	}
	if first == "" {
		return
	}
	c, err := v.Cluster(ctx, first)
	if err != nil {
		s.broken("cluster", err)
		return
	}
	for _, n := range c.Brokers {
		if reached[n.Address] {
			p.alive = append(p.alive, n)
			continue // looked at already
		}
		b, err := v.Broker(ctx, n.Address)
		if err != nil {
			if e := state.Of(err); e != nil {
				s.fail("broker", do("this is the address that the brokers tell clients (advertised.listeners): it must resolve and be open from here. "+e.Hint), "node %d: %s", n.ID, e.Reason)
			} else {
				s.broken("broker", err)
			}
			continue
		}
		p.broker(s, b)
		p.alive = append(p.alive, n)
	}
	if len(p.alive) == 0 && !s.failed() {
		s.fail("cluster", do("look at the brokers"), "the brokers name no member of the cluster")
		return
	}
	s.ok("cluster", "%d of %d brokers can be used", len(p.alive), len(c.Brokers))
}

func (p *patient) broker(s *sheet, b sink.Broker) {
	how := "in the clear"
	if p.cfg.Kafka.TLS != nil {
		how = "TLS"
	}
	if p.cfg.Kafka.SASL != nil {
		how += ", " + p.cfg.Kafka.SASL.Mechanism
	}
	switch {
	case len(b.Lacks) > 0:
		s.fail("broker", do("use a Kafka from 2.5 on; where the broker has no transactions, see the switches in docs/kafka.md"), "%s does not answer %s in a version that the relay speaks", b.Address, strings.Join(b.Lacks, ", "))
	case b.Old:
		s.fail("broker", do("use a Kafka from 2.5 on"), "%s is older than Kafka 2.5", b.Address)
	default:
		s.ok("broker", "%s, Kafka %s or later, %s", b.Address, b.Release, how)
	}
}

// producer looks at the transactional id without taking it.
func (p *patient) producer(ctx context.Context, s *sheet) {
	k := p.cfg.Kafka
	if k.NotIdempotent || k.NoFencing {
		s.add(Skip, "producer", "", nil, "kafka.fencing is off, or kafka.idempotent false: no transactional id is used")
		return
	}
	if p.system == "" {
		s.add(Skip, "producer", "", nil, "not looked at: the transactional id is made of the database server's identifier, which is not known")
		return
	}
	v := p.survey()
	r, err := v.Producer(ctx, p.alive[0])
	if err != nil {
		s.broken("producer", err)
		return
	}
	id := v.TransactionalID()
	switch {
	case r.RightErr != nil:
		e := state.Of(r.RightErr)
		s.fail("transactional id", do(e.Hint, "kafka-acls.sh --bootstrap-server <broker> --add --allow-principal User:<relay> --operation Write --transactional-id relay- --resource-pattern-type prefixed"), "%s", e.Reason)
	case r.RightKnown:
		s.ok("transactional id", "%q may be described; whether it may be written with shows only when the relay takes it, which would fence one that runs", id)
	default:
		s.ok("transactional id", "%q: not checked, for a broker before Kafka 3.0 has no request that only looks", id)
	}
	brokers := len(p.alive)
	switch {
	case r.CoordinatorErr != nil:
		s.broken("transaction coordinator", r.CoordinatorErr)
	case r.TopicSeen && r.Replicas == 1 && brokers > 1:
		s.warn("transaction coordinator", do("give __transaction_state more replicas with kafka-reassign-partitions.sh"), "at %s; its topic has one replica: without that broker no relay can start", r.Coordinator)
	case r.TopicSeen:
		s.ok("transaction coordinator", "at %s, %s", r.Coordinator, count(r.Replicas, "replica"))
	case r.TopicHidden:
		s.ok("transaction coordinator", "not asked for: this principal may not see __transaction_state, and asking where it is missing would make it")
	case r.Replicas > brokers:
		s.fail("transaction coordinator", do(fmt.Sprintf("set transaction.state.log.replication.factor=%d and transaction.state.log.min.isr=%d on the brokers and restart them", brokers, max(1, brokers-1))),
			"__transaction_state is not made yet and wants %s; the cluster has %s", count(r.Replicas, "replica"), count(brokers, "broker"))
	default:
		s.ok("transaction coordinator", "its topic is made when the first relay starts")
	}
}

// mostValues is how many different combinations of values are made topics of, in each table.
const mostValues = 500

// routes finds the topics that events go to: those that the configuration names, and those that the rows make.
func (p *patient) routes(ctx context.Context, s *sheet, db cdc.DB) error {
	for _, name := range p.cfg.Sink.TopicNames() {
		p.topics[name] = true
	}
	bad := map[string]bool{}
	many := false
	for i, m := range p.x.Tables() {
		if i >= len(p.tables) {
			break
		}
		e, err := p.extent(ctx, db, m.Table)
		if err != nil {
			return err
		}
		events, err := p.x.Distinct(ctx, m, p.tables[i], p.cfg.Sink.Routes[m.Route].TopicInputs(), e.from(m.Table), mostValues)
		if err != nil {
			return err
		}
		many = many || len(events) == mostValues
		for i := range events {
			topic, reason := p.cfg.Sink.TopicOf(&events[i])
			if reason == "" {
				p.topics[topic] = true
			} else {
				bad[fmt.Sprintf("%s: topic %q: %s", m.Table, topic, reason)] = true
			}
		}
	}
	if len(bad) > 0 {
		list := slices.Sorted(maps.Keys(bad))
		s.warn("routes", do("add the topic to route.topics if it belongs there, or correct the rows that are not published yet"), "there are rows without a topic, which halt the relay if they are not published yet: %s", strings.Join(list[:min(len(list), 5)], "; "))
	}
	more := ""
	if many {
		more = "; there are more than were looked at"
	}
	if len(p.topics) == 0 {
		s.ok("routes", "the rows make the topics, and there are none yet")
		return nil
	}
	s.ok("routes", "%s, by the configuration and by the rows in the table%s", count(len(p.topics), "topic"), more)
	return nil
}

// mostTopics is how many topics are looked at.
const mostTopics = 50

// look looks at each topic.
func (p *patient) look(ctx context.Context, s *sheet) {
	names := slices.Sorted(maps.Keys(p.topics))
	if len(names) == 0 { // the rows could not be read
		names = p.cfg.Sink.TopicNames()
	}
	if len(names) == 0 {
		s.ok("topics", "none to look at yet")
		return
	}
	if len(names) > mostTopics {
		s.ok("topics", "%d, of which %d are looked at", len(names), mostTopics)
		names = names[:mostTopics]
	}
	found, err := p.survey().Topics(ctx, p.alive[0].Address, names, p.cfg.Sink.LargestRecord())
	if err != nil {
		s.broken("topics", err)
		return
	}
	for _, t := range found {
		p.places[t.Name] = t
		p.topic(s, t)
	}
	p.fits(s)
}

func (p *patient) topic(s *sheet, t sink.Topic) {
	name := "topic " + t.Name
	acl := func(operation string) string {
		return fmt.Sprintf("kafka-acls.sh --bootstrap-server <broker> --add --allow-principal User:<relay> --operation %s --topic %s", operation, t.Name)
	}
	switch {
	case t.Err != nil:
		s.broken(name, t.Err)
		return
	case !t.Exists && p.cfg.Sink.CreateTopics:
		s.ok(name, "does not exist, and is made when an event goes there (kafka.create_topics)")
		return
	case !t.Exists:
		s.fail(name, do("or set kafka.create_topics: true", fmt.Sprintf("kafka-topics.sh --bootstrap-server <broker> --create --topic %s --partitions 6 --replication-factor %d", t.Name, min(3, len(p.alive)))), "does not exist: events for it wait, and all behind them")
		return
	case t.Leaderless > 0:
		s.fail(name, do("look at the brokers"), "%d of %d partitions have no leader", t.Leaderless, t.Partitions)
	case t.RightsKnown && !t.Write:
		s.fail(name, do("", acl("Write")), "this principal may not write to it")
	case t.RightsKnown && !t.Read && !p.cfg.Sink.NoResumeCheck:
		s.fail(name, do("or set kafka.resume_check: off and accept repeated events after each kill", acl("Read")), "this principal may not read it, which the resume check needs")
	}
	seen := fmt.Sprintf("%s, %s", count(t.Partitions, "partition"), count(t.Replicas, "replica"))
	if t.Settings == nil {
		s.ok(name, "%s; its settings could not be seen without the right DescribeConfigs", seen)
	} else {
		s.ok(name, "%s, min.insync.replicas %d, max.message.bytes %d", seen, t.MinInsync, t.MaxMessageBytes)
	}
	for _, f := range t.Findings {
		var run []string
		words := ""
		if f.Command != "" {
			run = []string{f.Command}
		} else if t.Replicas < 3 {
			words = "give it three replicas with kafka-reassign-partitions.sh, where there are three brokers"
		}
		s.warn(name, do(words, run...), "%s", f.Seen)
	}
	if t.Settings["message.timestamp.type"] == "LogAppendTime" && slices.ContainsFunc(p.cfg.Sink.Routes, func(r sink.Route) bool { return r.EventTime != "" }) {
		s.warn(name, do("", "kafka-configs.sh --bootstrap-server <broker> --alter --entity-type topics --entity-name "+t.Name+" --add-config message.timestamp.type=CreateTime"),
			"message.timestamp.type is LogAppendTime: the timestamps that event_time asks for are replaced by the broker's")
	}
}

// fits compares the largest rows with what the topics take. A limit above the relay's own is not reached.
func (p *patient) fits(s *sheet) {
	smallest := sink.Topic{}
	for _, t := range p.places {
		if t.MaxMessageBytes > 0 && (smallest.MaxMessageBytes == 0 || t.MaxMessageBytes < smallest.MaxMessageBytes) {
			smallest = t
		}
	}
	if smallest.MaxMessageBytes == 0 || smallest.MaxMessageBytes >= p.cfg.Sink.LargestRecord() {
		return
	}
	for _, l := range p.rows {
		if l.bytes+batchOverhead > int64(smallest.MaxMessageBytes) {
			s.warn("record size of "+label(l.table), do("", fmt.Sprintf("kafka-configs.sh --bootstrap-server <broker> --alter --entity-type topics --entity-name %s --add-config max.message.bytes=%d", smallest.Name, p.cfg.Sink.LargestRecord())),
				"the largest row%s has %s of payload and headers, topic %s takes %s (the limit counts compressed batches): an event like it may halt its partition", l.sampled, size(l.bytes), smallest.Name, size(int64(smallest.MaxMessageBytes)))
		}
	}
}
