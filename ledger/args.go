package ledger

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Parameters travel as text, numbers and bytes and are cast by the server, so that no driver's idea of arrays,
// intervals or time comes between. What stands for NULL is an untyped nil.

// optional returns s, or NULL where it is empty.
func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// interval returns d for a ::text::interval parameter, or NULL where it is zero.
func interval(d time.Duration) any {
	if d == 0 {
		return nil
	}
	return span(d)
}

// span is interval where zero is a value. PostgreSQL 14 reads no number of more than 32 bits.
func span(d time.Duration) string {
	return fmt.Sprintf("%d hours %.6f seconds", d/time.Hour, (d % time.Hour).Truncate(time.Microsecond).Seconds())
}

// stamp returns t for a ::text::timestamptz parameter, in a form that every DateStyle reads the same, or NULL where
// it is zero.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Truncate(time.Microsecond).Format("2006-01-02 15:04:05.999999+00")
}

// document returns JSON for a ::text::jsonb parameter, or NULL where there is none.
func document(v json.RawMessage) any {
	if v == nil {
		return nil
	}
	return string(v)
}

// textArray returns list for a ::text::text[] parameter. Every element is quoted, so two characters need an escape.
func textArray(list []string) string {
	var b strings.Builder
	escape := strings.NewReplacer(`"`, `\"`, `\`, `\\`)
	b.WriteByte('{')
	for i, s := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		escape.WriteString(&b, s)
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// intArray returns list for a ::text::bigint[] parameter.
func intArray(list []int64) string {
	b := []byte{'{'}
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(append(b, '}'))
}
