package sink

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits on what a row may put into its headers column.
const (
	maxHeaderName  = 256
	maxHeaderBytes = 16 << 10 // names and values together
)

// headerParser reads the headers column, a JSON object of strings. Its results are slices of the input where
// nothing is escaped, else of its own buffer; they hold until the next parse. It allocates only to grow.
type headerParser struct {
	found []header
	buf   []byte
}

// parse returns the headers in order, or why the column cannot be used. NULL (nil) and {} are no headers.
func (p *headerParser) parse(in []byte) ([]header, string) {
	p.found, p.buf = p.found[:0], p.buf[:0]
	if in == nil || string(in) == "{}" {
		return nil, ""
	}
	const notObject = "the headers are not a JSON object with string values"
	s := skipSpace(in)
	if len(s) == 0 || s[0] != '{' {
		return nil, notObject
	}
	s = skipSpace(s[1:])
	if len(s) > 0 && s[0] == '}' {
		return nil, trailing(s[1:])
	}
	total := 0
	for {
		var h header
		var ok bool
		if h.name, s, ok = p.str(s); !ok {
			return nil, notObject
		}
		if s = skipSpace(s); len(s) == 0 || s[0] != ':' {
			return nil, notObject
		}
		if h.value, s, ok = p.str(skipSpace(s[1:])); !ok {
			return nil, notObject
		}
		if reason := checkHeader(h); reason != "" {
			return nil, reason
		}
		if total += len(h.name) + len(h.value); total > maxHeaderBytes {
			return nil, "the headers are larger than 16384 bytes"
		}
		p.found = append(p.found, h)
		s = skipSpace(s)
		switch {
		case len(s) > 0 && s[0] == ',':
			s = skipSpace(s[1:])
		case len(s) > 0 && s[0] == '}':
			return p.found, trailing(s[1:])
		default:
			return nil, notObject
		}
	}
}

func trailing(s []byte) string {
	if len(skipSpace(s)) > 0 {
		return "the headers have text after the JSON object"
	}
	return ""
}

func checkHeader(h header) string {
	switch {
	case len(h.name) == 0:
		return "a header has an empty name"
	case len(h.name) > maxHeaderName:
		return "a header's name is longer than 256 bytes"
	case hasControl(h.name) || hasControl(h.value):
		return "a header has a carriage return, line feed or NUL"
	case reserved(h.name):
		return "a header uses the reserved name " + string(h.name)
	}
	return ""
}

// reserved reports whether the name is one that only the relay writes.
func reserved(name []byte) bool {
	switch string(name) {
	case "id", "event_key", "event_type", "aggregate_type", "occurred_at", "tenant", "relay_position", "relay_replay":
		return true
	}
	return false
}

// hasControl reports whether b holds what would let one header look like two elsewhere.
func hasControl(b []byte) bool {
	// Eight bytes at a time, until one of them is below 0x0e.
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for len(b) >= 8 {
		if x := binary.LittleEndian.Uint64(b); (x-0x0e*ones)&^x&tops != 0 {
			break
		}
		b = b[8:]
	}
	for _, c := range b {
		if c <= '\r' && (c == '\n' || c == '\r' || c == 0) {
			return true
		}
	}
	return false
}

func skipSpace(s []byte) []byte {
	for len(s) > 0 && (s[0] == ' ' || s[0] == '\n' || s[0] == '\t' || s[0] == '\r') {
		s = s[1:]
	}
	return s
}

// str reads a JSON string at the start of s.
func (p *headerParser) str(s []byte) (v, rest []byte, ok bool) {
	if len(s) == 0 || s[0] != '"' {
		return nil, nil, false
	}
	s = s[1:]
	for i, c := range s {
		switch {
		case c == '"':
			return s[:i:i], s[i+1:], utf8.Valid(s[:i])
		case c == '\\':
			return p.unescape(s, i)
		case c < ' ':
			return nil, nil, false
		}
	}
	return nil, nil, false
}

// unescape reads the rest of a string whose first escape is at s[i].
func (p *headerParser) unescape(s []byte, i int) (v, rest []byte, ok bool) {
	// An append that grows the buffer leaves earlier results in the old one, where they stay valid.
	start := len(p.buf)
	p.buf = append(p.buf, s[:i]...)
	for s = s[i:]; len(s) > 0; {
		switch c := s[0]; {
		case c == '"':
			v = p.buf[start:len(p.buf):len(p.buf)]
			return v, s[1:], utf8.Valid(v)
		case c < ' ':
			return nil, nil, false
		case c != '\\':
			p.buf, s = append(p.buf, c), s[1:]
		case len(s) < 2:
			return nil, nil, false
		case s[1] == 'u':
			r, n := unicodeEscape(s)
			if n == 0 {
				return nil, nil, false
			}
			p.buf, s = utf8.AppendRune(p.buf, r), s[n:]
		default:
			i := bytes.IndexByte([]byte(`"\/bfnrt`), s[1])
			if i < 0 {
				return nil, nil, false
			}
			p.buf, s = append(p.buf, "\"\\/\b\f\n\r\t"[i]), s[2:]
		}
	}
	return nil, nil, false
}

// unicodeEscape reads \uXXXX, or two of them where they are a surrogate pair; n is 0 for anything else.
func unicodeEscape(s []byte) (r rune, n int) {
	r, ok := hex4(s)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	low, ok := hex4(s[6:])
	if !ok {
		return 0, 0
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

func hex4(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range s[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
