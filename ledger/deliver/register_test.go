package deliver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// Records that cannot be handled have an outcome each, and hold up nobody.
func TestWorker_badRecords(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 2)
	r.post(2, 2)
	r.exec("INSERT INTO users VALUES (90)")
	base := func(id int) *kgo.Record { return r.published(id, 1) }
	broken := func(value string) *kgo.Record {
		rec := with(base(1), "event_key", "k:"+fmt.Sprint(len(value)))
		rec.Value = []byte(value)
		return rec
	}
	tombstone := with(base(1), "event_key", "k:tombstone")
	tombstone.Value = nil
	r.rules = strings.Replace(r.rules, "rules:\n", "unknown_types: park\nrules:\n", 1)
	for class, rec := range map[string]*kgo.Record{
		"foreign: nothing":                 {Topic: r.topic, Value: []byte("hello")},
		"foreign: no type":                 without(base(1), "event_type"),
		"foreign: no key and no id":        without(without(base(1), "event_key"), "id"),
		"foreign: time":                    with(base(1), "occurred_at", "yesterday"),
		"foreign: long type":               with(base(1), "event_type", strings.Repeat("x", 65)),
		"unknown_type: ":                   with(base(1), "event_type", "Other"),
		"key_invalid: long":                with(base(1), "event_key", strings.Repeat("k", 256)),
		"key_invalid: not UTF-8":           with(base(1), "event_key", "k\xff"),
		"key_invalid: NUL":                 with(base(1), "event_key", "k\x00"),
		"key_invalid: tenant":              with(base(1), "tenant", strings.Repeat("t", 65)),
		"payload_invalid: cut":             broken(`{"post_id": 1`),
		"payload_invalid: two":             broken(`{"post_id": 1}{}`),
		"payload_invalid: not UTF-8":       broken("\"\xff\xff\""),
		"payload_invalid: empty":           broken(""),
		"query_refused: no number":         broken(`{"post_id": "seven"}`),
		"query_refused: NUL in the values": broken(`{"post_id": "\u0000 "}`),
	} {
		rec.Topic = r.topic
		if class == "foreign: long type" {
			continue // no rule can name it, so it is of unknown type first
		}
		r.produce(rec)
	}
	r.produce(tombstone) // a rule that finds nobody: registered, for nobody
	r.produce(r.published(2, 1))
	w := r.run(nil)
	r.eventually("all records", func() bool {
		s := w.Stats()
		return s.Records[deliver.RecordParked] == 15 && s.Records[deliver.RecordRegistered] == 2
	})
	r.eventually("the good one", r.settled(4))
	if got := one[string](r, "SELECT string_agg(class || ' ' || n, ', ' ORDER BY class) FROM (SELECT class, count(*) AS n FROM ledger.parked_records GROUP BY class) x"); got != "foreign 4, key_invalid 4, payload_invalid 4, query_refused 2, unknown_type 1" {
		t.Errorf("parked: %s", got)
	}
	if got := one[string](r, "SELECT convert_from(record_value, 'UTF8') FROM ledger.parked_records WHERE record_value = 'hello'"); got != "hello" {
		t.Errorf("parked value %q", got)
	}
	if got := one[int](r, "SELECT count(*) FROM ledger.parked_records WHERE reason ~ 'seven'"); got != 0 {
		t.Error("a reason quotes the payload")
	}
	if got := w.Stats().Parked[deliver.ClassPayload]; got != 4 {
		t.Errorf("%d counted as %s, want 4", got, deliver.ClassPayload)
	}
	r.run(func(c *deliver.Config) { c.Kafka.Group += "-again" })
	r.eventually("nothing is parked twice", func() bool {
		return r.committed("g-"+r.topic+"-again") == 17 && one[int](r, "SELECT count(*) FROM ledger.parked_records") == 15
	})
}

// A record without an event key, as of a table without that column, is named by its id.
func TestWorker_noEventKey(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	rec := without(r.published(1, 1), "event_key")
	r.produce(rec, rec)
	r.run(nil)
	r.eventually("the delivery", r.settled(2))
	if got := one[string](r, "SELECT DISTINCT event_key FROM ledger.notification_dispatches"); got != "00000000-0000-7000-8000-000000001001" {
		t.Errorf("event key %q", got)
	}
}

