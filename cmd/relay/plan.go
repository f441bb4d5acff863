package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/sink"
)

// plan is what the configured tables and messages mean to the stream and to the sink: an event of tables[i] or
// messages[i] has the index of its route.
type plan struct {
	tables   []cdc.Mapping
	messages []cdc.MessageMapping
	routes   []sink.Route
}

// plan translates tables and messages. Every mistake is added; a plan with mistakes is of no use.
func (c *Config) plan(add addMistake) plan {
	var p plan
	if len(c.Tables) == 0 {
		if table, err := cdc.ParseTable(c.Postgres.Table); err == nil { // else postgres.table is told
			p.tables = append(p.tables, cdc.Mapping{Table: table, Route: 0})
		}
		p.routes = append(p.routes, c.nativeRoute())
	}
	seen := map[string]bool{}
	for i := range c.Tables {
		t := &c.Tables[i]
		b := &tableBuilder{config: t, defaults: c.nativeRoute(), bad: func(key, problem, hint string) {
			add(fmt.Sprintf("tables[%d].%s", i, key), problem, hint)
		}}
		if seen[t.Name] {
			b.bad("name", fmt.Sprintf("%s stands twice", quoted(t.Name)), "write one entry a table")
		}
		seen[t.Name] = true
		m, r := b.build()
		m.Route = len(p.routes)
		p.tables, p.routes = append(p.tables, m), append(p.routes, r)
	}
	c.planMessages(&p, add)
	c.planPoison(&p, add)
	c.planCopies(&p, add)
	return p
}

// planPoison says what becomes of events that cannot be published, and what dead letters call the places where they are
// from.
func (c *Config) planPoison(p *plan, add addMistake) {
	check := func(key, policy string) {
		if !slices.Contains(sink.Policies(), sink.Policy(policy)) {
			add(key, fmt.Sprintf("%s is not a choice", quoted(policy)), "use halt, park or hold-key")
		}
	}
	check("route.poison", cmp.Or(c.Route.Poison, string(sink.PolicyHalt)))
	set := func(route int, source, key, own string) {
		if own != "" {
			check(key, own)
		}
		policy := sink.Policy(cmp.Or(own, c.Route.Poison, string(sink.PolicyHalt)))
		p.routes[route].Source, p.routes[route].Poison = source, policy
	}
	for i, m := range p.tables {
		own := ""
		if i < len(c.Tables) {
			own = c.Tables[i].Poison
		}
		set(m.Route, m.Table.String(), fmt.Sprintf("tables[%d].poison", i), own)
	}
	for i, m := range p.messages {
		own := ""
		if i < len(c.Messages) {
			own = c.Messages[i].Poison
		}
		set(m.Route, "message "+m.Prefix, fmt.Sprintf("messages[%d].poison", i), own)
	}
}

// tableNames lists the tables for people.
func (c *Config) tableNames() string {
	if len(c.Tables) == 0 {
		return c.Postgres.Table
	}
	names := make([]string, len(c.Tables))
	for i, t := range c.Tables {
		names[i] = t.Name
	}
	return strings.Join(names, ", ")
}

// nativeRoute is the route of events that have all fields of the native table.
func (c *Config) nativeRoute() sink.Route {
	return sink.Route{Topic: c.Route.Topic, Topics: c.Route.Topics, Compression: c.Route.Compression}
}

// planMessages adds the messages. Those of outbox.emit are there without being named.
func (c *Config) planMessages(p *plan, add addMistake) {
	seen := map[string]bool{}
	for i, m := range c.Messages {
		bad := func(key, problem, hint string) { add(fmt.Sprintf("messages[%d].%s", i, key), problem, hint) }
		emitted := m.Prefix == cdc.EmitPrefix
		r := sink.Route{Topic: m.Topic, Topics: m.Topics}
		switch {
		case m.Prefix == "":
			bad("prefix", "not set", "name the prefix that the messages are written with")
		case seen[m.Prefix]:
			bad("prefix", fmt.Sprintf("%s stands twice", quoted(m.Prefix)), "write one entry a prefix")
		case emitted:
			if r.Topic == "" {
				r.Topic = c.Route.Topic
			}
			if len(r.Topics) == 0 {
				r.Topics = c.Route.Topics
			}
		case m.Topic == "":
			bad("topic", "not set", "name the topic for messages of this prefix")
		case strings.Contains(m.Topic, "{"):
			bad("topic", fmt.Sprintf("%s has a placeholder", quoted(m.Topic)), "a message of another's has no fields: name a topic")
		case m.CloudEvents != "" && m.CloudEvents != "false":
			bad("cloudevents", "messages of another's have no type", "leave it out")
		}
		seen[m.Prefix] = true
		r.Compression, r.MaxRecordBytes = recordLimits(c.nativeRoute(), m.Compression, m.MaxRecordBytes, bad)
		if emitted {
			r.CloudEvents = cloudEvents(m.CloudEvents, m.CloudEventsSource, "", m.ContentType, bad)
		}
		if r.Topic != "" {
			routeMistakes(r, bad)
		}
		p.messages = append(p.messages, cdc.MessageMapping{Prefix: m.Prefix, Emitted: emitted, Route: len(p.routes)})
		p.routes = append(p.routes, r)
	}
	if !seen[cdc.EmitPrefix] {
		p.messages = append(p.messages, cdc.MessageMapping{Prefix: cdc.EmitPrefix, Emitted: true, Route: len(p.routes)})
		p.routes = append(p.routes, c.nativeRoute())
	}
}

