package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/outboxrelay/relay/sink"
)

// planCopies says which topics get copies of dead letters. planPoison comes before, for it names every route.
func (c *Config) planCopies(p *plan, add addMistake) {
	live := sink.Config{Routes: p.routes}.TopicNames()
	check := func(key, topic string) {
		if topic == "" {
			return
		}
		for _, e := range parts(sink.Route{Topic: "x", DeadLetterTopic: topic}.Validate()) {
			add(key, e.Error(), "name a topic of a-z A-Z 0-9 . _ -")
		}
		if slices.Contains(live, topic) {
			add(key, fmt.Sprintf("events go to topic %s", quoted(topic)), "name a topic for copies of dead letters alone")
		}
	}
	check("route.dead_letter_topic", c.Route.DeadLetterTopic)
	set := func(route int, key, own string) {
		check(key, own)
		p.routes[route].DeadLetterTopic = cmp.Or(own, c.Route.DeadLetterTopic)
	}
	for i, m := range p.tables {
		own := ""
		if i < len(c.Tables) {
			own = c.Tables[i].DeadLetterTopic
		}
		set(m.Route, fmt.Sprintf("tables[%d].dead_letter_topic", i), own)
	}
	for i, m := range p.messages {
		own := ""
		if i < len(c.Messages) {
			own = c.Messages[i].DeadLetterTopic
		}
		set(m.Route, fmt.Sprintf("messages[%d].dead_letter_topic", i), own)
	}
}
