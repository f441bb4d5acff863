package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// configured makes a rig whose relay reads a file: %s in it is the name of the rig's database, to keep the topics of
// tests apart.
func configured(t *testing.T, server *pgserver.Server, text string) (*rig, []string) {
	t.Helper()
	r := newRigWithoutTopic(t, server, testenv.Kafka(t))
	path := t.TempDir() + "/relay.yaml"
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "%s", r.db.Name)), 0o600); err != nil {
		t.Fatal(err)
	}
	return r, []string{"RELAY_CONFIG=" + path, "RELAY_ROUTE_TOPIC=" + r.topic}
}

// shown is a record as a consumer sees it, without its position.
func shown(rec testenv.Record) string {
	var headers []string
	for _, h := range rec.Headers {
		if h.Key != "relay_position" {
			headers = append(headers, h.Key+"="+string(h.Value))
		}
	}
	value := string(rec.Value)
	if rec.Value == nil {
		value = "null"
	}
	return fmt.Sprintf("%s %s %s", rec.Key, value, headers)
}

func (r *rig) records(topic string, n int) []testenv.Record {
	r.t.Helper()
	return testenv.ConsumeN(r.t, r.brokers, topic, n, 30*time.Second)
}

// TestE2E_Debezium reads a table made for Debezium's outbox router, in its default form and with its options, beside
// the native table and events without a table, and compares every record as a consumer sees it.
func TestE2E_Debezium(t *testing.T) {
	for _, major := range []int{14, 15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			r, environ := configured(t, testenv.PostgresMajor(t, major), `
tables:
  - name: outbox.events
  - name: public.outboxevent
    preset: debezium
  - name: public.options
    preset: debezium
    columns: {id: uid}
    id_prefix: "o-"
    topic_regex: '(?<routedByValue>.*)Event'
    topic_replacement: '${routedByValue}-%s'
    additional: "type:header:eventType, type:envelope:kind,aggregateid:envelope,part:partition"
    event_time: createdat
    tombstone_on_empty: true
    cloudevents: binary
    cloudevents_source: /shop
messages:
  - prefix: other.tool
    topic: messages-%s
`)
			r.exec(`create table outboxevent (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb)`)
			r.exec(`create table options (uid bigserial primary key, aggregatetype text, aggregateid text, type text, payload text, createdat timestamp, part int)`)
			user, options, messages := "outbox.event.UserEmail-"+r.db.Name, "Order-"+r.db.Name, "messages-"+r.db.Name
			for topic, partitions := range map[string]int32{user: 2, options: 3, messages: 1, r.topic: 1} {
				testenv.CreateTopic(t, r.brokers, topic, partitions, nil)
			}
			p := r.startStreaming(environ...)
			const id = "01937f00-0000-7000-8000-00000000002a"
			r.exec(`insert into outboxevent values ($1, 'UserEmail-' || $2, '10711', 'UserCreated', '{"email":"a@example.com","n":1.50}')`, id, r.db.Name)
			r.exec(`insert into options (aggregatetype, aggregateid, type, payload, createdat, part) values
				('OrderEvent', '42', 'Made', ' {"a":  1}', '2019-03-24 20:52:59', 2), ('OrderEvent', '42', 'Gone', null, '2019-03-24 20:52:59.5', 2), ('OrderEvent', '42', 'Text', 'plain', null, 1)`)
			r.exec(`select outbox.emit('k:1', 'Order', '7', 'Made', '{"e": 1}', id => $1, occurred_at => '2026-07-10 12:00:00+00')`, id)
			r.exec(`select pg_logical_emit_message(true, 'other.tool', 'hello')`)
			r.exec(`select pg_logical_emit_message(true, 'heartbeat', '8 nothing to publish')`)

			if diff := cmp.Diff([]string{`10711 {"n": 1.50, "email": "a@example.com"} [id=` + id + `]`}, []string{shown(r.records(user, 1)[0])}); diff != "" {
				t.Errorf("default table (-want +got):\n%s", diff)
			}
			var got []string
			var stamps []int64
			for _, rec := range r.records(options, 3) {
				got = append(got, fmt.Sprint(rec.Partition, " ", shown(rec)))
				stamps = append(stamps, rec.Time.UnixMilli())
			}
			ce := func(id, typ string) string {
				return "ce_specversion=1.0 ce_source=/shop ce_id=" + id + " ce_type=" + typ + " ce_subject=42"
			}
			want := []string{
				`1 42 {"payload":"plain","kind":"Text","aggregateid":"42"} [id=o-3 eventType=Text ` + ce("o-3", "Text") + ` content-type=application/json]`,
				`2 42 {"payload": {"a":  1},"kind":"Made","aggregateid":"42"} [id=o-1 eventType=Made ` + ce("o-1", "Made") + ` content-type=application/json]`,
				`2 42 null [id=o-2 eventType=Gone ` + ce("o-2", "Gone") + `]`,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if len(stamps) == 3 && (stamps[1] != 1553460779000 || stamps[2] != 1553460779500 || time.Since(time.UnixMilli(stamps[0])) > time.Minute) {
				t.Errorf("timestamps %v", stamps)
			}
			emitted := `7 {"e": 1} [id=` + id + ` event_key=k:1 event_type=Made aggregate_type=Order occurred_at=2026-07-10T12:00:00.000000Z]`
			if diff := cmp.Diff(emitted, shown(r.records(r.topic, 1)[0])); diff != "" {
				t.Errorf("emitted (-want +got):\n%s", diff)
			}
			rec := r.records(messages, 1)[0]
			position, _ := rec.Header("relay_position")
			if diff := cmp.Diff("other.tool hello [id="+position+"]", shown(rec)); diff != "" {
				t.Errorf("message (-want +got):\n%s", diff)
			}
			r.drained(p, 20*time.Second)
			p.stop()
		})
	}
}

// TestE2E_Forged: what nobody can read halts the relay with a reason that names where it stands, and nothing behind it
// is confirmed.
func TestE2E_Forged(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	p := r.startStreaming()
	ids := r.publish("order-1", 3)
	before := r.flushed()
	r.exec(`select pg_logical_emit_message(true, 'outbox', 'forged')`)
	status := p.awaitState(state.Halted, 20*time.Second)
	if !strings.Contains(status.Reason, "outbox.emit") || status.Hint == "" {
		t.Errorf("status %+v", status)
	}
	r.publish("order-1", 1)
	r.records(r.topic, 3)
	r.mustHave(ids, true)
	throughout(t, 2*time.Second, func() (bool, string) {
		c := r.confirmed()
		return c <= before, fmt.Sprintf("%s is confirmed, the forged message came after %s", c, before)
	})
}
