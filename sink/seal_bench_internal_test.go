package sink

import "testing"

// BenchmarkSeal is what a batch of 500 records costs when it is sent: its header and its checksum.
func BenchmarkSeal(b *testing.B) {
	batch := build(b, "orders", 0, someEvents(500)...)
	b.ReportAllocs()
	b.SetBytes(int64(batch.Size()))
	for b.Loop() {
		batch.sealed = false
		batch.seal(1, 2, 3)
	}
}
