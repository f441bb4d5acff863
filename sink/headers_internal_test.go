package sink

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestHeaders(t *testing.T) {
	long := strings.Repeat("x", maxHeaderName+1)
	tests := []struct {
		name string
		in   string
		want []string // name, value, name, value
		bad  bool
	}{
		{name: "empty object", in: `{}`},
		{name: "empty object with space", in: " {\n} "},
		{name: "plain", in: `{"a":"1","b":"2"}`, want: []string{"a", "1", "b", "2"}},
		{name: "as jsonb writes", in: `{"a": "1", "b": ""}`, want: []string{"a", "1", "b", ""}},
		{name: "escapes", in: `{"\u0061\"":"\\\/\b\f\t\u20ac\ud83d\ude00"}`, want: []string{`a"`, "\\/\b\f\t€😀"}},
		{name: "utf-8", in: `{"ключ":"значение"}`, want: []string{"ключ", "значение"}},
		{name: "name at the limit", in: `{"` + long[1:] + `":"v"}`, want: []string{long[1:], "v"}},

		{name: "no object", in: `["a"]`, bad: true},
		{name: "null", in: `null`, bad: true},
		{name: "nothing", in: ``, bad: true},
		{name: "number", in: `{"a":1}`, bad: true},
		{name: "null value", in: `{"a":null}`, bad: true},
		{name: "nested", in: `{"a":{"b":"c"}}`, bad: true},
		{name: "array", in: `{"a":["b"]}`, bad: true},
		{name: "cut", in: `{"a":"b"`, bad: true},
		{name: "cut string", in: `{"a":"b`, bad: true},
		{name: "trailing comma", in: `{"a":"b",}`, bad: true},
		{name: "trailing text", in: `{"a":"b"} x`, bad: true},
		{name: "two objects", in: `{}{}`, bad: true},
		{name: "bad escape", in: `{"a":"\x"}`, bad: true},
		{name: "lone surrogate", in: `{"a":"\ud83d"}`, bad: true},
		{name: "surrogates the wrong way", in: `{"a":"\ude00\ud83d"}`, bad: true},
		{name: "short unicode", in: `{"a":"\u12"}`, bad: true},
		{name: "not utf-8", in: "{\"a\":\"\xff\"}", bad: true},
		{name: "raw line feed", in: "{\"a\":\"b\nc\"}", bad: true},
		{name: "escaped CR LF", in: `{"a":"b\r\nc"}`, bad: true},
		{name: "CR LF in a name", in: `{"x\r\ny":"b"}`, bad: true},
		{name: "NUL", in: `{"a":"\u0000"}`, bad: true},
		{name: "empty name", in: `{"":"b"}`, bad: true},
		{name: "long name", in: `{"` + long + `":"v"}`, bad: true},
		{name: "reserved", in: `{"id":"x"}`, bad: true},
		{name: "reserved, escaped", in: `{"relay\u005fposition":"x"}`, bad: true},
		{name: "reserved, second", in: `{"a":"b","tenant":"x"}`, bad: true},
		{name: "too large", in: `{"a":"` + strings.Repeat("x", maxHeaderBytes) + `"}`, bad: true},
	}
	var p headerParser
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found, reason := p.parse([]byte(tt.in))
			if (reason != "") != tt.bad {
				t.Fatalf("got reason %q, want bad %v", reason, tt.bad)
			}
			if tt.bad {
				return
			}
			var got []string
			for _, h := range found {
				got = append(got, string(h.name), string(h.value))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if found, reason := p.parse(nil); found != nil || reason != "" {
		t.Errorf("NULL: got %v, %q", found, reason)
	}
}

// FuzzHeaders holds the parser against encoding/json: what it takes, that takes too and reads the same.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"b"}`, `{"a":"\ud83d\ude00","b":"\n"}`, `{"a" : "x", "b":"\"" }`, `{"a":1}`, "{\"\xff\":\"\"}", `{"\u0061":"\/"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var p headerParser
		found, reason := p.parse(in)
		var object map[string]any
		err := json.Unmarshal(in, &object)
		if reason == "" {
			if err != nil {
				t.Fatalf("took %q, which is no JSON object: %v", in, err)
			}
			last := map[string]string{}
			for _, h := range found {
				last[string(h.name)] = string(h.value)
			}
			if len(last) != len(object) {
				t.Fatalf("%q: got %d names, want %d", in, len(last), len(object))
			}
			for name, value := range object {
				if got, ok := last[name]; !ok || got != value {
					t.Fatalf("%q: header %q is %q, want %v", in, name, got, value)
				}
			}
			return
		}
		// What it refuses is refused for a reason that can be seen from outside.
		if err != nil || object == nil || !utf8.Valid(in) {
			return
		}
		for name, value := range object {
			s, ok := value.(string)
			if !ok || checkHeader(header{[]byte(name), []byte(s)}) != "" || len(in) > maxHeaderBytes {
				return
			}
		}
		// Go replaces lone surrogates, we refuse them; a name given twice can hide the guilty one.
		if strings.Contains(string(in), `\u`) || strings.Count(string(in), `":`)+strings.Count(string(in), `" `) > len(object) {
			return
		}
		t.Fatalf("refused %q: %s", in, reason)
	})
}

