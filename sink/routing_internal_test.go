package sink

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
)

// made is a record as a consumer sees it.
type made struct {
	Topic, Key, Value string
	Null              bool
	Headers           []string // without id and relay_position
	Millis            int64    // 0: the time of sending
	Partition         int32
}

// make1 routes one event and encodes it.
func make1(tb testing.TB, r Route, e outbox.Committed) (made, string) {
	tb.Helper()
	cfg := DefaultConfig()
	cfg.Routes = []Route{r}
	if err := cfg.Validate(); err != nil {
		tb.Fatal(err)
	}
	s := New(cfg, nil, testSource, nil, silence{})
	if poison := s.encode(&e); poison != nil {
		return made{}, poison.reason
	}
	rt := s.routes[0]
	name, reason, _ := rt.topic(nil, &e)
	if reason != "" {
		return made{}, reason
	}
	m := made{Topic: string(name)}
	if m.Partition, reason = rt.partitionOf(&e, s.rec.key, 3); reason != "" {
		return made{}, reason
	}
	b := (&pool{keep: 1 << 20}).batch("t", 0)
	n := s.rec.size(0)
	if got := b.add(&pool{keep: 1 << 20}, &s.rec, 1, e.CommitTime); got != n {
		tb.Fatalf("size %d, encoded %d", n, got)
	}
	for rec := range b.Records() {
		m.Key, m.Value, m.Null = string(rec.Key), string(rec.Value), rec.Value == nil
		for name, value := range rec.Headers() {
			if string(name) != "id" && string(name) != "relay_position" {
				m.Headers = append(m.Headers, string(name)+"="+string(value))
			}
		}
		if b.timed {
			m.Millis = rec.Time.UnixMilli()
		}
	}
	return m, ""
}

// debezium is the route of Debezium's default table.
func debezium(more string) Route {
	list, err := ParsePlacements(more)
	if err != nil {
		panic(err)
	}
	r := Route{Topic: "outbox.event.{aggregatetype}", Columns: []string{"aggregatetype", "type", "aggregateid", "createdat", "part", "n", "doc", "raw"}, Placements: list}
	return r
}

func text(s string) outbox.Extra { return outbox.Extra{Value: []byte(s), Kind: outbox.KindText} }

// userCreated is a row of that table.
func userCreated(payload string) outbox.Committed {
	e := outbox.Committed{
		ID: []byte("4711"), AggregateID: []byte("10711"), CommitTime: time.UnixMilli(1_700_000_000_123),
		Extra: []outbox.Extra{text("UserEmail"), text("UserCreated"), text("10711"), {Kind: outbox.KindTimestamp}, {Kind: outbox.KindNumber},
			{Value: []byte("-7"), Kind: outbox.KindNumber}, {Value: []byte(`{"a": 1.0}`), Kind: outbox.KindJSON}, {Value: []byte{0xff}, Kind: outbox.KindBytes}},
	}
	if payload != "NULL" {
		e.Payload, e.PayloadKind = []byte(payload), outbox.KindJSON
	}
	return e
}