// tableBuilder translates one entry of tables.
type tableBuilder struct {
	config   *TableConfig
	defaults sink.Route
	bad      addMistake

	mapping cdc.Mapping
	route   sink.Route
	mapped  map[string]bool // fields that a column fills
}

// fieldNames are the fields of an event as columns names them.
func fieldNames() map[string]cdc.Field {
	return map[string]cdc.Field{
		"id": cdc.FieldID, "tenant": cdc.FieldTenant, "event_key": cdc.FieldEventKey, "aggregate_type": cdc.FieldAggregateType,
		"aggregate_id": cdc.FieldAggregateID, "event_type": cdc.FieldEventType, "payload": cdc.FieldPayload,
		"payload_bytes": cdc.FieldPayloadBytes, "headers": cdc.FieldHeaders, "topic": cdc.FieldTopic,
		"partition_key": cdc.FieldPartitionKey, "occurred_at": cdc.FieldOccurredAt,
	}
}

func (b *tableBuilder) build() (cdc.Mapping, sink.Route) {
	t := b.config
	schema, name, ok := strings.Cut(t.Name, ".")
	if !ok || !isIdentifier(schema) || !isIdentifier(name) || strings.Contains(name, ".") {
		b.bad("name", fmt.Sprintf("%s is not a table name", quoted(t.Name)), "write schema and table, unquoted: outbox.events")
	}
	b.mapping.Table = cdc.Table{Schema: schema, Name: name}
	b.columns()
	if t.IDPrefix != nil {
		b.mapping.IDPrefix, b.mapping.BareID = *t.IDPrefix, *t.IDPrefix == ""
	}
	b.topic()
	b.placements()
	b.route.Key, b.route.EventTime, b.route.TombstoneOnEmpty = b.extra(t.Key), b.extra(t.EventTime), t.TombstoneOnEmpty
	if t.Key == "" && !b.mapped["aggregate_id"] && !b.mapped["partition_key"] {
		b.bad("key", "nothing is the record's key", "map columns.aggregate_id, or name a column in key")
	}
	typ := t.CloudEventsType
	if typ == "" && t.Preset == "debezium" && !b.mapped["event_type"] {
		typ = "type"
	}
	if b.route.CloudEvents = cloudEvents(t.CloudEvents, t.CloudEventsSource, typ, t.ContentType, b.bad); b.route.CloudEvents != nil {
		if typ == "" && !b.mapped["event_type"] {
			b.bad("cloudevents_type", "no column is the event type", "map columns.event_type, or name a column here")
		}
		b.extra(typ)
	}
	b.route.Compression, b.route.MaxRecordBytes = recordLimits(b.defaults, t.Compression, t.MaxRecordBytes, b.bad)
	b.route.Columns = b.mapping.Extra
	routeMistakes(b.route, b.bad)
	return b.mapping, b.route
}

