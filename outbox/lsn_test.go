package outbox_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

func TestLSN_text(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		lsn  outbox.LSN
	}{
		{"0/0", 0},
		{"0/1", 1},
		{"16/B374D848", 0x16_B374D848},
		{"FFFFFFFF/FFFFFFFF", 1<<64 - 1},
		{"1/0", 1 << 32},
	} {
		if got := tt.lsn.String(); got != tt.text {
			t.Errorf("String of %d: got %q, want %q", uint64(tt.lsn), got, tt.text)
		}
		if got, err := outbox.ParseLSN(tt.text); err != nil || got != tt.lsn {
			t.Errorf("ParseLSN(%q) = %v, %v", tt.text, got, err)
		}
	}
}

// ParseLSN takes and refuses what the server does, and understands the same by it.
func TestParseLSN_asServer(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	for _, s := range []string{
		"0/0", "16/b374d848", "16/B374D848", "0016/0B374D84", "00000000/00000000", "ffffffff/ffffffff",
		"", "/", "0/", "/0", "16", "16/B374D848/1", "100000000/0", "0/100000000", "000000000/0", "g/0", "0/g", "-1/0", "+1/0", "0x1/0",
		"16/B374D84_8", "１/0",
	} {
		var want outbox.LSN
		serverErr := conn.QueryRow(t.Context(), "SELECT ($1::text::pg_lsn)::text", s).Scan(&want)
		got, err := outbox.ParseLSN(s)
		if (err == nil) != (serverErr == nil) {
			t.Errorf("%q: ParseLSN says %v, the server %v", s, err, serverErr)
		} else if got != want {
			t.Errorf("%q: got %v, the server has %v", s, got, want)
		}
	}
}

func TestLSN_database(t *testing.T) {
	t.Parallel()
	conn := connect(t, newOutbox(t))
	const want = outbox.LSN(0x16_B374D848)
	var pgLSN, text, null outbox.LSN
	null = 5
	if err := conn.QueryRow(t.Context(), "SELECT $1::pg_lsn, $1::pg_lsn::text, NULL::pg_lsn", want).Scan(&pgLSN, &text, &null); err != nil {
		t.Fatal(err)
	}
	if pgLSN != want || text != want || null != 0 {
		t.Errorf("got %v, %v and %v, want %v twice and 0/0", pgLSN, text, null, want)
	}

	var l outbox.LSN
	if err := l.Scan([]byte("16/B374D848")); err != nil || l != want {
		t.Errorf("scan of bytes: %v, %v", l, err)
	}
	if err := l.Scan(int64(5)); err == nil {
		t.Error("a number was scanned as an LSN")
	}
}

func FuzzParseLSN(f *testing.F) {
	for _, s := range []string{"0/0", "16/B374D848", "ffffffff/ffffffff", "/", "1/100000000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := outbox.ParseLSN(s)
		if err != nil {
			return
		}
		if again, err := outbox.ParseLSN(l.String()); err != nil || again != l {
			t.Errorf("%q became %v, and that %v, %v", s, l, again, err)
		}
	})
}
