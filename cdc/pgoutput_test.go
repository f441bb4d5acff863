package cdc

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
)

// wireMessage builds pgoutput messages by hand.
type wireMessage []byte

func (m wireMessage) u8(v byte) wireMessage    { return append(m, v) }
func (m wireMessage) u16(v uint16) wireMessage { return binary.BigEndian.AppendUint16(m, v) }
func (m wireMessage) u32(v uint32) wireMessage { return binary.BigEndian.AppendUint32(m, v) }
func (m wireMessage) u64(v uint64) wireMessage { return binary.BigEndian.AppendUint64(m, v) }
func (m wireMessage) str(s string) wireMessage { return append(append(m, s...), 0) }
func (m wireMessage) value(kind byte, s string) wireMessage {
	return append(m.u8(kind).u32(uint32(len(s))), s...)
}

func beginBody() wireMessage {
	return wireMessage{}.u64(0x16B374D848).u64(837_000_000_123_456).u32(77)
}

func commitBody() wireMessage {
	return wireMessage{}.u8(0).u64(0x16B374D848).u64(0x16B374D880).u64(837_000_000_123_456)
}

func relationBody() wireMessage {
	m := wireMessage{}.u32(4711).str("outbox").str("events").u8('d').u16(uint16(len(nativeColumns)))
	for _, c := range nativeColumns {
		m = m.u8(0).str(c.name).u32(c.types[0]).u32(0xffffffff)
	}
	return m
}

// native is the mapping of the table of migrations/outbox.
func native() *Mapping { return &Mapping{Table: Table{"outbox", "events"}} }

const uuidBytes = "\x01\x93\x7f\x00\x00\x00\x70\x00\x80\x00\x00\x00\x00\x00\x00\x2a"

func insertBody() wireMessage {
	m := wireMessage{}.u32(4711).u8('N').u16(uint16(len(nativeColumns)))
	m = m.value('b', uuidBytes).value('b', "").value('b', "k:1").value('b', "Order").value('b', "42").value('b', "Made")
	m = m.value('b', ` {"n": 1.50}`).u8('n').value('b', "\x01{\"a\": \"b\"}").u8('n').u8('n')
	return m.value('b', string(wireMessage{}.u64(837_000_000_123_456)))
}

func messageBody() wireMessage {
	return append(wireMessage{}.u8(1).u64(0x16B374D840).str("outbox").u32(7), "content"...)
}

func TestDecode(t *testing.T) {
	b, err := decodeBegin(beginBody())
	if err != nil || b.commitLSN != 0x16B374D848 || b.xid != 77 || !b.commitTime.Equal(time.Date(2026, 7, 10, 12, 0, 0, 123456000, time.UTC)) {
		t.Errorf("begin %+v, %v", b, err)
	}
	c, err := decodeCommit(commitBody())
	if err != nil || c.commitLSN != 0x16B374D848 || c.endLSN != 0x16B374D880 {
		t.Errorf("commit %+v, %v", c, err)
	}
	rel, err := decodeRelation(relationBody())
	if err != nil || rel.id != 4711 || rel.schema != "outbox" || rel.name != "events" || len(rel.columns) != len(nativeColumns) || rel.columns[6].name != "payload" {
		t.Errorf("relation %+v, %v", rel, err)
	}
	layout, err := newLayout(rel, native(), typeMap{})
	if err != nil {
		t.Fatal(err)
	}
	ins, err := decodeInsert(insertBody())
	if err != nil || ins.relation != 4711 || ins.columns != len(nativeColumns) {
		t.Fatalf("insert %+v, %v", ins, err)
	}
	ch := newChunk()
	if err := ch.add(layout, ins, outbox.Position{LSN: 1, Ordinal: 1}); err != nil {
		t.Fatal(err)
	}
	e := ch.events[0]
	for _, f := range []struct{ name, got, want string }{
		{"id", string(e.ID), "01937f00-0000-7000-8000-00000000002a"},
		{"event key", string(e.EventKey), "k:1"},
		{"payload", string(e.Payload), ` {"n": 1.50}`},
		{"headers", string(e.Headers), `{"a": "b"}`},
		{"occurred at", string(e.OccurredAt), "2026-07-10 12:00:00.123456+00"},
	} {
		if f.got != f.want {
			t.Errorf("%s is %q, want %q", f.name, f.got, f.want)
		}
	}
	if e.Tenant == nil || e.Topic != nil || e.PartitionKey != nil {
		t.Errorf("empty and NULL are mixed up: tenant %v, topic %v, partition key %v", e.Tenant, e.Topic, e.PartitionKey)
	}
}

