package outbox

import (
	"encoding/hex"
	"encoding/json"
)

// array builds the text form of a one-dimensional PostgreSQL array, {"a","b",NULL}. Every element is quoted, so
// only two characters need an escape.
type array struct{ buf []byte }

// null appends an element that is NULL.
func (a *array) null() {
	a.separate()
	a.buf = append(a.buf, "NULL"...)
}

// text appends an element with the value s.
func (a *array) text(s string) {
	a.separate()
	a.buf = append(a.buf, '"')
	start := 0
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			a.buf = append(a.buf, s[start:i]...)
			a.buf = append(a.buf, '\\')
			start = i
		}
	}
	a.buf = append(a.buf, s[start:]...)
	a.buf = append(a.buf, '"')
}

// optional appends s, or NULL where it is empty.
func (a *array) optional(s string) {
	if s == "" {
		a.null()
		return
	}
	a.text(s)
}

// bytes appends b in bytea's hexadecimal form, or NULL where it is nil.
func (a *array) bytes(b []byte) {
	if b == nil {
		a.null()
		return
	}
	a.separate()
	a.buf = append(a.buf, `"\\x`...)
	a.buf = hex.AppendEncode(a.buf, b)
	a.buf = append(a.buf, '"')
}

// object appends m as a JSON object, or NULL where it is empty. The strings are valid UTF-8.
func (a *array) object(m map[string]string) {
	if len(m) == 0 {
		a.null()
		return
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic("outbox: a map of strings does not marshal: " + err.Error())
	}
	a.text(string(b))
}

func (a *array) separate() {
	if len(a.buf) == 0 {
		a.buf = append(a.buf, '{')
	} else {
		a.buf = append(a.buf, ',')
	}
}

// String returns the array. It is never empty here: a statement is made for one event or more.
func (a *array) String() string { return string(a.buf) + "}" }
