package outbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/outbox"
)

// limit is one input for both sides: Event.Validate and the table's constraints.
type limit struct {
	name   string
	change func(e *outbox.Event)
	// refused names the constraint that refuses it, or the SQLSTATE where the column's type does; empty: it is fine.
	refused string
	// problems are what Validate says, without the text.
	problems []outbox.FieldError
}

func limits() []limit {
	type fe = outbox.FieldError
	const chars = "characters"
	header := func(name, value string) func(*outbox.Event) {
		return func(e *outbox.Event) { e.Headers = map[string]string{name: value} }
	}
	payload := func(s string) func(*outbox.Event) {
		return func(e *outbox.Event) { e.Payload = []byte(s) }
	}
	list := []limit{
		{"plain", func(e *outbox.Event) {}, "", nil},
		{"tombstone", func(e *outbox.Event) { e.Payload = nil }, "", nil},
		{"empty bytes", func(e *outbox.Event) { e.Payload, e.PayloadBytes = nil, []byte{} }, "", nil},
		{"both payloads", func(e *outbox.Event) { e.PayloadBytes = []byte{1} }, "events_payload_single",
			[]fe{{Field: "payload_bytes", Problem: outbox.Exclusive}}},
		{"both payloads, one of no bytes", func(e *outbox.Event) { e.PayloadBytes = []byte{} }, "events_payload_single",
			[]fe{{Field: "payload_bytes", Problem: outbox.Exclusive}}},

		{"headers of no entry", func(e *outbox.Event) { e.Headers = map[string]string{} }, "", nil},
		{"header", header("traceparent", "00-01"), "", nil},
		{"header with an empty value", header("a", ""), "", nil},
		{"header with an odd value", header("a", "\t\v\f\x7f\u0085\"\\\u2028<&>é"), "", nil},
		{"header value with CR", header("a", "b\rc"), "events_headers_valid", []fe{{Field: "headers", Header: "a", Problem: outbox.HasLineBreak}}},
		{"header value with LF", header("a", "\n"), "events_headers_valid", []fe{{Field: "headers", Header: "a", Problem: outbox.HasLineBreak}}},
		{"header without a name", header("", "v"), "events_headers_valid", []fe{{Field: "headers", Problem: outbox.NoName}}},
		{"header name of 256 bytes", header(strings.Repeat("é", 128), "v"), "", nil},
		{"header name of 257 bytes", header(strings.Repeat("é", 128)+"a", "v"), "events_headers_valid",
			[]fe{{Field: "headers", Header: strings.Repeat("é", 32), Problem: outbox.TooLong, Length: 257, Limit: 256, Unit: "bytes"}}},
		{"header name with CR", header("a\rb", "v"), "events_headers_valid", []fe{{Field: "headers", Header: "a\rb", Problem: outbox.BadName}}},
		{"header name with LF", header("a\n", "v"), "events_headers_valid", []fe{{Field: "headers", Header: "a\n", Problem: outbox.BadName}}},
		{"header name with NUL", header("a\x00", "v"), "22P05", []fe{{Field: "headers", Header: "a\x00", Problem: outbox.HasNUL}}},
		{"header value with NUL", header("a", "\x00"), "22P05", []fe{{Field: "headers", Header: "a", Problem: outbox.HasNUL}}},
		{"header name near a reserved one", header("event-key", "v"), "", nil},
		{"header name with a letter that folds to k", header("event_\u212aey", "v"), "", nil},
		{"header name with a letter that folds to i", header("\u0131d", "v"), "", nil},
		{"headers of 16384 bytes", header("a", strings.Repeat("x", 16383)), "", nil},
		{"headers of 16385 bytes", header("a", strings.Repeat("x", 16384)), "events_headers_valid",
			[]fe{{Field: "headers", Problem: outbox.TooLong, Length: 16385, Limit: 16384, Unit: "bytes"}}},
		{"headers of 16385 bytes in few characters", header("a", strings.Repeat("é", 8192)), "events_headers_valid",
			[]fe{{Field: "headers", Problem: outbox.TooLong, Length: 16385, Limit: 16384, Unit: "bytes"}}},

		{"topic", func(e *outbox.Event) { e.Topic = "Orders_v1.eu-west" }, "", nil},
		{"topic of 249", func(e *outbox.Event) { e.Topic = strings.Repeat("t", 249) }, "", nil},
		{"topic of 250", func(e *outbox.Event) { e.Topic = strings.Repeat("t", 250) }, "events_topic_valid",
			[]fe{{Field: "topic", Problem: outbox.TooLong, Length: 250, Limit: 249, Unit: chars}}},

		{"occurred at", func(e *outbox.Event) { e.OccurredAt = time.Date(2026, 11, 30, 18, 57, 22, 123456000, time.UTC) }, "", nil},
		{"first year", func(e *outbox.Event) { e.OccurredAt = time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC) }, "", nil},
		{"year 0", func(e *outbox.Event) { e.OccurredAt = time.Date(0, 12, 31, 23, 59, 59, 0, time.UTC) }, "events_occurred_at_range",
			[]fe{{Field: "occurred_at", Problem: outbox.BadYear}}},
		{"last moment", func(e *outbox.Event) { e.OccurredAt = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC) }, "", nil},
		{"year 10000", func(e *outbox.Event) { e.OccurredAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "events_occurred_at_range",
			[]fe{{Field: "occurred_at", Problem: outbox.BadYear}}},
		{"year 10000 somewhere", func(e *outbox.Event) {
			e.OccurredAt = time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600))
		}, "events_occurred_at_range", []fe{{Field: "occurred_at", Problem: outbox.BadYear}}},
	}
	for _, s := range []string{".", "..", "__consumer_offsets", "../x", "a b", "é", "a\n"} {
		list = append(list, limit{"topic " + s, func(e *outbox.Event) { e.Topic = s }, "events_topic_valid",
			[]fe{{Field: "topic", Problem: outbox.BadName}}})
	}
	for _, s := range []string{"...", "_x", "a__"} {
		list = append(list, limit{"topic " + s, func(e *outbox.Event) { e.Topic = s }, "", nil})
	}
	for _, s := range []string{"id", "event_key", "event_type", "aggregate_type", "occurred_at", "tenant", "relay_position", "relay_replay"} {
		for _, s := range []string{s, strings.ToUpper(s), strings.ToUpper(s[:1]) + s[1:]} {
			list = append(list, limit{"header " + s, header(s, "v"), "events_headers_valid", []fe{{Field: "headers", Header: s, Problem: outbox.Reserved}}})
		}
	}
	for _, s := range []string{".", "..", "...", "__x", "Order_v1.eu-west", "0"} {
		list = append(list, limit{"aggregate_type " + s, func(e *outbox.Event) { e.AggregateType = s }, "", nil})
	}
	for _, s := range []string{" ", "Order Line", "order/line", "order:1", "a\n", "\n", "a\rb", "é", "\u212a", "a\u0301", "{a}", "@", "[", "`", "a\t"} {
		list = append(list, limit{"aggregate_type " + s, func(e *outbox.Event) { e.AggregateType = s }, "events_aggregate_type_characters",
			[]fe{{Field: "aggregate_type", Problem: outbox.BadCharacter}}})
	}
	for _, s := range []string{`0`, `"a"`, `null`, ` [1, 2] `, "\t{}\r\n", `{"a":1,"a":2}`, `1e400`, `-0.0`, `"\u0000"`, `"\ud800"`, `"` + "\u2028é😀" + `"`} {
		list = append(list, limit{"payload " + s, payload(s), "", nil})
	}
	for _, s := range []string{``, ` `, `{`, `01`, `.5`, `1.`, `+1`, `NaN`, `'a'`, `{"a":}`, `[1,]`, `{} {}`, `"\x"`, `"\u12"`, "\"\t\"", "\ufeff{}", "\u00a01", "\f1"} {
		list = append(list, limit{"payload " + s, payload(s), "22P02", []fe{{Field: "payload", Problem: outbox.NotJSON}}})
	}
	for _, s := range []string{"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\""} {
		list = append(list, limit{"payload that is not UTF-8", payload(s), "22021", []fe{{Field: "payload", Problem: outbox.NotUTF8}}})
	}

	const (
		anyText = iota
		oneLine
		name // the characters of a topic's name
	)
	for _, f := range []struct {
		column   string
		min, max int
		kind     int
		set      func(e *outbox.Event, s string)
	}{
		{"tenant", 0, 64, oneLine, func(e *outbox.Event, s string) { e.Tenant = s }},
		{"event_key", 1, 255, oneLine, func(e *outbox.Event, s string) { e.EventKey = s }},
		{"aggregate_type", 1, 64, name, func(e *outbox.Event, s string) { e.AggregateType = s }},
		{"aggregate_id", 1, 255, anyText, func(e *outbox.Event, s string) { e.AggregateID = s }},
		{"event_type", 1, 64, oneLine, func(e *outbox.Event, s string) { e.EventType = s }},
		{"partition_key", 0, 255, anyText, func(e *outbox.Event, s string) { e.PartitionKey = s }}, // '' in SQL is refused, and not sent by Go
	} {
		add := func(name, value, refused string, problems ...fe) {
			list = append(list, limit{f.column + " " + name, func(e *outbox.Event) { f.set(e, value) }, refused, problems})
		}
		constraint := "events_" + f.column + "_length"
		letter := "😀"
		if f.kind == name {
			letter = "a"
		}
		add("at its longest", strings.Repeat(letter, f.max), "")
		add("too long", strings.Repeat(letter, f.max+1), constraint, fe{Field: f.column, Problem: outbox.TooLong, Length: f.max + 1, Limit: f.max, Unit: chars})
		if f.min == 0 {
			add("empty", "", "")
		} else {
			add("empty", "", constraint, fe{Field: f.column, Problem: outbox.Empty, Limit: f.max, Unit: chars})
		}
		if f.kind == name {
			add("with NUL", "a\x00", "22021", fe{Field: f.column, Problem: outbox.BadCharacter})
			add("not UTF-8", "a\xff", "22021", fe{Field: f.column, Problem: outbox.BadCharacter})
			continue
		}
		add("with NUL", "a\x00", "22021", fe{Field: f.column, Problem: outbox.HasNUL})
		add("not UTF-8", "a\xff", "22021", fe{Field: f.column, Problem: outbox.NotUTF8})
		add("of blanks", " ", "")
		add("with other controls", "\t\v\f\x7f\u0085\u2028", "")
		for _, s := range []string{"a\rb", "a\n"} {
			if f.kind == oneLine {
				add("with a line break", s, "events_"+f.column+"_one_line", fe{Field: f.column, Problem: outbox.HasLineBreak})
			} else {
				add("with a line break", s, "")
			}
		}
	}
	return list
}

