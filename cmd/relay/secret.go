package main

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted stands wherever a secret would have been printed.
const redacted = "[redacted]"

// Secret is a string that no formatter, encoder or logger prints. The zero Secret is empty.
//
// The value sits behind a pointer because fmt, when it meets a Secret in an unexported field, cannot call its
// methods and prints what it finds by reflection: with a pointer that is an address.
type Secret struct {
	p *string
}

// NewSecret wraps a value.
func NewSecret(value string) Secret {
	if value == "" {
		return Secret{}
	}
	return Secret{p: &value}
}

// Reveal returns the value. Its callers are the places where a secret can leak: keep them few.
func (s Secret) Reveal() string {
	if s.p == nil {
		return ""
	}
	return *s.p
}

// Empty reports whether there is no value.
func (s Secret) Empty() bool { return s.p == nil }

// String returns a fixed text, or nothing for the empty Secret, so that output shows whether one is set.
func (s Secret) String() string {
	if s.Empty() {
		return ""
	}
	return redacted
}

// GoString serves %#v.
func (s Secret) GoString() string { return "Secret(" + s.String() + ")" }

// Format serves every verb: without it %d would print the fields.
func (s Secret) Format(f fmt.State, verb rune) {
	text := s.String()
	if verb == 'v' && f.Flag('#') {
		text = s.GoString()
	}
	_, _ = io.WriteString(f, text)
}

// MarshalText serves encoders of text: JSON, YAML, XML, map keys.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON serves encoding/json.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML serves the YAML packages.
func (s Secret) MarshalYAML() (any, error) { return s.String(), nil }

// LogValue serves slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
