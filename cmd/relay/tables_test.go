package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/sink"
)

// loadText loads a configuration file of this text.
func loadText(t *testing.T, text string, environ ...string) *loader {
	t.Helper()
	path := t.TempDir() + "/relay.yaml"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return loadConfig(configFlags(), append(environ, "RELAY_CONFIG="+path))
}

const manyTables = `
postgres: {url: "postgres://relay@127.0.0.1/shop"}
sink: {type: stdout}
route: {topics: [audit]}
tables:
  - name: outbox.events
  - name: public.outboxevent
    preset: debezium
    additional: "type:header:eventType, tracing:header"
    additional_missing: ignore
    event_time: createdat
    tombstone_on_empty: true
  - name: shop.log
    columns: {id: log_id, aggregate_id: customer, payload: body, event_type: what}
    id_prefix: "log-"
    topic: "shop.{what}.{region}"
    partition: shard
    cloudevents: binary
    cloudevents_source: /shop/log
  - name: app.outbox
    preset: debezium
    columns: {id: event_id, payload: data}
    id_prefix: ""
    route_by: kind
    topic_regex: '(?<name>.*)Event'
    topic_replacement: 'app.${name}'
    key: tenant_id
messages:
  - prefix: billing
    topic: billing.events
`

func TestTables_Plan(t *testing.T) {
	t.Parallel()
	l := loadText(t, manyTables)
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	got := l.config.plan(func(key, problem, _ string) { t.Errorf("%s: %s", key, problem) })
	want := plan{
		tables: []cdc.Mapping{
			{Table: cdc.Table{Schema: "outbox", Name: "events"}},
			{Table: cdc.Table{Schema: "public", Name: "outboxevent"}, Route: 1, IgnoreMissing: true, Columns: cdc.DebeziumColumns(),
				Extra: []string{"aggregatetype", "type", "tracing", "createdat"}},
			{Table: cdc.Table{Schema: "shop", Name: "log"}, Route: 2, IDPrefix: "log-", Extra: []string{"what", "region", "shard"},
				Columns: []cdc.Column{{Field: cdc.FieldAggregateID, Name: "customer"}, {Field: cdc.FieldEventType, Name: "what"}, {Field: cdc.FieldID, Name: "log_id"}, {Field: cdc.FieldPayload, Name: "body"}}},
			{Table: cdc.Table{Schema: "app", Name: "outbox"}, Route: 3, BareID: true, Extra: []string{"kind", "tenant_id"},
				Columns: []cdc.Column{{Field: cdc.FieldAggregateID, Name: "aggregateid"}, {Field: cdc.FieldID, Name: "event_id"}, {Field: cdc.FieldPayload, Name: "data"}}},
		},
		messages: []cdc.MessageMapping{{Prefix: "billing", Route: 4}, {Prefix: "outbox", Emitted: true, Route: 5}},
		routes: []sink.Route{
			{Topic: "outbox.event.{aggregate_type}", Topics: []string{"audit"}},
			{Topic: "outbox.event.{aggregatetype}", Topics: []string{"audit"}, Columns: []string{"aggregatetype", "type", "tracing", "createdat"}, EventTime: "createdat", TombstoneOnEmpty: true,
				Placements: []sink.Placement{{Column: "type", Alias: "eventType"}, {Column: "tracing", Alias: "tracing"}}},
			{Topic: "shop.{what}.{region}", Topics: []string{"audit"}, Columns: []string{"what", "region", "shard"},
				Placements: []sink.Placement{{Column: "shard", Place: sink.PlacePartition}}, CloudEvents: &sink.CloudEvents{Source: "/shop/log"}},
			{RouteBy: "kind", Regex: "(?<name>.*)Event", Replacement: "app.${name}", Topics: []string{"audit"}, Columns: []string{"kind", "tenant_id"}, Key: "tenant_id"},
			{Topic: "billing.events"},
			{Topic: "outbox.event.{aggregate_type}", Topics: []string{"audit"}},
		},
	}
	for i, source := range []string{`"outbox"."events"`, `"public"."outboxevent"`, `"shop"."log"`, `"app"."outbox"`, "message billing", "message outbox"} {
		want.routes[i].Source, want.routes[i].Poison = source, sink.PolicyHalt
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(plan{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTables_ShortForm: without tables, postgres.table and route are the whole of it.
func TestTables_ShortForm(t *testing.T) {
	t.Parallel()
	c := defaultConfig()
	c.Postgres.Table, c.Route.Topic = "my.outbox", "x"
	got := c.plan(func(key, problem, _ string) { t.Errorf("%s: %s", key, problem) })
	want := plan{
		tables:   []cdc.Mapping{{Table: cdc.Table{Schema: "my", Name: "outbox"}}},
		messages: []cdc.MessageMapping{{Prefix: "outbox", Emitted: true, Route: 1}},
		routes: []sink.Route{{Topic: "x", Source: `"my"."outbox"`, Poison: sink.PolicyHalt},
			{Topic: "x", Source: "message outbox", Poison: sink.PolicyHalt}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(plan{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTables_RoundTrip loads what relay config prints and gets the same tables back.
func TestTables_RoundTrip(t *testing.T) {
	t.Parallel()
	first := loadText(t, manyTables)
	var printed bytes.Buffer
	if err := first.print(&printed); err != nil {
		t.Fatal(err)
	}
	second := loadText(t, strings.Replace(printed.String(), `table: "outbox.events"`, `# table`, 1))
	if len(second.mistakes) > 0 {
		t.Fatalf("%v\n%s", second.mistakes, printed.String())
	}
	if diff := cmp.Diff([2]any{first.config.Tables, first.config.Messages}, [2]any{second.config.Tables, second.config.Messages}); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

// TestTables_Mistakes: all mistakes are told at once, each with its place.
func TestTables_Mistakes(t *testing.T) {
	t.Parallel()
	l := loadText(t, `
postgres: {url: "postgres://relay@127.0.0.1/shop", table: outbox.events}
sink: {type: stdout}
tables:
  - name: nodot
    preset: debesium
    colums: {id: x}
  - name: public.a
    columns: {id: id, payloud: body}
    topic: "x.{aggregate_type}"
    additional: "a:body"
    additional_missing: maybe
  - name: public.a
    columns: {payload: 7}
    topics: [7]
    tombstone_on_empty: "yes"
    cloudevents: structured
  - name: public.b
    columns: {id: id, aggregate_id: agg}
    topic: "{raw}"
  - name: public.c
    preset: debezium
    topic: x
    topic_regex: "("
    cloudevents: binary
    additional: "type:header:id"
  - text
messages:
  - {prefix: "", topic: x}
  - {prefix: app}
  - {prefix: app, topic: "{aggregate_type}", cloudevents: binary}
`, "RELAY_TABLES=x")
	err := l.check()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"postgres.table", "tables (env RELAY_TABLES): a list of mappings can only stand in the file",
		"tables[0].name: \"nodot\"", "tables[0].preset: \"debesium\"", "tables[0].colums (", "tables[1].columns.payloud: is not a field",
		"tables[1].topic: {aggregate_type} is a field that no column fills", "tables[1].additional: ", "tables[1].additional_missing: \"maybe\"", "tables[1].key: nothing is",
		"tables[2].name: \"public.a\" stands twice", "tables[2].columns (", "tables[2].topics (", "tables[2].tombstone_on_empty (", "tables[2].cloudevents: \"structured\"",
		"tables[3].topic: a topic that is nothing but", "tables[4].topic: topic_regex", "tables[4].cloudevents_source: not set", "reserved name id",
		"tables[5] (", "messages[0].prefix: not set", "messages[1].topic: not set", "messages[2].prefix: \"app\" stands twice",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
	for _, text := range []string{"tables: x", "tables: {name: a.b}", "messages: 7", "tables:\n  name: a.b"} {
		if err := loadText(t, text).check("nothing"); err == nil || !strings.Contains(err.Error(), "is not a list of mappings") {
			t.Errorf("%q: %v", text, err)
		}
	}
	var out bytes.Buffer
	if code := testProcess(nil, &out, &out).execute(t.Context(), []string{"config", "--tables", "x"}); code != exitUsage || !strings.Contains(out.String(), "only stand in the file") {
		t.Errorf("exit code %d: %s", code, out.String())
	}
}

// TestTables_Poison: each entry may have a policy of its own.
func TestTables_Poison(t *testing.T) {
	t.Parallel()
	l := loadText(t, `
postgres: {url: "postgres://relay@127.0.0.1/shop"}
sink: {type: stdout}
route: {poison: park}
tables: [{name: outbox.events}, {name: public.other, poison: hold-key}]
messages: [{prefix: billing, topic: billing, poison: halt}]
`)
	if err := l.check(); err != nil {
		t.Fatal(err)
	}
	var got []sink.Policy
	for _, r := range l.config.plan(func(string, string, string) {}).routes {
		got = append(got, r.Poison)
	}
	if diff := cmp.Diff([]sink.Policy{sink.PolicyPark, sink.PolicyHoldKey, sink.PolicyHalt, sink.PolicyPark}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l = loadText(t, `
postgres: {url: "postgres://relay@127.0.0.1/shop"}
sink: {type: stdout}
route: {poison: drop}
tables: [{name: outbox.events, poison: parc}]
`)
	text := fmt.Sprint(l.check())
	for _, want := range []string{`route.poison`, `"drop"`, `tables[0].poison`, `"parc"`} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %s: %s", want, text)
		}
	}
}
