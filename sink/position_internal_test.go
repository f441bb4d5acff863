package sink

import (
	"math/rand/v2"
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

// TestPositionText wants the text to be that of outbox, whatever came before.
func TestPositionText(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var text positionText
	p := outbox.Position{}
	for range 10_000 {
		switch rng.IntN(8) {
		case 0:
			p.Incarnation = rng.Uint32()
		case 1, 2:
			p.LSN = outbox.LSN(rng.Uint64() >> rng.IntN(64))
		case 3:
			p = outbox.Position{Incarnation: 1}
		default:
			p.Ordinal = rng.Uint32() >> rng.IntN(32)
		}
		if got, want := string(text.set(testSource, p)), string(outbox.AppendPosition(nil, testSource, p)); got != want {
			t.Fatalf("%+v: got %s, want %s", p, got, want)
		}
	}
}

// TestEncoder_Occurred wants a timestamp that came before to change nothing.
func TestEncoder_Occurred(t *testing.T) {
	var e encoder
	for range 2 {
		for _, in := range []string{"2026-11-30 18:57:22.5+00", "2026-11-30 18:57:22.5+00", "", "infinity", "2026-11-30 18:57:22.5+01", ""} {
			if got, want := string(e.occurred([]byte(in))), string(appendOccurred(nil, []byte(in))); got != want {
				t.Errorf("%q: got %q, want %q", in, got, want)
			}
		}
	}
}

// TestHasControl looks for each byte at each place.
func TestHasControl(t *testing.T) {
	for n := range 40 {
		for at := range n {
			for c := range 256 {
				b := make([]byte, n)
				for i := range b {
					b[i] = byte(0x0e + (i*37+c)%(0x100-0x0e))
				}
				b[at] = byte(c)
				if got, want := hasControl(b), c == 0 || c == '\n' || c == '\r'; got != want {
					t.Fatalf("byte %#x at %d of %d: got %v", c, at, n, got)
				}
			}
		}
	}
}
