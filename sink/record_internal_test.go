package sink

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/outbox"
)

const testSource = "00112233aabbccdd"

// build encodes events into one batch as a lane would.
func build(tb testing.TB, topic string, partition int32, events ...outbox.Committed) *Batch {
	tb.Helper()
	p := &pool{keep: 1 << 20}
	s := New(DefaultConfig(), nil, testSource, nil, silence{})
	b := p.batch(topic, partition)
	for i := range events {
		if poison := s.encode(&events[i]); poison != nil {
			tb.Fatal(poison)
		}
		n := s.rec.size(int32(i))
		if got := b.add(p, &s.rec, uint64(i+1), events[i].CommitTime); got != n {
			tb.Fatalf("record %d: size %d, encoded %d", i, n, got)
		}
	}
	b.Time = time.UnixMilli(1800000000123)
	return b
}

// bytesOf returns what goes over the wire.
func bytesOf(tb testing.TB, b *Batch) []byte {
	tb.Helper()
	raw, err := io.ReadAll(b.reader())
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// someEvents makes n events of many shapes.
func someEvents(n int) []outbox.Committed {
	var events []outbox.Committed
	for i := range n {
		e := outbox.Committed{
			Position:      outbox.Position{Incarnation: 1, LSN: outbox.LSN(i), Ordinal: 1},
			ID:            fmt.Appendf(nil, "id-%d", i),
			AggregateType: []byte("order"),
			AggregateID:   fmt.Appendf(nil, "key-%d", i%7),
			Payload:       bytes.Repeat([]byte{'x'}, i*i%3001),
		}
		switch i % 5 {
		case 0:
			e.Payload = nil
		case 1:
			e.EventKey, e.Tenant, e.EventType = []byte("k:1"), []byte("acme"), []byte("T")
		case 2:
			e.Headers = []byte(`{"a":"1","b":"\u00e4"}`)
		case 3:
			e.EventKey, e.OccurredAt, e.PartitionKey = []byte{}, []byte("2026-01-02 03:04:05+00"), []byte("p")
		}
		events = append(events, e)
	}
	return events
}

// fields is a record as other libraries see it.
type fields struct {
	Key, Value []byte
	Headers    []string
}

func fieldsOf(r Record) fields {
	f := fields{Key: r.Key, Value: r.Value}
	for name, value := range r.Headers() {
		f.Headers = append(f.Headers, string(name)+"="+string(value))
	}
	return f
}

// TestBatch_Bytes wants our encoding to equal kafka-go's, byte for byte.
func TestBatch_Bytes(t *testing.T) {
	for _, n := range []int{1, 2, 64, 65, 300} {
		b := build(t, "t", 0, someEvents(n)...)
		b.seal(-1, -1, -1)
		var records []protocol.Record
		for r := range b.Records() {
			rec := protocol.Record{Time: b.Time, Key: protocol.NewBytes(r.Key), Value: protocol.NewBytes(r.Value)}
			for name, value := range r.Headers() {
				rec.Headers = append(rec.Headers, protocol.Header{Key: string(name), Value: value})
			}
			records = append(records, rec)
		}
		set := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(records...)}
		var want bytes.Buffer
		if _, err := set.WriteTo(&want); err != nil {
			t.Fatal(err)
		}
		if got := bytesOf(t, b); !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("%d records: differ from kafka-go's encoding\n%s\n%s", n, hex.Dump(got[:min(len(got), 256)]), hex.Dump(want.Bytes()[:min(want.Len(), 256)]))
		}
	}
}

// TestBatch_Decode reads our bytes with a decoder of another library.
func TestBatch_Decode(t *testing.T) {
	events := someEvents(100)
	b := build(t, "t", 0, events...)
	b.seal(4711, 3, 99)
	raw := bytesOf(t, b)
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(raw[sizeLen:]); err != nil {
		t.Fatal(err)
	}
	if batch.ProducerID != 4711 || batch.ProducerEpoch != 3 || batch.FirstSequence != 99 || batch.NumRecords != 100 ||
		batch.FirstTimestamp != 1800000000123 || batch.MaxTimestamp != batch.FirstTimestamp || batch.LastOffsetDelta != 99 {
		t.Errorf("got header %+v", batch)
	}
	rest := batch.Records
	var ours []fields
	for r := range b.Records() {
		ours = append(ours, fieldsOf(r))
	}
	for i := range events {
		var r kmsg.Record
		_, n := kmsgVarint(rest)
		length, _ := kmsgVarint(rest)
		if err := r.ReadFrom(rest[:n+int(length)]); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
		rest = rest[n+int(length):]
		theirs := fields{Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			theirs.Headers = append(theirs.Headers, h.Key+"="+string(h.Value))
		}
		if diff := cmp.Diff(theirs, ours[i]); diff != "" || r.OffsetDelta != int32(i) || r.TimestampDelta64 != 0 {
			t.Fatalf("record %d, delta %d (-theirs +ours):\n%s", i, r.OffsetDelta, diff)
		}
		if (events[i].Payload == nil) != (r.Value == nil) || !bytes.Equal(events[i].Payload, r.Value) {
			t.Fatalf("record %d: value %q, want %q", i, r.Value, events[i].Payload)
		}
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes behind the last record", len(rest))
	}
}

