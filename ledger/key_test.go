package ledger_test

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/ledger"
)

// vectors are shared with the other languages; docs/keys.md is their specification.
type vectors struct {
	EventKey []struct {
		Case  string    `json:"case"`
		Name  *string   `json:"name"`
		Parts []*string `json:"parts"`
		Want  string    `json:"want"`
		Error string    `json:"error"`
	} `json:"event_key"`
	Recipient []struct {
		Case  string  `json:"case"`
		Type  *string `json:"type"`
		ID    *string `json:"id"`
		Want  string  `json:"want"`
		Error string  `json:"error"`
	} `json:"recipient"`
	PayloadHash []struct {
		Base64 []byte `json:"base64"`
		Want   string `json:"want"`
	} `json:"payload_hash"`
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile("testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.EventKey) < 40 || len(v.Recipient) < 10 || len(v.PayloadHash) < 5 {
		t.Fatalf("read %d, %d and %d vectors", len(v.EventKey), len(v.Recipient), len(v.PayloadHash))
	}
	return v
}

// text is what a JSON null becomes where a language has no NULL.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkKey compares with a vector: a key, or the rule that is broken.
func checkKey(t *testing.T, name, got string, err error, want, wantRule string) {
	t.Helper()
	rule := ""
	if e, ok := errors.AsType[*ledger.KeyError](err); ok {
		rule = e.Rule
	}
	if got != want || rule != wantRule || (err == nil) != (wantRule == "") {
		t.Errorf("%s: got %q, %v; want %q, %q", name, got, err, want, wantRule)
	}
}

// T34, R2, R26: the keys are those of every other language.
func TestEventKey_vectors(t *testing.T) {
	t.Parallel()
	v := readVectors(t)
	for _, tt := range v.EventKey {
		if slices.Contains(tt.Parts, nil) {
			continue // a Go string is never NULL
		}
		var parts []string
		for _, p := range tt.Parts {
			parts = append(parts, text(p))
		}
		got, err := ledger.EventKey(text(tt.Name), parts...)
		checkKey(t, tt.Case, got, err, tt.Want, tt.Error)
	}
	for _, tt := range v.Recipient {
		if tt.ID == nil {
			continue
		}
		got, err := ledger.Recipient(text(tt.Type), *tt.ID)
		checkKey(t, tt.Case, got, err, tt.Want, tt.Error)
	}
	for _, tt := range v.PayloadHash {
		if got := ledger.PayloadHash(tt.Base64); got != tt.Want {
			t.Errorf("hash of %q: got %q, want %q", tt.Base64, got, tt.Want)
		}
	}
	for _, args := range [][]string{{"a\xff", "1"}, {"a", "\xff"}, {"Wrong", "", "\xff"}} {
		got, err := ledger.EventKey(args[0], args[1:]...)
		checkKey(t, strings.Join(args, "/"), got, err, "", "not_utf8")
	}
}

func TestKey_Validate(t *testing.T) {
	t.Parallel()
	good := keyOn("email")
	tests := map[string]struct {
		change func(*ledger.Key)
		want   []string // field and rule
	}{
		"good":               {func(*ledger.Key) {}, nil},
		"longest":            {func(k *ledger.Key) { k.EventKey = strings.Repeat("é", 255) }, nil},
		"no key, no channel": {func(k *ledger.Key) { k.EventKey, k.Channel = "", "" }, []string{"event_key empty", "channel empty"}},
		"no recipient":       {func(k *ledger.Key) { k.Recipient = "" }, nil},
		"too long": {func(k *ledger.Key) {
			k.EventKey, k.Recipient, k.Channel, k.Tenant = strings.Repeat("x", 256), strings.Repeat("x", 256), strings.Repeat("x", 65), strings.Repeat("x", 65)
		}, []string{"tenant too_long", "event_key too_long", "recipient too_long", "channel too_long"}},
		"not text": {func(k *ledger.Key) { k.Tenant, k.Recipient = "\x00", "\xff" }, []string{"tenant has_nul", "recipient not_utf8"}},
	}
	for name, tt := range tests {
		key := good
		tt.change(&key)
		var got []string
		if joined, ok := key.Validate().(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				if e, ok := errors.AsType[*ledger.KeyError](err); ok {
					got = append(got, e.Field+" "+e.Rule)
				}
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestLintEventKey(t *testing.T) {
	t.Parallel()
	tests := map[string][]ledger.KeyWarning{
		"scheduled-post-published:42":                          nil,
		"order-placed:0190b5a2-7c3e-7abc-9def-0123456789ab":    nil, // version 7: a row's id, ordered by time
		"invoice-due:7:2026-11-30T18%3A57%3A22.000Z":           nil,
		"payment:123456789012345678901234567890":               nil,
		"welcome":                                              {ledger.NamesNoEvent},
		"welcome:":                                             {ledger.NamesNoEvent},
		"mail:" + uuid.NewString():                             {ledger.LooksRandom},
		"mail:42:" + strings.ToUpper(uuid.NewString()):         {ledger.LooksRandom},
		strings.ReplaceAll(uuid.NewString(), "-", ""):          {ledger.NamesNoEvent, ledger.LooksRandom},
		"mail:d41d8cd98f00b204e9800998ecf8427e":                {ledger.LooksRandom},
		"scheduled-post-published:42:user-7:2026-11-30T00%3A0": nil,
	}
	for key, wantWarnings := range tests {
		if got := ledger.LintEventKey(key); !slices.Equal(got, wantWarnings) {
			t.Errorf("%q: got %q, want %q", key, got, wantWarnings)
		}
	}
}