func TestRoute_Record(t *testing.T) {
	tombstone := func(r Route) Route { r.TombstoneOnEmpty = true; return r }
	timed := func(column string) Route { r := debezium(""); r.EventTime = column; return r }
	with := func(e outbox.Committed, change func(*outbox.Committed)) outbox.Committed { change(&e); return e }
	kind := func(k outbox.Kind, payload string) outbox.Committed {
		return with(userCreated(payload), func(e *outbox.Committed) { e.PayloadKind = k })
	}
	const email = `{"email":"a@example.com"}`
	for _, c := range []struct {
		name  string
		route Route
		event outbox.Committed
		want  made // Topic and Key are the usual ones unless given
	}{
		{"1 aggregate type keeps its case", debezium(""), userCreated(email), made{Value: email}},
		{"2 NULL payload, option off, no envelope", debezium(""), userCreated("NULL"), made{Null: true}},
		{"2 empty payload, option off, no envelope", debezium(""), kind(outbox.KindText, ""), made{}},
		{"2 NULL payload, option off, envelope", debezium("type:envelope"), userCreated("NULL"), made{Value: `{"payload":null,"type":"UserCreated"}`}},
		{"2 NULL payload, option on, header kept", tombstone(debezium("type:header")), userCreated("NULL"), made{Null: true, Headers: []string{"type=UserCreated"}}},
		{"2 empty payload, option on, envelope", tombstone(debezium("type:envelope")), kind(outbox.KindText, ""), made{Null: true}},
		{"3 NULL payload with event time is a tombstone", tombstone(timed("createdat")), userCreated("NULL"), made{Null: true, Millis: 1_700_000_000_123}},
		{"4 timestamp without zone", timed("createdat"), with(userCreated(email), func(e *outbox.Committed) {
			e.Extra[3] = outbox.Extra{Value: []byte("2019-03-24 20:52:59"), Kind: outbox.KindTimestamp}
		}), made{Value: email, Millis: 1553460779000}},
		{"4 timestamp without zone, milliseconds", timed("createdat"), with(userCreated(email), func(e *outbox.Committed) {
			e.Extra[3] = outbox.Extra{Value: []byte("2019-03-24 20:52:59.123"), Kind: outbox.KindTimestamp}
		}), made{Value: email, Millis: 1553460779123}},
		{"timestamp with zone", timed("createdat"), with(userCreated(email), func(e *outbox.Committed) {
			e.Extra[3] = outbox.Extra{Value: []byte("2019-03-24 20:52:59+00"), Kind: outbox.KindTimestamp}
		}), made{Value: email, Millis: 1553460779000}},
		{"infinity is no time", timed("createdat"), with(userCreated(email), func(e *outbox.Committed) {
			e.Extra[3] = outbox.Extra{Value: []byte("infinity"), Kind: outbox.KindTimestamp}
		}), made{Value: email, Millis: 1_700_000_000_123}},
		{"before 1970 is no time for Kafka", timed("createdat"), with(userCreated(email), func(e *outbox.Committed) {
			e.Extra[3] = outbox.Extra{Value: []byte("1969-12-31 23:59:59"), Kind: outbox.KindTimestamp}
		}), made{Value: email, Millis: 1_700_000_000_123}},
		{"milliseconds as a number", timed("part"), with(userCreated(email), func(e *outbox.Committed) { e.Extra[4].Value = []byte("99") }), made{Value: email, Millis: 99}},
		{"5 no placement: type is absent", debezium(""), userCreated(email), made{Value: email}},
		{"5 header", debezium("type:header:eventType"), userCreated(email), made{Value: email, Headers: []string{"eventType=UserCreated"}}},
		{"5 envelope", debezium("type:envelope:eventType"), userCreated(email), made{Value: `{"payload":` + email + `,"eventType":"UserCreated"}`}},
		{"10 spaces after commas, one column in two places", debezium("type:envelope:payloadType, aggregateid:envelope:payloadId,type:header:payloadType"), userCreated(email),
			made{Value: `{"payload":` + email + `,"payloadType":"UserCreated","payloadId":"10711"}`, Headers: []string{"payloadType=UserCreated"}}},
		{"11 column that is not there yet", debezium("createdat:envelope:alias"), with(userCreated(email), func(e *outbox.Committed) { e.Extra[3] = outbox.Extra{} }), made{Value: `{"payload":` + email + `}`}},
		{"13 envelope is real JSON", debezium("type:envelope"), userCreated(`{"fullName":"John Doe"}`), made{Value: `{"payload":{"fullName":"John Doe"},"type":"UserCreated"}`}},
		{"14 empty list among objects", debezium(""), userCreated(`{"fullName":"John Doe","petObjects":[{"type":"dog","colors":[]},{"type":"cat","colors":[{"name":"white"}]}]}`),
			made{Value: `{"fullName":"John Doe","petObjects":[{"type":"dog","colors":[]},{"type":"cat","colors":[{"name":"white"}]}]}`}},
		{"15 empty list", debezium("type:envelope"), userCreated(`{"nested":{"tags":[]}}`), made{Value: `{"payload":{"nested":{"tags":[]}},"type":"UserCreated"}`}},
		{"16 null member", debezium(""), userCreated(`{"heartbeat":1,"email":null}`), made{Value: `{"heartbeat":1,"email":null}`}},
		{"18 objects of different members and a name with a dollar", debezium("type:envelope"), userCreated(`{"test$":[{"code":"100","description":null},{"code":"300"}]}`),
			made{Value: `{"payload":{"test$":[{"code":"100","description":null},{"code":"300"}]},"type":"UserCreated"}`}},
		{"19 three levels", debezium("type:envelope"), userCreated(`{"address":{"floor":{"level":1}},"grades":[{"date":{"$date":1}}]}`),
			made{Value: `{"payload":{"address":{"floor":{"level":1}},"grades":[{"date":{"$date":1}}]},"type":"UserCreated"}`}},
		{"20 nested lists", debezium(""), userCreated(`{"attributes":[{"eans":[{"x":1},{"x":2}]}],"adr":null}`), made{Value: `{"attributes":[{"eans":[{"x":1},{"x":2}]}],"adr":null}`}},
		{"21 text key, bytea value", debezium(""), with(kind(outbox.KindBytes, "value1"), func(e *outbox.Committed) { e.AggregateID = []byte("key1") }), made{Key: "key1", Value: "value1"}},
		{"22 JSON in a text column is JSON once", debezium("type:envelope"), kind(outbox.KindText, ` {"a": 1}`), made{Value: `{"payload": {"a": 1},"type":"UserCreated"}`}},
		{"22 without envelope", debezium(""), kind(outbox.KindText, ` {"a": 1}`), made{Value: ` {"a": 1}`}},
		{"text that is not JSON", debezium("type:envelope"), kind(outbox.KindText, "say \"hi\"\n\\"), made{Value: `{"payload":"say \"hi\"\u000a\\","type":"UserCreated"}`}},
		{"bytes that are not JSON", debezium("type:envelope"), kind(outbox.KindBytes, "\xff\x00"), made{Value: `{"payload":"/wA=","type":"UserCreated"}`}},
		{"bytes that are JSON", debezium("type:envelope"), kind(outbox.KindBytes, "[1]"), made{Value: `{"payload":[1],"type":"UserCreated"}`}},
		{"kinds in the envelope", debezium("n:envelope,doc:envelope,raw:envelope,createdat:envelope"), userCreated("1"),
			made{Value: `{"payload":1,"n":-7,"doc":{"a": 1.0},"raw":"/w==","createdat":null}`}},
		{"P1 top-level list", debezium("type:envelope"), userCreated(`[{"a":1}]`), made{Value: `{"payload":[{"a":1}],"type":"UserCreated"}`}},
		{"P3 digits and lists", debezium("type:envelope"), userCreated(`{"x":0.1234567890123456789,"y":[1,3000000000],"z":[null,null]}`),
			made{Value: `{"payload":{"x":0.1234567890123456789,"y":[1,3000000000],"z":[null,null]},"type":"UserCreated"}`}},
		{"P10 NULL column makes no header", debezium("createdat:header,type:header"), userCreated(email), made{Value: email, Headers: []string{"type=UserCreated"}}},
		{"P11 name that Avro would not take", debezium(""), userCreated(`{"test$":1}`), made{Value: `{"test$":1}`}},
		{"partition", debezium("part:partition"), with(userCreated(email), func(e *outbox.Committed) { e.Extra[4].Value = []byte("2") }), made{Value: email, Partition: 2}},
		{"NULL partition", debezium("part:partition"), userCreated(email), made{Value: email, Partition: partitionOf([]byte("10711"), 3)}},
		{"key column", func() Route { r := debezium(""); r.Key = "type"; return r }(), userCreated(email), made{Value: email, Key: "UserCreated", Partition: partitionOf([]byte("UserCreated"), 3)}},
		{"template of two values", func() Route { r := debezium(""); r.Topic = "{aggregatetype}.v1-{type}"; return r }(), userCreated(email), made{Topic: "UserEmail.v1-UserCreated", Value: email}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, reason := make1(t, c.route, c.event)
			if reason != "" {
				t.Fatal(reason)
			}
			if c.want.Topic == "" {
				c.want.Topic = "outbox.event.UserEmail"
			}
			if c.want.Key == "" {
				c.want.Key = "10711"
			}
			if c.route.Placements == nil || !strings.Contains(c.name, "artition") {
				c.want.Partition = partitionOf([]byte(c.want.Key), 3)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoute_CloudEvents(t *testing.T) {
	r := debezium("")
	r.CloudEvents = &CloudEvents{Source: "/shop", Type: "type", ContentType: "text/plain"}
	e := userCreated(`{"a":1}`)
	e.OccurredAt = []byte("2026-11-30 18:57:22+00")
	e.Headers = []byte(`{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`)
	got, reason := make1(t, r, e)
	if reason != "" {
		t.Fatal(reason)
	}
	want := []string{
		"occurred_at=2026-11-30T18:57:22.000000Z", "traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"ce_specversion=1.0", "ce_source=/shop", "ce_id=4711", "ce_type=UserCreated", "ce_subject=10711",
		"ce_time=2026-11-30T18:57:22.000000Z", "content-type=application/json",
	}
	if diff := cmp.Diff(want, got.Headers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	e.Headers, e.OccurredAt, e.PayloadKind = []byte(`{"content-type":"text/csv"}`), []byte("infinity"), outbox.KindText
	if got, _ = make1(t, r, e); strings.Contains(strings.Join(got.Headers, " "), "ce_time") || strings.Contains(strings.Join(got.Headers, " "), "text/plain") {
		t.Errorf("headers %q", got.Headers)
	}
	e.Headers = []byte(`{"ce_id":"other"}`)
	if _, reason = make1(t, r, e); !strings.Contains(reason, "ce_id") {
		t.Errorf("a row that sets ce_id itself: %q", reason)
	}
	e.Headers, e.Extra[1].Value = nil, nil
	if _, reason = make1(t, r, e); !strings.Contains(reason, "type") {
		t.Errorf("a row without type: %q", reason)
	}
}

// TestRoute_Poison lists events that can never be published.
func TestRoute_Poison(t *testing.T) {
	e := userCreated("{}")
	for name, c := range map[string]struct {
		route Route
		event func(*outbox.Committed)
		want  string
	}{
		"P5 space in the topic":           {debezium(""), func(e *outbox.Committed) { e.Extra[0] = text("Order Created") }, ""},
		"partition that is not there":     {debezium("part:partition"), func(e *outbox.Committed) { e.Extra[4].Value = []byte("3") }, "partition 3"},
		"partition below zero":            {debezium("part:partition"), func(e *outbox.Committed) { e.Extra[4].Value = []byte("-1") }, "not the number"},
		"partition that is no number":     {debezium("type:partition"), func(*outbox.Committed) {}, "not the number"},
		"S16 line break in a header":      {debezium("type:header"), func(e *outbox.Committed) { e.Extra[1] = text("a\r\nb") }, "carriage return"},
		"no aggregate type":               {debezium(""), func(e *outbox.Committed) { e.Extra[0].Value = nil }, "aggregatetype"},
		"F52 NULL key":                    {debezium(""), func(e *outbox.Committed) { e.AggregateID = nil }, "key is empty"},
		"F52 empty key":                   {debezium(""), func(e *outbox.Committed) { e.AggregateID = []byte{} }, "key is empty"},
		"content that nobody can read":    {debezium(""), func(e *outbox.Committed) { e.Unreadable = "it is forged" }, "it is forged"},
		"route that does not exist":       {debezium(""), func(e *outbox.Committed) { e.Route = 1 }, "no route"},
		"S15 column that names the topic": {Route{Topic: "{type}", Columns: []string{"aggregatetype", "type"}, Topics: []string{"a"}}, func(*outbox.Committed) {}, "not allowed"},
	} {
		bad := e
		bad.Extra = append([]outbox.Extra(nil), e.Extra...)
		c.event(&bad)
		got, reason := make1(t, c.route, bad)
		if c.want == "" {
			if problem := checkTopic(got.Topic); problem == "" {
				t.Errorf("%s: topic %q passes", name, got.Topic)
			}
			continue
		}
		if !strings.Contains(reason, c.want) {
			t.Errorf("%s: reason %q, want %q", name, reason, c.want)
		}
	}
}

func TestRoute_Validate(t *testing.T) {
	for name, r := range map[string]Route{
		"unknown placeholder":     {Topic: "x.{nowhere}"},
		"unknown column":          {Topic: "x", Key: "nowhere"},
		"unknown event time":      {Topic: "x", EventTime: "nowhere"},
		"unknown placement":       {Topic: "x", Placements: []Placement{{"nowhere", PlaceHeader, "a"}}},
		"open brace":              {Topic: "x{"},
		"closed brace":            {Topic: "x}"},
		"internal topic":          {Topic: "__x"},
		"bare column":             {Topic: "{a}", Columns: []string{"a"}},
		"reserved header":         {Topic: "x", Columns: []string{"a"}, Placements: []Placement{{"a", PlaceHeader, "relay_position"}}},
		"header with line break":  {Topic: "x", Columns: []string{"a"}, Placements: []Placement{{"a", PlaceHeader, "a\nb"}}},
		"alias twice":             {Topic: "x", Columns: []string{"a", "b"}, Placements: []Placement{{"a", PlaceHeader, "a"}, {"b", PlaceHeader, "a"}}},
		"payload in the envelope": {Topic: "x", Columns: []string{"a"}, Placements: []Placement{{"a", PlaceEnvelope, "payload"}}},
		"two partitions":          {Topic: "x", Columns: []string{"a"}, Placements: []Placement{{"a", PlacePartition, "a"}, {"a", PlacePartition, "a"}}},
		"source missing":          {Topic: "x", CloudEvents: &CloudEvents{}},
		"type missing":            {Topic: "x", CloudEvents: &CloudEvents{Source: "/x", Type: "nowhere"}},
		"regex wrong":             {RouteBy: "aggregate_type", Regex: "(", Replacement: "x"},
		"regex with look-ahead":   {RouteBy: "aggregate_type", Regex: "(?=a)a", Replacement: "x"},
		"group missing":           {RouteBy: "aggregate_type", Regex: "a", Replacement: "x$1"},
		"name missing":            {RouteBy: "aggregate_type", Regex: "(?<a>a)", Replacement: "x${b}"},
		"regex makes all of it":   {RouteBy: "aggregate_type", Regex: "(.*)", Replacement: "$1"},
		"topic wrong":             {Topic: "x", Topics: []string{"a b"}},
	} {
		if err := r.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := debezium("type:header:eventType,part:partition").Validate(); err != nil {
		t.Error(err)
	}
}

func TestRewrite(t *testing.T) {
	for _, c := range []struct {
		expr, repl, value, want string
		matched                 bool
	}{
		{`(?<routedByValue>.*)`, `outbox.event.${routedByValue}`, "UserEmail", "outbox.event.UserEmail", true},
		{`(.*)`, `$1.x`, "a", "a.x", true},
		{`(a)(b)`, `$12`, "ab", "a2", true},
		{`(a)(b)`, `$2-$1-$0`, "ab", "b-a-ab", true},
		{`a`, `\$1\\`, "a", `$1\`, true},
		{`com\.(.*)`, `$1`, "com.User", "User", true},
		{`com\.(.*)`, `x$1`, "org.User", "org.User", false},
		{`com`, `x`, "com.User", "com.User", false},
		{`a|ab`, `x`, "ab", "xb", true},
		{`(a)|(b)`, `x$1$2`, "b", "xb", true},
	} {
		w, err := newRewrite(c.expr, c.repl)
		if err != nil {
			t.Fatal(err)
		}
		if got, matched := w.topic([]byte(c.value)); got != c.want || matched != c.matched {
			t.Errorf("%s -> %s of %q: %q, %t, want %q, %t", c.expr, c.repl, c.value, got, matched, c.want, c.matched)
		}
	}
}

// TestRewrite_Unmatched: a value that the expression does not match is a topic only where the configuration lists it.
func TestRewrite_Unmatched(t *testing.T) {
	r := Route{RouteBy: "aggregatetype", Regex: `com\.(.*)`, Replacement: "x.$1", Columns: []string{"aggregatetype"}, Topics: []string{"listed"}}
	e := userCreated("{}")
	for value, want := range map[string]string{"com.User": "x.User", "listed": "listed", "__consumer_offsets": "", "other": ""} {
		e.Extra = []outbox.Extra{text(value)}
		got, reason := make1(t, r, e)
		if got.Topic != want || (reason == "") != (want != "") {
			t.Errorf("%q: topic %q, %s", value, got.Topic, reason)
		}
	}
}

// TestRoute_Allocations: however much a route places, an event costs no garbage.
func TestRoute_Allocations(t *testing.T) {
	r := debezium("type:header:eventType,type:envelope,doc:envelope,part:partition")
	r.EventTime, r.CloudEvents = "createdat", &CloudEvents{Source: "/shop", Type: "type"}
	e := userCreated(`{"a":1}`)
	e.OccurredAt, e.Headers = []byte("2026-11-30 18:57:22+00"), []byte(`{"traceparent":"x"}`)
	e.Extra[3].Value, e.Extra[4].Value = []byte("2019-03-24 20:52:59"), []byte("2")
	cfg := DefaultConfig()
	cfg.Routes = []Route{r}
	s := New(cfg, nil, testSource, nil, silence{})
	n := testing.AllocsPerRun(100, func() {
		if poison := s.encode(&e); poison != nil {
			t.Fatal(poison)
		}
		s.name, _, _ = s.routes[0].topic(s.name[:0], &e)
		if _, reason := s.routes[0].partitionOf(&e, s.rec.key, 3); reason != "" {
			t.Fatal(reason)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations an event", n)
	}
}

func TestParsePlacements(t *testing.T) {
	got, err := ParsePlacements(" a:header , b : Envelope:x ,c:partition")
	want := []Placement{{"a", PlaceHeader, "a"}, {"b", PlaceEnvelope, "x"}, {"c", PlacePartition, "c"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{",", "a", "a:", ":header", "a:body", "a:header:", "a:header:b:c", "a:header,,b:header"} {
		if _, err := ParsePlacements(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestBatch_EventTimes: records with times of their own keep them through a split, in batches apart from the others.
func TestBatch_EventTimes(t *testing.T) {
	r := debezium("")
	r.EventTime = "createdat"
	cfg := DefaultConfig()
	cfg.Routes = []Route{r}
	s := New(cfg, nil, testSource, nil, silence{})
	p := &pool{keep: 1 << 20}
	b := p.batch("t", 0)
	stamps := []string{"2026-01-02 00:00:00.5", "2020-01-01 00:00:00", "2026-01-02 00:00:00.5", "2030-01-01 00:00:00", "2021-05-05 05:05:05.005"}
	var want []int64
	for i, at := range stamps {
		e := userCreated("{}")
		e.Extra[3] = outbox.Extra{Value: []byte(at), Kind: outbox.KindTimestamp}
		if poison := s.encode(&e); poison != nil {
			t.Fatal(poison)
		}
		b.add(p, &s.rec, uint64(i+1), e.CommitTime)
		want = append(want, s.rec.time)
	}
	times := func(bs ...*Batch) (out []int64) {
		for _, b := range bs {
			latest := int64(0)
			for rec := range b.Records() {
				out = append(out, rec.Time.UnixMilli())
				latest = max(latest, rec.Time.UnixMilli())
			}
			if _, got := b.times(); got != latest {
				t.Errorf("latest %d, want %d", got, latest)
			}
		}
		return out
	}
	if diff := cmp.Diff(want, times(b)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	first, second := b.split(p, 2)
	if diff := cmp.Diff(want, times(first, second)); diff != "" {
		t.Errorf("split (-want +got):\n%s", diff)
	}
	cfg.Routes = append(cfg.Routes, debezium(""))
	s = New(cfg, nil, testSource, nil, silence{})
	l := &lane{sink: s, topic: &topic{name: "t"}, limit: 1 << 20}
	for i := range 4 {
		e := userCreated("{}")
		e.Route = i / 2
		if poison := s.encode(&e); poison != nil {
			t.Fatal(poison)
		}
		l.add(&s.rec, uint64(i+1), e.CommitTime)
	}
	if len(l.queue) != 2 || !l.queue[0].timed || l.queue[1].timed || l.queue[0].Len() != 2 {
		t.Errorf("%d batches", len(l.queue))
	}
}

// FuzzPlacements looks for a list that is read and does not hold what it says.
func FuzzPlacements(f *testing.F) {
	f.Add("type:envelope:payloadType, aggregateid:envelope:payloadId,type:header:payloadType")
	f.Add("a:partition")
	f.Fuzz(func(t *testing.T, list string) {
		got, err := ParsePlacements(list)
		if err != nil {
			return
		}
		if strings.TrimSpace(list) != "" && len(got) != strings.Count(list, ",")+1 {
			t.Errorf("%d placements", len(got))
		}
		for _, p := range got {
			if p.Column == "" || p.Alias == "" || !strings.Contains(list, p.Column) || !strings.Contains(list, p.Alias) {
				t.Errorf("placement %+v", p)
			}
		}
	})
}

// FuzzRewrite looks for a replacement that panics or loses a value that is not matched.
func FuzzRewrite(f *testing.F) {
	f.Add(`(?<routedByValue>.*)`, `outbox.event.${routedByValue}`, "UserEmail")
	f.Add(`(a)(b)`, `$12\$${`, "ab")
	f.Fuzz(func(t *testing.T, expr, repl, value string) {
		w, err := newRewrite(expr, repl)
		if err != nil {
			return
		}
		if got, matched := w.topic([]byte(value)); !matched && got != value {
			t.Errorf("%q became %q without a match", value, got)
		}
	})
}

// FuzzEnvelope: an envelope of a payload that is text is one JSON object, whatever the text.
func FuzzEnvelope(f *testing.F) {
	f.Add("{}", "x")
	f.Add("\"\\\x00", "\x1f\"")
	f.Fuzz(func(t *testing.T, payload, value string) {
		e := outbox.Committed{Payload: []byte(payload), PayloadKind: outbox.KindText, Extra: []outbox.Extra{text(value)}}
		got := appendEnvelope(nil, &e, []member{newMember(ref{name: "a"}, "a")})
		if !json.Valid(got) {
			t.Errorf("not JSON: %s", got)
		}
	})
}
