package sink

import "bytes"

// encoder makes records of events. One goroutine uses it.
type encoder struct {
	routes  []*routing
	rec     record
	headers headerParser
	when    []byte // buffer of rec.occurredAt
	whenOf  []byte // what when was made of
	value   []byte // buffer of rec.value
}

// occurred returns the header occurred_at of a timestamp. The events of a transaction often have the same.
func (s *encoder) occurred(in []byte) []byte {
	if len(s.when) == 0 || !bytes.Equal(in, s.whenOf) {
		s.whenOf = append(s.whenOf[:0], in...)
		s.when = appendOccurred(s.when[:0], in)
	}
	return s.when
}