// TestDecode_Truncated cuts every message at every byte.
func TestDecode_Truncated(t *testing.T) {
	layout, err := newLayout(must(decodeRelation(relationBody())), native(), typeMap{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		whole  wireMessage
		decode func([]byte) error
	}{
		"begin":    {beginBody(), func(b []byte) error { _, err := decodeBegin(b); return err }},
		"commit":   {commitBody(), func(b []byte) error { _, err := decodeCommit(b); return err }},
		"relation": {relationBody(), func(b []byte) error { _, err := decodeRelation(b); return err }},
		"message":  {messageBody(), func(b []byte) error { _, err := decodeMessage(b); return err }},
		"insert": {insertBody(), func(b []byte) error {
			ins, err := decodeInsert(b)
			if err != nil {
				return err
			}
			ch := newChunk()
			if err := ch.add(layout, ins, outbox.Position{}); err != nil {
				if len(ch.events) != 0 {
					t.Errorf("a broken row left an event behind")
				}
				return err
			}
			return nil
		}},
	} {
		if err := c.decode(c.whole); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for n := range c.whole {
			if err := c.decode(c.whole[:n]); !errors.Is(err, errTruncated) {
				t.Errorf("%s cut at %d of %d: %v", name, n, len(c.whole), err)
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestNewLayout_Mismatch(t *testing.T) {
	for name, change := range map[string]func(*relation){
		"required column gone": func(r *relation) { r.columns[3].name = "kind" },
		"topic renamed":        func(r *relation) { r.columns[9].name = "subject" },
		"tenant renamed":       func(r *relation) { r.columns[1].name = "customer" },
		"type does not fit":    func(r *relation) { r.columns[0].oid = 142 },
	} {
		rel := must(decodeRelation(relationBody()))
		change(&rel)
		_, err := newLayout(rel, native(), typeMap{})
		if e := state.Of(err); e == nil || e.State != state.TableMismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
	rel := must(decodeRelation(relationBody()))
	rel.columns = append([]relationColumn{{"later", 25}}, rel.columns...)
	rel.columns = append(rel.columns[:10], rel.columns[11:]...) // topic, an optional one
	m := native()
	m.Columns = NativeColumns()
	m.Columns[9].Optional = true
	if _, err := newLayout(rel, m, typeMap{}); err != nil {
		t.Errorf("a column more and an optional one less: %v", err)
	}
}

func TestHarmless(t *testing.T) {
	for _, kind := range []byte("OYUDTAcE") {
		if !harmless(kind) {
			t.Errorf("kind %q ends the stream", kind)
		}
	}
	for _, kind := range []byte("SbPKrp?\x00") { // stream start and two-phase kinds would publish what may abort
		if harmless(kind) {
			t.Errorf("kind %q is skipped", kind)
		}
	}
}

// FuzzMessage feeds a whole reader: whatever the server sends, no panic and no allocation out of proportion.
func FuzzMessage(f *testing.F) {
	for _, m := range []wireMessage{
		append(wireMessage{'B'}, beginBody()...), append(wireMessage{'C'}, commitBody()...),
		append(wireMessage{'R'}, relationBody()...), append(wireMessage{'I'}, insertBody()...),
		append(wireMessage{'M'}, messageBody()...), {'A'}, {},
	} {
		f.Add([]byte(m), true)
	}
	for _, c := range goldenCases() {
		for _, m := range readCapture(f, 15, c.name) {
			if len(m) < 4096 { // mutations of what is large find nothing in reasonable time
				f.Add(m, true)
			}
		}
	}
	known, err := newLayout(must(decodeRelation(relationBody())), native(), typeMap{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, inTx bool) {
		if len(data) == 0 {
			return
		}
		r := &reader{tables: []Mapping{*native()}, watermark: newWatermark(1), relations: map[uint32]*layout{4711: known},
			cur: newChunk(), inTx: inTx}
		_ = r.message(data[0], data[1:])
		if n := len(r.cur.arena); n > 2*len(data)+256 {
			t.Errorf("%d bytes kept of a message of %d", n, len(data))
		}
	})
}
