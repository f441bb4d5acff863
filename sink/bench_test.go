package sink_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// BenchmarkAccept is the cost of an event from Accept to its acknowledgement, by a publisher that does nothing.
func BenchmarkAccept(b *testing.B) {
	for _, bm := range []struct {
		name    string
		headers string
	}{{"plain", ""}, {"headers", `{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`}} {
		b.Run(bm.name, func(b *testing.B) {
			s := sink.New(sink.DefaultConfig(), discard{newGate(8)}, source, func([]uint64) {}, &board{raised: map[string]state.Status{}})
			result := make(chan error, 1)
			go func() { result <- s.Run(b.Context()) }()
			const n = 500
			events := make([]outbox.Committed, n)
			for i := range events {
				e := event(i, fmt.Sprint("key", i), strings.Repeat("x", 200))
				e.EventKey = []byte("order-placed:42")
				e.OccurredAt = []byte("2026-11-30 18:57:22.123456+00")
				if bm.headers != "" {
					e.Headers = []byte(bm.headers)
				}
				events[i] = e
			}
			accept := func() {
				if err := s.Accept(b.Context(), 1, events); err != nil {
					b.Fatal(err)
				}
			}
			accept()
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += n {
				accept()
			}
			b.StopTimer()
			s.Drain()
			if err := <-result; err != nil {
				b.Fatal(err)
			}
		})
	}
}

// discard is a Publisher that acknowledges at once.
type discard struct{ *gate }

func (discard) Send(context.Context, *sink.Batch) error { return nil }