func TestEvent_Validate(t *testing.T) {
	t.Parallel()
	for _, tt := range limits() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := placed()
			tt.change(&e)
			if diff := cmp.Diff(tt.problems, problems(e.Validate())); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// problems lists the *FieldError in err's tree.
func problems(err error) []outbox.FieldError {
	if err == nil {
		return nil
	}
	if e, ok := err.(*outbox.FieldError); ok {
		return []outbox.FieldError{*e}
	}
	var list []outbox.FieldError
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			list = append(list, problems(err)...)
		}
	case interface{ Unwrap() error }:
		list = problems(e.Unwrap())
	}
	return list
}

// The constraints must take and refuse the same events, by each way but Write, which would check first. publish and
// emit look at some columns themselves, so only a plain INSERT asks every constraint.
func TestEvent_Validate_asTable(t *testing.T) {
	t.Parallel()
	const named = `(tenant => $1, event_key => $2, aggregate_type => $3, aggregate_id => $4, event_type => $5, payload => $6::text::json,
payload_bytes => $7, headers => $8, topic => $9, partition_key => $10, occurred_at => $11)`
	for _, way := range []struct{ name, sql string }{
		{"insert", `INSERT INTO outbox.events (tenant, event_key, aggregate_type, aggregate_id, event_type, payload, payload_bytes, headers, topic,
partition_key, occurred_at) VALUES ($1, $2, $3, $4, $5, $6::text::json, $7, $8, $9, $10, coalesce($11, now()))`},
		{"publish", "SELECT outbox.publish" + named},
		{"emit", "SELECT outbox.emit" + named},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, newOutbox(t))
			for _, tt := range limits() {
				e := placed()
				tt.change(&e)
				var refused string
				err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { return send(t, tx, way.sql, &e) })
				if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
					if refused = pg.Code; pg.ConstraintName != "" {
						refused = pg.ConstraintName
					}
				} else if err != nil {
					t.Fatalf("%s: %v", tt.name, err)
				}
				if refused != tt.refused {
					t.Errorf("%s: the server says %q (%v), want %q", tt.name, refused, err, tt.refused)
				}
			}
		})
	}
}