func TestHeaders_Allocs(t *testing.T) {
	var p headerParser
	in := []byte(`{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a": "b\u00e4"}`)
	p.parse(in)
	if n := testing.AllocsPerRun(100, func() { p.parse(in) }); n != 0 {
		t.Errorf("parse allocates %v times", n)
	}
}

func TestOccurred(t *testing.T) {
	tests := []struct{ in, want string }{
		{"2026-11-30 18:57:22.123456+00", "2026-11-30T18:57:22.123456Z"},
		{"2026-11-30 18:57:22+00", "2026-11-30T18:57:22.000000Z"},
		{"2026-11-30 18:57:22.5+00", "2026-11-30T18:57:22.500000Z"},
		{"2026-11-30 18:57:22.000001+00", "2026-11-30T18:57:22.000001Z"},
		{"2026-11-30 18:57:22+00:00", "2026-11-30T18:57:22.000000Z"},
		{"2026-12-01 00:27:22.25+05:30", "2026-11-30T18:57:22.250000Z"},
		{"2026-12-31 23:30:00-01", "2027-01-01T00:30:00.000000Z"},
		{"1890-01-01 00:00:00+00:53:28", "1889-12-31T23:06:32.000000Z"},
		{"0001-01-01 00:00:00+00", "0001-01-01T00:00:00.000000Z"},

		{"infinity", "infinity"},
		{"-infinity", "-infinity"},
		{"", ""},
		{"0044-03-15 12:00:00+00 BC", "0044-03-15 12:00:00+00 BC"},
		{"12026-11-30 18:57:22+00", "12026-11-30 18:57:22+00"},
		{"0001-01-01 00:00:00+01", "0001-01-01 00:00:00+01"},
		{"2026-11-30 18:57:22", "2026-11-30 18:57:22"},
		{"2026-11-30 18:57:22.123456", "2026-11-30 18:57:22.123456"},
		{"2026-11-30T18:57:22.123456Z", "2026-11-30T18:57:22.123456Z"},
		{"2026-11-30 18:57:22.+00", "2026-11-30 18:57:22.+00"},
		{"2026-11-30 18:57:22.1234567+00", "2026-11-30 18:57:22.1234567+00"},
		{"2026-11-30 18:57:22+00:", "2026-11-30 18:57:22+00:"},
		{"30.11.2026 18:57:22.1234 CET", "30.11.2026 18:57:22.1234 CET"},
	}
	for _, tt := range tests {
		got := string(appendOccurred(nil, []byte(tt.in)))
		if got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.in, got, tt.want)
		}
		if got != tt.in {
			if _, err := time.Parse(time.RFC3339Nano, got); err != nil {
				t.Errorf("%q: %v", tt.in, err)
			}
		}
	}
}

func FuzzOccurred(f *testing.F) {
	f.Add([]byte("2026-11-30 18:57:22.123456+00"))
	f.Add([]byte("2026-11-30 18:57:22-03:30:10"))
	f.Fuzz(func(t *testing.T, in []byte) {
		if out := appendOccurred(nil, in); len(out) == 0 && len(in) > 0 {
			t.Fatalf("%q became nothing", in)
		}
	})
}