func TestWorker_policies(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.rules = strings.Replace(r.rules, "rules:\n", "unknown_types: ignore\nforeign_records: ignore\nrules:\n", 1)
	r.produce(with(r.published(1, 1), "event_type", "Other"), &kgo.Record{Topic: r.topic, Value: []byte("x")})
	w := r.run(nil)
	r.eventually("both", func() bool { return w.Stats().Records[deliver.RecordIgnored] == 2 })
	if n := one[int](r, "SELECT count(*) FROM ledger.parked_records"); n != 0 {
		t.Errorf("%d parked", n)
	}
}

// One key for two kinds of event: the second would be taken for a repetition of the first.
func TestWorker_keyReused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	r.rules += `
  other:
    event_type: Other
    recipients: SELECT 'user:1'
    eligible: SELECT true, ''
    channels: {database: {type: other}, test: {}}
`
	rec := r.published(1, 1)
	other := with(rec, "event_type", "Other")
	other.Key = rec.Key
	r.produce(rec)
	w := r.run(nil)
	r.eventually("the first", r.settled(2))
	r.produce(other)
	r.eventually("the second is parked", func() bool { return w.Stats().Parked[deliver.ClassKeyReused] == 1 })
}

func TestWorker_recipients(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		query, more string
		class       deliver.Class
		rows        int
	}{
		"NULL and empty":     {"SELECT * FROM (VALUES ('user:1'), (NULL), (''), ('user:2')) v", "", deliver.ClassRecipients, 4},
		"too long":           {"SELECT repeat('u', 256) UNION ALL SELECT 'user:1'", "", deliver.ClassRecipients, 2},
		"twice":              {"SELECT 'user:1' UNION ALL SELECT 'user:1'", "", "", 2},
		"twice, in chunks":   {"SELECT 'user:' || i % 7 FROM generate_series(1, 50) i", "", "", 14},
		"none":               {"SELECT 'user:1' WHERE false", "", "", 0},
		"too many":           {"SELECT 'user:' || i FROM generate_series(1, 11) i", "max_recipients: 10", deliver.ClassTooMany, 0},
		"just enough":        {"SELECT 'user:' || i FROM generate_series(1, 10) i; -- all", "max_recipients: 10", "", 20},
		"a function raises":  {"SELECT 'user:' || 1 / (length(:event_key) - length(:event_key))", "", deliver.ClassQuery, 0},
		"not a time":         {"SELECT 'user:1'", "not_before: tomorrow", deliver.ClassTemplate, 0},
		"field is not there": {"SELECT 'user:1'", "not_before: '{{ .payload.when }}'", deliver.ClassTemplate, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.rules = quick + fmt.Sprintf(`
rules:
  r:
    event_type: ScheduledPostPublished
    recipients: %q
    eligible: SELECT true, ''
    %s
    channels: {database: {type: x}, test: {}}
`, c.query, c.more)
			r.produce(r.published(1, 1))
			w := r.run(func(c *deliver.Config) { c.Chunk = 3 })
			r.eventually("the record", func() bool {
				s := w.Stats()
				return s.Records[deliver.RecordRegistered]+s.Records[deliver.RecordParked] == 1
			})
			r.eventually("deliveries", r.settled(c.rows))
			if c.class != "" && w.Stats().Parked[c.class] != 1 || c.class == "" && w.Stats().Records[deliver.RecordParked] != 0 {
				t.Errorf("parked %v, want %q", w.Stats().Parked, c.class)
			}
		})
	}
}

// Values are bound: what looks like SQL in them is text.
func TestWorker_injection(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.rules = quick + `
rules:
  r:
    event_type: ScheduledPostPublished
    recipients: SELECT 'user:' || md5(:aggregate_id) WHERE :aggregate_id = $x$'; DROP TABLE users; --$x$ AND ':event_key' <> :event_key
    eligible: SELECT :recipient_type = 'user' AND :recipient_id = md5(:aggregate_id) AND :channel <> '', ''
    channels: {database: {type: "{{ .event.aggregate_id }}"}, test: {}}
`
	rec := r.published(1, 1)
	rec.Key = []byte("'; DROP TABLE users; --")
	r.produce(rec)
	r.run(nil)
	r.eventually("deliveries", r.settled(2))
	if got := one[string](r, "SELECT type FROM ledger.notifications"); got != "'; DROP TABLE users; --" {
		t.Errorf("type %q", got)
	}
}

