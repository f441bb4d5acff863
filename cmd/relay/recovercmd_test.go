package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestAsk wants the exact word.
func TestAsk(t *testing.T) {
	for typed, want := range map[string]bool{
		"0/1A2B\n": true, "0/1A2B": true, " 0/1A2B \r\n": true,
		"": false, "\n": false, "y\n": false, "yes\n": false, "0/1A2C\n": false, "0/1a2b\n": false,
	} {
		var out bytes.Buffer
		err := ask(strings.NewReader(typed), &out, "Type it: ", "0/1A2B")
		if (err == nil) != want || out.String() != "Type it: " {
			t.Errorf("typed %q: %v, asked %q", typed, err, out.String())
		}
	}
}
