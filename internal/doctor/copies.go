package doctor

import (
	"context"
	"fmt"
	"slices"
)

// copies looks at the topics that get copies of dead letters. Nothing waits for them, so what is wrong is a warning.
func (p *patient) copies(ctx context.Context, s *sheet) {
	var names []string
	for _, r := range p.cfg.Sink.Routes {
		if r.DeadLetterTopic != "" {
			names = append(names, r.DeadLetterTopic)
		}
	}
	if len(names) == 0 {
		s.ok("dead-letter topics", "none are configured")
		return
	}
	slices.Sort(names)
	found, err := p.survey().Topics(ctx, p.alive[0].Address, slices.Compact(names), p.cfg.Sink.LargestRecord())
	if err != nil {
		s.broken("dead-letter topics", err)
		return
	}
	const lost = "dead letters get no copy there; their rows are written all the same"
	for _, t := range found {
		name := "dead-letter topic " + t.Name
		limit := ""
		if t.MaxMessageBytes > 0 {
			limit = fmt.Sprintf(", max.message.bytes %d: larger dead letters get no copy", t.MaxMessageBytes)
		}
		switch {
		case t.Err != nil:
			s.warn(name, do("look at the brokers and at the relay's rights"), "%v", t.Err)
		case !t.Exists && p.cfg.Sink.CreateTopics:
			s.ok(name, "does not exist, and is made with the first copy (kafka.create_topics)")
		case !t.Exists:
			s.warn(name, do("or set kafka.create_topics: true", fmt.Sprintf("kafka-topics.sh --bootstrap-server <broker> --create --topic %s --partitions 6 --replication-factor %d", t.Name, min(3, len(p.alive)))), "does not exist: "+lost)
		case t.Leaderless > 0:
			s.warn(name, do("look at the brokers"), "%d of %d partitions have no leader: %s", t.Leaderless, t.Partitions, lost)
		case t.RightsKnown && !t.Write:
			s.warn(name, do("", "kafka-acls.sh --bootstrap-server <broker> --add --allow-principal User:<relay> --operation Write --topic "+t.Name), "this principal may not write to it: "+lost)
		default:
			s.ok(name, "%s, %s%s", count(t.Partitions, "partition"), count(t.Replicas, "replica"), limit)
		}
	}
}