// send sends the event's values as they are; what Go cannot tell from NULL is NULL.
func send(tb testing.TB, tx pgx.Tx, sql string, e *outbox.Event) error {
	null := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	var at any
	if !e.OccurredAt.IsZero() {
		at = e.OccurredAt
	}
	var payload any
	if e.Payload != nil {
		payload = string(e.Payload)
	}
	_, err := tx.Exec(tb.Context(), sql,
		e.Tenant, e.EventKey, e.AggregateType, e.AggregateID, e.EventType, payload, e.PayloadBytes, e.Headers, null(e.Topic), null(e.PartitionKey), at)
	return err
}

// What only SQL can express has no Event to compare with.
func TestTable_refuses(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	for _, tt := range []struct{ argument, constraint string }{
		{`headers => '[]'`, "events_headers_valid"},
		{`headers => '"a"'`, "events_headers_valid"},
		{`headers => 'null'`, "events_headers_valid"},
		{`headers => '{"a": 1}'`, "events_headers_valid"},
		{`headers => '{"a": null}'`, "events_headers_valid"},
		{`headers => '{"a": {"b": "c"}}'`, "events_headers_valid"},
		{`headers => '{"a": ["b"]}'`, "events_headers_valid"},
		{`topic => ''`, "events_topic_valid"},
		{`partition_key => ''`, "events_partition_key_length"},
		{`occurred_at => 'infinity'`, "events_occurred_at_range"},
		{`occurred_at => '-infinity'`, "events_occurred_at_range"},
	} {
		_, err := conn.Exec(t.Context(), "SELECT outbox.publish('k', 't', 'i', 'e', "+tt.argument+")")
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.ConstraintName != tt.constraint {
			t.Errorf("%s: got %v, want constraint %s", tt.argument, err, tt.constraint)
		}
	}
}

