package outbox_test

import (
	"crypto/sha256"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox"
)

const source = "0123456789abcdef"

func TestPosition_text(t *testing.T) {
	t.Parallel()
	p := outbox.Position{Incarnation: 0xa1, LSN: 0x16_b374d848, Ordinal: 0x1f}
	const want = source + "-000000a1-00000016b374d848-0000001f"
	got := string(outbox.AppendPosition([]byte("x"), source, p))
	if got != "x"+want {
		t.Errorf("got %q, want x and %q", got, want)
	}
	if len(want) != outbox.PositionLen {
		t.Errorf("PositionLen is %d, the text has %d", outbox.PositionLen, len(want))
	}
	s, back, err := outbox.ParsePosition(want)
	if err != nil || s != source || back != p {
		t.Errorf("ParsePosition = %q, %+v, %v", s, back, err)
	}
}

func TestParsePosition_refuses(t *testing.T) {
	t.Parallel()
	const good = source + "-000000a1-00000016b374d848-0000001f"
	bad := []string{"", "x", good + "0", good[:len(good)-1], strings.ToUpper(good), strings.Replace(good, "-", "_", 1)}
	for i := range len(good) { // no byte is ignored
		bad = append(bad, good[:i]+"g"+good[i+1:])
	}
	for _, s := range bad {
		if source, p, err := outbox.ParsePosition(s); err == nil || source != "" || p != (outbox.Position{}) {
			t.Errorf("ParsePosition(%q) = %q, %+v, %v", s, source, p, err)
		}
	}
}

func TestPosition_Compare(t *testing.T) {
	t.Parallel()
	rising := []outbox.Position{
		{},
		{Incarnation: 1},
		{Incarnation: 1, Ordinal: 7},
		{Incarnation: 1, LSN: 5, Ordinal: 1},
		{Incarnation: 1, LSN: 5, Ordinal: 2},
		{Incarnation: 1, LSN: 1 << 63, Ordinal: 1},
		{Incarnation: 2, LSN: 4, Ordinal: 1},
		{Incarnation: 1<<32 - 1, LSN: 1, Ordinal: 1},
	}
	var texts []string
	for i, p := range rising {
		texts = append(texts, string(outbox.AppendPosition(nil, source, p)))
		for j, q := range rising {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := p.Compare(q); got != want {
				t.Errorf("%+v against %+v: got %d, want %d", p, q, got, want)
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(texts)), texts); diff != "" {
		t.Errorf("the text form sorts otherwise than the positions:\n%s", diff)
	}
}

func TestSourceName(t *testing.T) {
	t.Parallel()
	got := outbox.SourceName(sha256.Sum256([]byte("abc")))
	if want := "ba7816bf8f01cfea"; got != want || len(got) != outbox.SourceLen {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzParsePosition(f *testing.F) {
	f.Add(source + "-000000a1-00000016b374d848-0000001f")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		source, p, err := outbox.ParsePosition(s)
		if err != nil {
			return
		}
		if got := string(outbox.AppendPosition(nil, source, p)); got != s {
			t.Errorf("%q came back as %q", s, got)
		}
	})
}
