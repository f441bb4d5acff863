package main

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	var text, asJSON bytes.Buffer
	if code := testProcess(nil, &text, &text).execute(t.Context(), []string{"version"}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, text.String())
	}
	if code := testProcess(nil, &asJSON, &asJSON).execute(t.Context(), []string{"version", "--json"}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, asJSON.String())
	}
	var got build
	if err := json.Unmarshal(asJSON.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got != readBuild() || got.GoVersion != runtime.Version() || got.Version == "" || got.Commit == "" {
		t.Errorf("version --json = %+v", got)
	}
	for _, want := range []string{"relay " + got.Version, "commit " + got.Commit, got.GoVersion} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("version lacks %q: %s", want, text.String())
		}
	}
}
