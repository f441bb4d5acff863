package sqltest_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// vectors is keys.json, which the builders of all languages are tested with.
type vectors struct {
	EventKey []struct {
		Case        string
		Name        string
		Parts       []*string
		Want, Error string
	} `json:"event_key"`
	Recipient []struct {
		Case        string
		Type        string
		ID          *string
		Want, Error string
	}
	PayloadHash []struct{ Base64, Want string } `json:"payload_hash"`
	ProviderKey []struct {
		Tenant, Recipient, Channel, Want string
		EventKey                         string `json:"event_key"`
		Generation                       int
	} `json:"provider_key"`
}

func TestKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	data, err := os.ReadFile("../testdata/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.EventKey) < 50 || len(v.Recipient) < 10 || len(v.PayloadHash) < 5 || len(v.ProviderKey) < 5 {
		t.Fatalf("vectors are missing: %d, %d, %d, %d", len(v.EventKey), len(v.Recipient), len(v.PayloadHash), len(v.ProviderKey))
	}
	rules := map[string]int{}
	check := func(name, want, rule, sql string, args ...any) {
		t.Helper()
		var got string
		err := b.conn.QueryRow(t.Context(), sql, args...).Scan(&got)
		if rule == "" {
			if err != nil || got != want {
				t.Errorf("%s: %q and %v, want %q", name, got, err, want)
			}
			return
		}
		rules[rule]++
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "22023" || pg.ConstraintName != rule || pg.Hint == "" {
			t.Errorf("%s: %q and %v, want it refused by %s with a hint", name, got, err, rule)
		}
	}
	for _, c := range v.EventKey {
		check(c.Case, c.Want, c.Error, "SELECT ledger.event_key($1, $2)", c.Name, c.Parts)
	}
	for _, c := range v.Recipient {
		check(c.Case, c.Want, c.Error, "SELECT ledger.recipient($1, $2)", c.Type, c.ID)
	}
	for _, c := range v.PayloadHash {
		payload, err := base64.StdEncoding.DecodeString(c.Base64)
		if err != nil {
			t.Fatal(err)
		}
		check(c.Base64, c.Want, "", "SELECT ledger.payload_hash($1)", payload)
	}
	for _, c := range v.ProviderKey {
		check(c.EventKey, c.Want, "", "SELECT ledger.provider_key($1, $2, $3, $4, $5)", c.Tenant, c.EventKey, c.Recipient, c.Channel, c.Generation)
	}
	for _, rule := range []string{"name_invalid", "parts_missing", "parts_too_many", "part_empty", "part_control", "part_space", "part_not_nfc", "key_too_long"} {
		if rules[rule] == 0 {
			t.Errorf("no vector is refused by %s", rule)
		}
	}
	check("no name", "", "name_invalid", "SELECT ledger.event_key(NULL, ARRAY['1'])")
	check("no parts", "", "parts_missing", "SELECT ledger.event_key('e', NULL)")
	// The builders' longest fits the ledger.
	b.answer("reserved", "SELECT outcome FROM ledger.reserve('', ledger.event_key('e', ARRAY[repeat('x', 253)]), ledger.recipient('user', repeat('1', 250)), 'simple', 'w', now())")
}
