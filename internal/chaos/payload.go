package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox"
)

// event makes the event of an aggregate's version, with a payload of one of the classes that break relays.
func event(rng *rand.Rand, aggregate string, version int64) outbox.Event {
	e := outbox.Event{
		ID:            uuid.UUID(randomBytes(rng, 16)),
		EventKey:      fmt.Sprintf("changed:%s:%d", aggregate, version),
		AggregateType: "chaos",
		AggregateID:   aggregate,
		EventType:     "Changed",
		// Microseconds, as PostgreSQL keeps them, within years around now.
		OccurredAt: time.UnixMicro(1_700_000_000_000_000 + rng.Int64N(100_000_000_000_000)).UTC(),
	}
	e.ID[6], e.ID[8] = e.ID[6]&0x0f|0x40, e.ID[8]&0x3f|0x80 // a version 4 UUID: order must not depend on it
	if rng.IntN(4) == 0 {
		e.Tenant = fmt.Sprintf("tenant-%d", rng.IntN(3))
	}
	if rng.IntN(4) == 0 {
		e.Headers = map[string]string{"traceparent": fmt.Sprintf("00-%032x-%016x-01", rng.Uint64(), rng.Uint64()), "naïve": `"quoted" \ ☃`}
	}
	switch n := rng.IntN(1000); {
	case n < 100:
		e.Payload = json.RawMessage(`{}`)
	case n < 180: // both payload columns NULL: a tombstone
	case n < 600:
		e.Payload = fmt.Appendf(nil, `{"version":%d, "n" : 0.1234567890123456789}`, version)
	case n < 750:
		e.Payload = text(rng, 4<<10)
	case n < 755:
		e.Payload = text(rng, 100<<10+rng.IntN(300<<10))
	case n < 870:
		e.Payload = json.RawMessage(" {\"quote\\\"\": \"line\\nbreak \\\\ Ünïcödé \U0001f9ea '' $$\",\n\t\"a\":1,\"a\":2} ")
	case n < 970:
		e.PayloadBytes = append(randomBytes(rng, 1+rng.IntN(300)), 0, 0, '\n', 0xff)
	default:
		e.PayloadBytes = []byte{} // a value of no bytes, which is not NULL
	}
	return e
}

// text returns a JSON document of about n bytes that does not compress to nothing.
func text(rng *rand.Rand, n int) json.RawMessage {
	var b strings.Builder
	b.WriteString(`{"text":"`)
	for b.Len() < n {
		fmt.Fprintf(&b, "%016x ", rng.Uint64())
	}
	b.WriteString(`"}`)
	return json.RawMessage(b.String())
}

func randomBytes(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