func kmsgVarint(b []byte) (v int64, n int) {
	d := decoder(b)
	v = d.varint()
	return v, len(b) - len(d)
}

// TestBatch_Seal wants the bytes to stay what they were at the first try.
func TestBatch_Seal(t *testing.T) {
	b := build(t, "t", 0, someEvents(10)...)
	b.seal(1, 2, 3)
	first := bytesOf(t, b)
	b.Time = b.Time.Add(time.Hour)
	b.seal(5, 6, 7)
	if !bytes.Equal(first, bytesOf(t, b)) {
		t.Error("the batch changed between two tries")
	}
}

func TestBatch_Split(t *testing.T) {
	for _, n := range []int{2, 3, 131, 300} {
		b := build(t, "t", 3, someEvents(n)...)
		var want []fields
		for r := range b.Records() {
			want = append(want, fieldsOf(r))
		}
		p := &pool{keep: 1 << 20}
		first, second := b.split(p, b.Len()/2)
		if first.Len() != n/2 || first.Len()+second.Len() != n {
			t.Fatalf("split %d into %d and %d", n, first.Len(), second.Len())
		}
		var got []fields
		for i, half := range []*Batch{first, second} {
			half.Time = b.Time
			half.seal(1, 1, 0)
			raw := bytesOf(t, half)
			if len(raw) != sizeLen+batchHeader+half.size {
				t.Errorf("half %d: size %d, encoded %d", i, half.size, len(raw))
			}
			var batch kmsg.RecordBatch
			if err := batch.ReadFrom(raw[sizeLen:]); err != nil {
				t.Fatal(err)
			}
			rest := batch.Records
			for delta := 0; len(rest) > 0; delta++ {
				length, k := kmsgVarint(rest)
				var r kmsg.Record
				if err := r.ReadFrom(rest[:k+int(length)]); err != nil || r.OffsetDelta != int32(delta) {
					t.Fatalf("half %d record %d: delta %d, %v", i, delta, r.OffsetDelta, err)
				}
				rest = rest[k+int(length):]
			}
			for r := range half.Records() {
				got = append(got, fieldsOf(r))
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("split %d (-want +got):\n%s", n, diff)
		}
		seqs := append(append([]uint64{}, first.seqs...), second.seqs...)
		if diff := cmp.Diff(b.seqs, seqs); diff != "" {
			t.Errorf("sequence numbers (-want +got):\n%s", diff)
		}
	}
}

// TestPartitionOf compares with the vectors of Java's own client.
func TestPartitionOf(t *testing.T) {
	data, err := os.ReadFile("testdata/murmur2.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, row := range strings.Split(string(data), "\n") {
		if row == "" || row[0] == '#' {
			continue
		}
		var text string
		var hash uint32
		var partition int32
		if _, err := fmt.Sscanf(row, "%s %x %d", &text, &hash, &partition); err != nil {
			t.Fatal(err)
		}
		key, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		n++
		if got := murmur2(key); got != hash {
			t.Errorf("murmur2 of %q: got %08x, want %08x", key, got, hash)
		}
		if got := partitionOf(key, 12); got != partition {
			t.Errorf("partition of %q: got %d, want %d", key, got, partition)
		}
	}
	if n != 1000 {
		t.Errorf("got %d vectors, want 1000", n)
	}
}

func TestPool(t *testing.T) {
	p := &pool{keep: 1 << 20}
	if c := p.chunk(10, 0); cap(c) != chunk0 {
		t.Errorf("first chunk has %d bytes", cap(c))
	}
	if c := p.chunk(10, 1); cap(c) != chunk1 {
		t.Errorf("second chunk has %d bytes", cap(c))
	}
	if c := p.chunk(10, 9); cap(c) != chunk2 {
		t.Errorf("tenth chunk has %d bytes", cap(c))
	}
	if c := p.chunk(chunk2+1, 0); cap(c) < chunk2+1 {
		t.Errorf("chunk for a large record has %d bytes", cap(c))
	}
	// What is kept is bounded, and a batch whose fate is open is not kept.
	for range 100 {
		b := &Batch{}
		*b.room(p, chunk2) = make([]byte, 1, chunk2)
		p.put(b)
	}
	if p.held > p.keep {
		t.Errorf("keeps %d bytes, more than %d", p.held, p.keep)
	}
	q := &pool{keep: 1 << 20}
	b := build(t, "t", 0, someEvents(3)...)
	b.open = true
	q.put(b)
	if q.held != 0 || len(q.batches) != 0 {
		t.Error("keeps a batch that a connection may still read")
	}
	b.open = false
	q.put(b)
	if r := q.batch("u", 1); r != b || r.Len() != 0 || r.size != 0 || r.sealed || r.tries != 0 || r.written != 0 || r.Topic != "u" {
		t.Errorf("a kept batch came back as %+v", r)
	}
}