// A constraint cannot say which of the headers is at fault; publish does, and never shows a value.
func TestPublish_namesHeader(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	for _, tt := range []struct{ headers, message string }{
		{`["secret"]`, `headers is not a JSON object`},
		{`{"a": "fine", "bb": ["secret"]}`, `header "bb" is not a string`},
		{`{"": "secret"}`, `header "" has an empty name`},
		{`{"` + strings.Repeat("é", 129) + `": "secret"}`, `header "` + strings.Repeat("é", 64) + `" has a name of more than 256 bytes`},
		{`{"a\nb": "secret"}`, `header "a\nb" has a carriage return or line feed in its name`},
		{`{"a": "fine", "bb": "secret\r"}`, `header "bb" has a carriage return or line feed in its value`},
		{`{"Event_Key": "secret"}`, `header "Event_Key" has a name that the relay uses itself`},
		{`{"a": "` + strings.Repeat("secret", 3000) + `"}`, `headers has more than 16384 bytes of names and values`},
	} {
		_, err := conn.Exec(t.Context(), "SELECT outbox.publish('k', 't', 'i', 'e', headers => $1::text::jsonb)", tt.headers)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok {
			t.Errorf("%.40s: got %v, want an error of the server", tt.headers, err)
			continue
		}
		if pg.Code != "23514" || pg.ConstraintName != "events_headers_valid" || pg.SchemaName != "outbox" || pg.TableName != "events" || pg.Message != tt.message {
			t.Errorf("%.40s: got %s, constraint %s of %s.%s: %s\nwant %s", tt.headers, pg.Code, pg.ConstraintName, pg.SchemaName, pg.TableName, pg.Message, tt.message)
		}
		if pg.Hint == "" || strings.Contains(pg.Message+pg.Detail+pg.Hint+pg.Where, "secret") {
			t.Errorf("%.40s: message %q, detail %q, hint %q, where %q", tt.headers, pg.Message, pg.Detail, pg.Hint, pg.Where)
		}
	}
}

func TestEvent_Validate_all(t *testing.T) {
	t.Parallel()
	e := outbox.Event{
		Tenant: strings.Repeat("t", 70), Payload: []byte("secret"), PayloadBytes: []byte{1}, Topic: "__x",
		Headers: map[string]string{"b": "\x00", "": "v", "id": "v", "c": "secret\n"},
	}
	err := e.Validate()
	want := `tenant is too long: 70 characters, limit 64
event_key is empty: 0 characters, limit 255
aggregate_type is empty: 0 characters, limit 64
aggregate_id is empty: 0 characters, limit 255
event_type is empty: 0 characters, limit 64
topic is not an allowed name
payload is not JSON
payload_bytes excludes the other payload
headers holds an empty name
headers "b" holds a NUL character
headers "c" holds a carriage return or line feed
headers "id" is a name that the relay uses itself`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestMarshal(t *testing.T) {
	t.Parallel()
	got, err := outbox.Marshal(map[string]any{"a": "<b> & c", "n": 1})
	if want := `{"a":"<b> & c","n":1}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	if _, err := outbox.Marshal(func() {}); err == nil {
		t.Error("a function was marshalled")
	}
}
