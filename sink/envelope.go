package sink

import (
	"encoding/base64"
	"encoding/json"
	"unicode/utf8"

	"github.com/outboxrelay/relay/outbox"
)

// member is a further column's place in the envelope.
type member struct {
	ref  ref
	lead []byte // ,"alias":
}

func newMember(r ref, alias string) member {
	return member{ref: r, lead: append(appendQuoted([]byte{','}, []byte(alias)), ':')}
}

// appendEnvelope puts the payload into a JSON object, with the members behind it. A payload that is JSON stays as it
// is, byte for byte; other text becomes a string and other bytes one in base64.
func appendEnvelope(dst []byte, e *outbox.Committed, members []member) []byte {
	dst = append(dst, `{"payload":`...)
	dst = appendPayload(dst, e)
	for i := range members {
		x := members[i].ref.column(e)
		if x.Kind == outbox.KindAbsent {
			continue
		}
		dst = append(dst, members[i].lead...)
		dst = appendMember(dst, x)
	}
	return append(dst, '}')
}

func appendPayload(dst []byte, e *outbox.Committed) []byte {
	switch {
	case e.Payload == nil:
		return append(dst, "null"...)
	case e.PayloadKind == outbox.KindBytes && !utf8.Valid(e.Payload):
		return appendBase64(dst, e.Payload)
	case json.Valid(e.Payload):
		return append(dst, e.Payload...)
	case e.PayloadKind == outbox.KindBytes:
		return appendBase64(dst, e.Payload)
	}
	return appendQuoted(dst, e.Payload)
}

func appendMember(dst []byte, x outbox.Extra) []byte {
	switch {
	case x.Value == nil:
		return append(dst, "null"...)
	case x.Kind == outbox.KindNumber, x.Kind == outbox.KindBool, x.Kind == outbox.KindJSON:
		return append(dst, x.Value...)
	case x.Kind == outbox.KindBytes:
		return appendBase64(dst, x.Value)
	}
	return appendQuoted(dst, x.Value)
}

func appendBase64(dst, b []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"')
}

// appendQuoted appends text as a JSON string. Only what JSON demands is escaped.
func appendQuoted(dst, text []byte) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
