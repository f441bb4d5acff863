package cdc

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

const testSource = "00112233aabbccdd"

// emittedContent builds what outbox.emit writes; a nil field is NULL.
func emittedContent(version byte, fields ...[]byte) []byte {
	out := []byte{version}
	for _, f := range fields {
		if f == nil {
			out = binary.BigEndian.AppendUint32(out, 0xffffffff)
			continue
		}
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(f))), f...)
	}
	return out
}

func goodFields() [][]byte {
	return [][]byte{
		[]byte(uuidBytes), {}, []byte("k:1"), []byte("Order"), []byte("42"), []byte("Made"), []byte(`{"n": 1.50}`), nil,
		[]byte(`{"a": "b"}`), nil, nil, wireMessage{}.u64(837_000_000_123_456),
	}
}

func decodeEmitted(content []byte) *outbox.Committed {
	c := newChunk()
	d := &messageDecoder{source: testSource, mappings: []MessageMapping{{Prefix: EmitPrefix, Emitted: true, Route: 3}}}
	m := logicalMessage{transactional: true, prefix: []byte(EmitPrefix), content: content}
	d.add(c, d.find(m.prefix), m, outbox.Position{Incarnation: 1, LSN: 2, Ordinal: 3})
	return &c.events[0]
}

func TestMessageDecoder_Emitted(t *testing.T) {
	ev := decodeEmitted(emittedContent(1, goodFields()...))
	if ev.Unreadable != "" {
		t.Fatal(ev.Unreadable)
	}
	for what, pair := range map[string][2]string{
		"id":       {string(ev.ID), "01937f00-0000-7000-8000-00000000002a"},
		"key":      {string(ev.EventKey), "k:1"},
		"payload":  {string(ev.Payload), `{"n": 1.50}`},
		"headers":  {string(ev.Headers), `{"a": "b"}`},
		"occurred": {string(ev.OccurredAt), "2026-07-10 12:00:00.123456+00"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, want %q", what, pair[0], pair[1])
		}
	}
	if ev.Route != 3 || ev.PayloadKind != outbox.KindJSON || ev.Topic != nil || ev.PartitionKey != nil || ev.Tenant == nil {
		t.Errorf("event %+v", ev)
	}
}

// TestMessageDecoder_Forged: what outbox.emit would not write is an event that says so, and nothing of it is used.
func TestMessageDecoder_Forged(t *testing.T) {
	change := func(i int, v []byte) []byte {
		f := goodFields()
		f[i] = v
		return emittedContent(1, f...)
	}
	for name, content := range map[string][]byte{
		"empty":             {},
		"text":              []byte("hello"),
		"version 2":         emittedContent(2, goodFields()...),
		"a field too few":   emittedContent(1, goodFields()[:11]...),
		"a field too many":  emittedContent(1, append(goodFields(), nil)...),
		"cut":               emittedContent(1, goodFields()...)[:60],
		"no ID":             change(0, nil),
		"short ID":          change(0, []byte("x")),
		"short time":        change(11, []byte("1234")),
		"two payloads":      change(7, []byte("x")),
		"length too large":  append([]byte{1}, 0x7f, 0xff, 0xff, 0xff),
		"length below NULL": append([]byte{1}, 0xff, 0xff, 0xff, 0xfe),
	} {
		ev := decodeEmitted(content)
		if ev.Unreadable == "" || ev.Payload != nil || ev.EventKey != nil {
			t.Errorf("%s: event %+v", name, ev)
		}
		if want := testSource + "-00000001-0000000000000002-00000003"; string(ev.ID) != want {
			t.Errorf("%s: ID %q, want its position", name, ev.ID)
		}
	}
}

// FuzzEmitted: whatever somebody writes under outbox.emit's prefix, no panic, and what is read is what was written.
func FuzzEmitted(f *testing.F) {
	f.Add(emittedContent(1, goodFields()...))
	f.Add([]byte{1, 0, 0, 0, 16})
	f.Fuzz(func(t *testing.T, content []byte) {
		ev := decodeEmitted(content)
		if len(ev.ID) == 0 {
			t.Fatal("an event without ID")
		}
		if ev.Unreadable != "" {
			return
		}
		if content[0] != emitVersion || !bytes.Contains(content, ev.Payload) || !bytes.Contains(content, ev.EventKey) {
			t.Errorf("event %+v", ev)
		}
	})
}

// FuzzMappedRow feeds rows of a mapped table in both forms: no panic, and no value that was not sent.
func FuzzMappedRow(f *testing.F) {
	m := &Mapping{
		Table: Table{"public", "t"}, IDPrefix: "t-", Extra: []string{"flag", "n", "at", "raw"},
		Columns: []Column{{FieldID, "id", false}, {FieldPayload, "raw", false}, {FieldOccurredAt, "at", false}},
	}
	rel := relation{id: 1, schema: "public", name: "t", columns: []relationColumn{{"id", oidInt8}, {"flag", oidBool}, {"n", oidInt2}, {"at", oidTimestamp}, {"raw", oidBytea}}}
	l, err := newLayout(rel, m, typeMap{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(wireMessage{}.value('b', "\x00\x00\x00\x00\x00\x00\x00\x07").value('b', "\x01").value('b', "\xff\xff").value('b', string(wireMessage{}.u64(5))).value('b', "raw")))
	f.Add([]byte(wireMessage{}.value('t', "7").value('t', "f").value('t', "-1").value('t', "2026-11-30 18:57:22").value('t', `\x726177`)))
	f.Fuzz(func(t *testing.T, tuple []byte) {
		c := newChunk()
		if err := c.add(l, insert{columns: 5, tuple: tuple}, outbox.Position{}); err != nil {
			if len(c.events) != 0 {
				t.Error("an event of a row that cannot be read")
			}
			return
		}
		ev := &c.events[0]
		if len(ev.Extra) != 4 || ev.ID != nil && !bytes.HasPrefix(ev.ID, []byte("t-")) {
			t.Errorf("event %+v", ev)
		}
		if v := ev.Extra[0].Value; v != nil && string(v) != "true" && string(v) != "false" {
			t.Errorf("flag is %q", v)
		}
	})
}
