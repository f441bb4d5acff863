package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"
)

// canary is a password that has no business in any output.
const canary = "c4n4ry"

func TestSecret_NeverPrinted(t *testing.T) {
	t.Parallel()
	type nested struct {
		Exported   Secret
		unexported Secret
		Pointer    *Secret
		Map        map[string]Secret
	}
	s := NewSecret(canary)
	value := nested{Exported: s, unexported: s, Pointer: &s, Map: map[string]Secret{"k": s}}
	var out bytes.Buffer
	for _, v := range []any{s, &s, value, &value, []Secret{s}, value.unexported} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%10s", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	b, err := xml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	b, err = yaml.Parser().Marshal(map[string]any{"a": s, "b": &s, "c": []any{s}})
	if err != nil {
		t.Fatal(err)
	}
	out.Write(b)
	for _, h := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(h).Info("x", "secret", s, "pointer", &s, "nested", value)
	}
	hex := fmt.Sprintf("%x", canary)
	for _, trace := range []string{canary, hex, strings.ToUpper(hex)} {
		if strings.Contains(out.String(), trace) {
			t.Errorf("output holds %q:\n%s", trace, out.String())
		}
	}
	if !strings.Contains(out.String(), redacted) {
		t.Errorf("output does not say that something was left out:\n%s", out.String())
	}
}

// TestSecret_EveryVerb shows that output says a secret was there, whatever verb was chosen.
func TestSecret_EveryVerb(t *testing.T) {
	t.Parallel()
	s := NewSecret(canary)
	for _, verb := range []string{"%v", "%+v", "%s", "%q", "%x", "%d", "%t", "%f"} {
		for _, v := range []any{s, &s} {
			if got := fmt.Sprintf(verb, v); got != redacted {
				t.Errorf("Sprintf(%q, %T) = %q", verb, v, got)
			}
		}
	}
	if got, want := fmt.Sprintf("%#v", s), "Secret("+redacted+")"; got != want {
		t.Errorf("%%#v = %q, want %q", got, want)
	}
}

func TestSecret_Reveal(t *testing.T) {
	t.Parallel()
	if got := NewSecret("x").Reveal(); got != "x" {
		t.Errorf("Reveal = %q", got)
	}
	var zero Secret
	if !zero.Empty() || !NewSecret("").Empty() || NewSecret("x").Empty() {
		t.Error("Empty is wrong")
	}
	if zero.Reveal() != "" || zero.String() != "" {
		t.Error("the zero Secret is not empty")
	}
}