// Registering is resumed: what was registered before a crash is known, and the rest follows.
func TestWorker_manyRecipients(t *testing.T) {
	t.Parallel()
	r := setup(t)
	n := 5000
	if testing.Short() {
		n = 500
	}
	r.rules = quick + fmt.Sprintf(`
rules:
  r:
    event_type: ScheduledPostPublished
    recipients: SELECT 'user:' || i FROM generate_series(1, %d) i
    eligible: SELECT true, ''
    not_before: 2999-01-01T00:00:00Z
    channels: {database: {type: x}}
`, n)
	// The first run ends in the middle, by a refusal of the database.
	r.exec("CREATE FUNCTION public.stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.recipient = 'user:" + fmt.Sprint(n/2) + "' THEN RAISE EXCEPTION 'stop' USING ERRCODE = '53000'; END IF; RETURN NEW; END $$")
	r.exec("CREATE TRIGGER stop BEFORE INSERT ON ledger.notification_dispatches FOR EACH ROW EXECUTE FUNCTION public.stop()")
	r.produce(r.published(1, 1))
	w := r.run(func(c *deliver.Config) { c.Chunk = 100 })
	r.eventually("the first half", func() bool { return w.Stats().Stalled != "" })
	half := one[int](r, "SELECT count(*) FROM ledger.notification_dispatches")
	if half == 0 || half >= n {
		t.Fatalf("%d registered before the refusal", half)
	}
	r.exec("DROP TRIGGER stop ON ledger.notification_dispatches")
	r.eventually("the rest", func() bool { return one[int](r, "SELECT count(*) FROM ledger.notification_dispatches") == n })
	r.eventually("the counts", func() bool { return w.Stats().Registered["database"][ledger.Registered] == uint64(n) })
	if got := one[string](r, "SELECT min(due_at)::date::text FROM ledger.notification_dispatches"); got != "2999-01-01" {
		t.Errorf("due %s", got)
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	r := setupWithoutKafka(t)
	r.post(1, 3)
	r.post(2, 3)
	r.exec("INSERT INTO posts VALUES (3, 1, 'later', now() + interval '1 day', NULL), (4, 1, 'deleted', now() - interval '1 hour', now())")
	w := r.run(nil)
	for run := range 3 {
		list, err := w.Reconcile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%+v", list)
		want := "[{Rule:scheduled-post-published Events:2 Registration:{Inserted:12 Known:0 Expired:0} Refused:0}]"
		if run > 0 {
			want = "[{Rule:scheduled-post-published Events:2 Registration:{Inserted:0 Known:12 Expired:0} Refused:0}]"
		}
		if got != want {
			t.Errorf("run %d: %s, want %s", run+1, got, want)
		}
		r.eventually("deliveries", r.settled(12))
	}
	if n, most := r.send.sent(); n != 6 || most != 1 || r.notifications() != 6 {
		t.Errorf("%d effects, %d of one, %d notifications", n, most, r.notifications())
	}
}

// role names a role of the test's own.
func (r *rig) role() string { return "r_" + r.app.Config().ConnConfig.Database }

func TestCheck(t *testing.T) {
	t.Parallel()
	r := setupWithoutKafka(t)
	if err := r.worker(nil).Check(t.Context()); err != nil {
		t.Errorf("the example: %v", err)
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"column":      {"p.title\n", "p.titel\n", `rule "scheduled-post-published", eligible, line `},
		"two columns": {"SELECT 'user:' || f.user_id", "SELECT 'user:' || f.user_id, 1", "recipients: returns 2 columns"},
		"no text":     {"SELECT 'user:' || f.user_id", "SELECT f.user_id", "recipients: its column is not text"},
		"no boolean":  {"SELECT coalesce(found.reason = '', false), ", "SELECT ", "eligible: its first column is not boolean"},
		"discover":    {" AS occurred_at", " AS occured_at", "did you mean occurred_at?"},
	} {
		t.Run(name, func(t *testing.T) {
			broken := *r
			broken.t = t
			broken.rules = strings.Replace(r.rules, c.from, c.to, 1)
			if err := broken.worker(nil).Check(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	// Who may not read a table is told now, and not at the first event.
	r.exec("CREATE ROLE " + r.role() + " LOGIN")
	defer r.exec("DROP ROLE " + r.role())
	conf := r.app.Config()
	conf.ConnConfig.User = r.role()
	app, err := pgxpool.NewWithConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	w, err := deliver.New(r.config(), r.parse(), app, r.ledger)
	if err != nil {
		t.Fatal(err)
	}
	err = w.Check(t.Context())
	app.Close()
	if err == nil || strings.Count(err.Error(), "42501") != 3 {
		t.Errorf("without rights: %v, want three queries refused", err)
	}
	// The place is that in the file.
	broken := *r
	broken.rules = strings.Replace(r.rules, "u.may_read", "u.may_rad", 1)
	err = broken.worker(nil).Check(t.Context())
	q, ok := errors.AsType[*deliver.QueryError](err)
	if !ok {
		t.Fatal(err)
	}
	line := strings.Split(broken.rules, "\n")[q.Line-1]
	if at := strings.Index(line, "u.may_rad"); at != q.Column-1 {
		t.Errorf("line %d column %d is %q from column %d", q.Line, q.Column, line, at+1)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	r := setupWithoutKafka(t)
	r.post(42, 2)
	r.exec("UPDATE users SET may_read = false WHERE id = 2")
	e := &deliver.Event{
		Key: "scheduled-post-published:42", Type: "ScheduledPostPublished", OccurredAt: publishedAt,
		Payload: fmt.Appendf(nil, `{"post_id": 42, "publish_at": %q}`, publishedAt.Format(time.RFC3339)),
	}
	var got []string
	err := r.worker(nil).Explain(t.Context(), e, func(x deliver.Explanation) bool {
		line := fmt.Sprint(x.Recipient, " ", x.Eligible, " ", x.Reason)
		for _, c := range x.Channels {
			line += fmt.Sprint(" ", c.Channel, c.Fields, c.Error)
		}
		got = append(got, line)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `user:1 true  databasemap[data:{"post_id":"42","title":"Post 42"} type:scheduled-post-published] testmap[line:Post 42 is out]
user:2 false permission revoked`
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
	if n := one[int](r, "SELECT count(*) FROM ledger.events"); n != 0 {
		t.Error("explaining wrote into the ledger")
	}
}

// Templates see columns as psql writes them, JSON as JSON, and NULL as nothing.
func TestExplain_values(t *testing.T) {
	t.Parallel()
	r := setupWithoutKafka(t)
	r.rules = quick + `
rules:
  r:
    event_type: T
    recipients: SELECT 'user:a%3Ab'
    eligible: |
      SELECT true, '', 12.50 AS n, NULL::text AS nothing, '{"x": [1.10, null]}'::jsonb AS j, true AS yes, '2026-01-31'::date AS d
    channels:
      database: {type: "{{ .data.n }}|{{ .data.nothing }}|{{ index .data.j.x 0 }}|{{ index .data.j.x 1 }}|{{ if .data.yes }}yes{{ end }}|{{ .data.d }}|{{ .payload.total }}|{{ .payload.none }}|{{ .recipient.id }}|{{ json .payload }}"}
`
	e := &deliver.Event{Key: "k:1", Type: "T", OccurredAt: time.Now(), Payload: []byte(`{"total": 10.00, "none": null}`)}
	var got string
	if err := r.worker(nil).Explain(t.Context(), e, func(x deliver.Explanation) bool {
		got = x.Channels[0].Fields["type"] + x.Channels[0].Error
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if want := `12.50||1.10||yes|2026-01-31|10.00||a:b|{"none":"","total":10.00}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A field that is not there is told, and makes the delivery dead rather than wrong.
func TestWorker_templateFails(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	r.rules = strings.Replace(r.rules, "{{ .data.title }}\"\n", "{{ .data.titel }}\"\n", 1)
	r.produce(r.published(1, 1))
	r.run(nil)
	r.eventually("the end", r.settled(2))
	if got := one[string](r, "SELECT string_agg(state, ' ' ORDER BY channel) || ' ' || bool_or(reason ~ 'titel') FROM ledger.notification_dispatches"); got != "dead skipped true" {
		t.Errorf("rows: %s", got)
	}
}
