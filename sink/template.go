package sink

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/outbox"
)

// ref is a value of an event that a route uses: one of its fields, or one of its further columns.
type ref struct {
	name  string
	field func(*outbox.Committed) []byte // nil: a further column
	extra int                            // index into Committed.Extra
}

// fieldRefs are the fields that a route may use by name.
func fieldRef(name string) func(*outbox.Committed) []byte {
	switch name {
	case "aggregate_type":
		return func(e *outbox.Committed) []byte { return e.AggregateType }
	case "aggregate_id":
		return func(e *outbox.Committed) []byte { return e.AggregateID }
	case "event_type":
		return func(e *outbox.Committed) []byte { return e.EventType }
	case "event_key":
		return func(e *outbox.Committed) []byte { return e.EventKey }
	case "tenant":
		return func(e *outbox.Committed) []byte { return e.Tenant }
	}
	return nil
}

// newRef finds a name among the fields, then among the further columns.
func newRef(name string, columns []string) (ref, error) {
	if f := fieldRef(name); f != nil {
		return ref{name: name, field: f}, nil
	}
	i := slices.Index(columns, name)
	if i < 0 {
		return ref{}, fmt.Errorf("%q is neither a field nor a column that is read", name)
	}
	return ref{name: name, extra: i}, nil
}

// value returns the bytes, nil for NULL and for a column that is not there.
func (r *ref) value(e *outbox.Committed) []byte {
	if r.field != nil {
		return r.field(e)
	}
	return r.column(e).Value
}

// column returns the value as that of a further column.
func (r *ref) column(e *outbox.Committed) outbox.Extra {
	switch {
	case r.field != nil:
		return outbox.Extra{Value: r.field(e), Kind: outbox.KindText}
	case r.extra < len(e.Extra):
		return e.Extra[r.extra]
	}
	return outbox.Extra{}
}

// part is a piece of a template: text, or a value where ref.name is not empty.
type part struct {
	text string
	ref  ref
}

func (p part) isValue() bool { return p.text == "" }

// parseTemplate reads a topic's template: {name} stands for a value, everything else for itself.
func parseTemplate(template string, columns []string) ([]part, error) {
	var parts []part
	sample := template
	for rest := template; rest != ""; {
		text, after, open := strings.Cut(rest, "{")
		name, tail, closed := strings.Cut(after, "}")
		if strings.Contains(text, "}") || open && (!closed || name == "" || strings.Contains(name, "{")) {
			return nil, fmt.Errorf("route %q: braces enclose the name of a value, like {aggregate_type}", template)
		}
		if text != "" {
			parts = append(parts, part{text: text})
		}
		if open {
			r, err := newRef(name, columns)
			if err != nil {
				return nil, fmt.Errorf("route %q: %w", template, err)
			}
			parts = append(parts, part{ref: r})
			sample = strings.Replace(sample, "{"+name+"}", "x", 1)
		}
		rest = tail
		if !open {
			break
		}
	}
	if reason := checkTopic(sample); reason != "" {
		return nil, fmt.Errorf("route %q: %s", template, reason)
	}
	return parts, nil
}

// bare reports whether a template is nothing but the value of a further column, so that the row alone would name
// the topic.
func bare(parts []part) bool {
	return len(parts) == 1 && parts[0].text == "" && parts[0].ref.field == nil
}

// expand appends the topic's name; reason says why there is none.
func expand(dst []byte, parts []part, e *outbox.Committed) (name []byte, reason string) {
	for i := range parts {
		p := &parts[i]
		if p.text != "" {
			dst = append(dst, p.text...)
			continue
		}
		v := p.ref.value(e)
		if len(v) == 0 {
			return dst, "it has no " + strings.ReplaceAll(p.ref.name, "_", " ") + " to make its topic from"
		}
		dst = append(dst, v...)
	}
	return dst, ""
}