// columns maps the fields.
func (b *tableBuilder) columns() {
	t := b.config
	var base []cdc.Column
	switch t.Preset {
	case "native":
		base = cdc.NativeColumns()
	case "debezium":
		base = cdc.DebeziumColumns()
	case "":
		if len(t.Columns) == 0 {
			base = cdc.NativeColumns()
		}
	default:
		b.bad("preset", fmt.Sprintf("%s is not a preset", quoted(t.Preset)), "use native or debezium, or leave it out and map columns")
	}
	fields := fieldNames()
	for _, name := range slices.Sorted(maps.Keys(t.Columns)) {
		field, known := fields[name]
		column := t.Columns[name]
		switch {
		case !known:
			b.bad("columns."+name, "is not a field of an event", suggest(name, slices.Sorted(maps.Keys(fields)), "the fields are "+strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
			continue
		case column != "" && !isIdentifier(column):
			b.bad("columns."+name, fmt.Sprintf("%s is not a column name", quoted(column)), "write the column's name, unquoted")
		}
		base = slices.DeleteFunc(base, func(c cdc.Column) bool { return c.Field == field })
		if column != "" {
			base = append(base, cdc.Column{Field: field, Name: column})
		}
	}
	b.mapped = map[string]bool{}
	for name, field := range fields {
		b.mapped[name] = slices.ContainsFunc(base, func(c cdc.Column) bool { return c.Field == field })
	}
	if !b.mapped["id"] {
		b.bad("columns.id", "no column is the event's ID", "name the column that identifies a row, for ever")
	}
	if len(t.Columns) > 0 || t.Preset == "debezium" {
		b.mapping.Columns = base // else the native table, whose types are known
	}
}

// extra has a column read, unless the name is that of a field, and returns the name.
func (b *tableBuilder) extra(name string) string {
	switch {
	case name == "" || isRouteField(name):
	case !isIdentifier(name):
		b.bad("columns", fmt.Sprintf("%s is not a column name", quoted(name)), "write the column's name, unquoted")
	case !slices.Contains(b.mapping.Extra, name):
		b.mapping.Extra = append(b.mapping.Extra, name)
	}
	return name
}

// isRouteField reports whether a route takes the name for that of a field.
func isRouteField(name string) bool {
	return slices.Contains([]string{"aggregate_type", "aggregate_id", "event_type", "event_key", "tenant"}, name)
}

// topic says what makes the topic.
func (b *tableBuilder) topic() {
	t, r := b.config, &b.route
	debezium := t.Preset == "debezium"
	r.Topic, r.Topics = t.Topic, t.Topics
	if len(r.Topics) == 0 {
		r.Topics = b.defaults.Topics
	}
	by := t.RouteBy
	if by == "" && debezium {
		by = "aggregatetype"
	}
	switch {
	case t.TopicRegex != "" || t.TopicReplacement != "":
		r.RouteBy, r.Regex, r.Replacement = by, t.TopicRegex, t.TopicReplacement
		if r.Regex == "" {
			r.Regex = "(?<routedByValue>.*)"
		}
		if r.Replacement == "" {
			r.Replacement = "outbox.event.${routedByValue}"
		}
		if t.Topic != "" {
			b.bad("topic", "topic_regex or topic_replacement makes the topic too", "keep one of them")
		}
		if by == "" {
			b.bad("route_by", "not set", "name the column that topic_regex looks at")
		}
		b.extra(by)
	case r.Topic == "" && by != "":
		r.Topic = "outbox.event.{" + by + "}"
	case r.Topic == "":
		r.Topic = b.defaults.Topic
	case t.RouteBy != "":
		b.bad("route_by", "topic says what makes the topic", "leave out one of them")
	}
	for rest := r.Topic; r.Regex == ""; {
		_, after, open := strings.Cut(rest, "{")
		name, tail, closed := strings.Cut(after, "}")
		if !open || !closed || name == "" {
			break // sink names what is wrong
		}
		b.used("topic", name)
		b.extra(name)
		rest = tail
	}
}

// used tells of a field that a route uses and no column fills.
func (b *tableBuilder) used(key, name string) {
	if isRouteField(name) && !b.mapped[name] {
		b.bad(key, fmt.Sprintf("{%s} is a field that no column fills", name), "map columns."+name+", or use a column's own name")
	}
}

func (b *tableBuilder) placements() {
	t := b.config
	list, err := sink.ParsePlacements(t.Additional)
	for _, e := range parts(err) {
		b.bad("additional", e.Error(), "write column:header|envelope|partition[:alias], separated by commas")
	}
	if t.Partition != "" {
		list = append(list, sink.Placement{Column: t.Partition, Place: sink.PlacePartition})
	}
	for _, p := range list {
		b.extra(p.Column)
	}
	b.route.Placements = list
	switch t.AdditionalMissing {
	case "", "error":
	case "ignore":
		b.mapping.IgnoreMissing = true
	default:
		b.bad("additional_missing", fmt.Sprintf("%s is not a choice", quoted(t.AdditionalMissing)), "use error or ignore")
	}
}

// cloudEvents translates the keys about CloudEvents.
func cloudEvents(mode, source, typ, content string, bad addMistake) *sink.CloudEvents {
	switch mode {
	case "", "false":
		return nil
	case "binary":
		if source == "" {
			bad("cloudevents_source", "not set", "name the source of the events, a URI such as /shop/orders")
		}
		return &sink.CloudEvents{Source: source, Type: typ, ContentType: content}
	}
	bad("cloudevents", fmt.Sprintf("%s is not a choice", quoted(mode)), "use false or binary")
	return nil
}

// routeMistakes tells what the sink finds wrong with a route.
func routeMistakes(r sink.Route, bad addMistake) {
	for _, e := range parts(r.Validate()) {
		bad("topic", e.Error(), "see docs/tables.md")
	}
}

// parts takes joined errors apart.
func parts(err error) []error {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &joined):
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, parts(e)...)
		}
		return out
	}
	return []error{err}
}
