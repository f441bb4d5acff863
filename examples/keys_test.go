package examples_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// T34: the keys and hashes of ledger/testdata/keys.json, and the refusals, are the same bytes in every language; in Go
// and SQL they are tested in package ledger.
func TestKeys(t *testing.T) {
	t.Parallel()
	const path = "../ledger/testdata/keys.json"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type vector struct{ Want, Error string }
	var v struct {
		EventKey    []vector `json:"event_key"`
		Recipient   []vector `json:"recipient"`
		PayloadHash []vector `json:"payload_hash"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	n := 0
	for _, list := range [][]vector{v.EventKey, v.Recipient, v.PayloadHash} {
		for _, c := range list {
			if c.Error != "" {
				c.Want = "refused: " + c.Error
			}
			want.WriteString(c.Want + "\n")
			n++
		}
	}
	if n < 70 {
		t.Fatalf("%d vectors", n)
	}
	for language, argv := range map[string]func(*testing.T) []string{
		"php":    func(t *testing.T) []string { return []string{php(t), "php/Keys.php", path} },
		"node":   func(t *testing.T) []string { return []string{node(t), "node/keys.js", path} },
		"python": func(t *testing.T) []string { return []string{python(t), "-B", "python/keys.py", path} },
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want.String(), output(t, command(t, argv(t)))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
