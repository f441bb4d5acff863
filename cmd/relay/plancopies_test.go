package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTables_DeadLetterTopic: each entry may have one of its own, and none may be a topic that events go to.
func TestTables_DeadLetterTopic(t *testing.T) {
	t.Parallel()
	const text = `
postgres: {url: "postgres://relay@127.0.0.1/shop"}
sink: {type: stdout}
route: {topic: orders, dead_letter_topic: %ROUTE%}
tables: [{name: outbox.events}, {name: shop.events, topic: shop, dead_letter_topic: %TABLE%}]
messages: [{prefix: billing, topic: billing, dead_letter_topic: %MESSAGE%}]
`
	load := func(route, table, message string) *loader {
		return loadText(t, strings.NewReplacer("%ROUTE%", route, "%TABLE%", table, "%MESSAGE%", message).Replace(text))
	}
	l := load("dead", "shop.dead", `""`)
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range l.config.plan(func(key, problem, _ string) { t.Errorf("%s: %s", key, problem) }).routes {
		got = append(got, r.DeadLetterTopic)
	}
	if diff := cmp.Diff([]string{"dead", "shop.dead", "dead", "dead"}, got); diff != "" {
		t.Errorf("dead-letter topics (-want +got):\n%s", diff)
	}
	err := load("shop", `"a b"`, "orders").check()
	if err == nil {
		t.Fatal("no mistake is found")
	}
	for _, want := range []string{"route.dead_letter_topic", `events go to topic "shop"`, "tables[1].dead_letter_topic", `"a b"`, "messages[0].dead_letter_topic", `events go to topic "orders"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}
