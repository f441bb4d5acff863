package cdc

import (
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

// BenchmarkChunk is what a row costs on its way from the stream's bytes to an event: decoded, copied, mapped. It
// should not allocate.
func BenchmarkChunk(b *testing.B) {
	layout, err := newLayout(must(decodeRelation(relationBody())), native(), typeMap{})
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(insertBody())
	ch := newChunk()
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		ins, err := decodeInsert(body)
		if err != nil {
			b.Fatal(err)
		}
		if !ch.fits(len(ins.tuple)) {
			ch.reset()
		}
		if err := ch.add(layout, ins, outbox.Position{LSN: 1, Ordinal: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
