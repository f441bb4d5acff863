package outbox_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

func BenchmarkWrite(b *testing.B) {
	conn := connect(b, newOutbox(b))
	for _, n := range []int{1, 100} {
		events := make([]outbox.Event, n)
		for i := range events {
			events[i] = placed()
		}
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			tx := begin(b, conn)
			defer tx.Rollback(b.Context())
			for b.Loop() {
				if _, err := outbox.Write(b.Context(), tx, events...); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/event")
		})
	}
	// What an application would write by hand: one row a statement, with its own parameters.
	b.Run("bare", func(b *testing.B) {
		tx := begin(b, conn)
		defer tx.Rollback(b.Context())
		e := placed()
		for b.Loop() {
			if _, err := tx.Exec(b.Context(), `INSERT INTO outbox.events (id, event_key, aggregate_type, aggregate_id, event_type, payload)
VALUES ($1, $2, $3, $4, $5, $6)`, uuid.New(), e.EventKey, e.AggregateType, e.AggregateID, e.EventType, e.Payload); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/event")
	})
}
