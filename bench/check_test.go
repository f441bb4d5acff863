package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const benchOutput = `goos: linux
pkg: example.com/relay/sink
BenchmarkAccept/plain-2         	  200000	       512.0 ns/op	     100 B/op	       2 allocs/op
BenchmarkSeal-16                	    2000	     90000 ns/op	 5000.00 MB/s	       0 B/op	       0 allocs/op
PASS
pkg: example.com/relay/cdc
BenchmarkChunk                  	  200000	       300.0 ns/op	       0 B/op	       0 allocs/op
ok  	example.com/relay/cdc	1.0s
`

func TestReadBenchmarks(t *testing.T) {
	t.Parallel()
	got, err := readBenchmarks(strings.NewReader(benchOutput))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]cost{"sink.BenchmarkAccept/plain": {100, 2}, "sink.BenchmarkSeal": {}, "cdc.BenchmarkChunk": {}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(cost{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "ok\n", "BenchmarkX 1 2 ns/op\n", benchOutput + "FAIL\texample.com/relay/outbox\n"} {
		if got, err := readBenchmarks(strings.NewReader(bad)); err == nil {
			t.Errorf("readBenchmarks(%q) = %v, want an error", bad, got)
		}
	}
}

func TestCompareCosts(t *testing.T) {
	t.Parallel()
	want := map[string]cost{"a": {1000, 100}, "zero": {}}
	for name, tt := range map[string]struct {
		got        map[string]cost
		complaints int
	}{
		"same":                   {map[string]cost{"a": {1000, 100}, "zero": {}}, 0},
		"within a twentieth":     {map[string]cost{"a": {1050, 105}, "zero": {16, 0}}, 0},
		"better":                 {map[string]cost{"a": {10, 1}, "zero": {}}, 0},
		"more allocations":       {map[string]cost{"a": {1000, 106}, "zero": {}}, 1},
		"more bytes":             {map[string]cost{"a": {1051, 100}, "zero": {}}, 1},
		"an allocation at zero":  {map[string]cost{"a": {1000, 100}, "zero": {0, 1}}, 1},
		"one did not run":        {map[string]cost{"a": {1000, 100}}, 1},
		"one that is not stored": {map[string]cost{"a": {1000, 100}, "zero": {}, "new": {}}, 1},
	} {
		if got := compareCosts(want, tt.got); len(got) != tt.complaints {
			t.Errorf("%s: %q, want %d complaints", name, got, tt.complaints)
		}
	}
}

// What check stores it accepts, and nothing worse.
func TestCheck(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "baseline.txt")
	var out bytes.Buffer
	if err := check([]string{"-baseline", path, "-update"}, strings.NewReader(benchOutput), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := check([]string{"-baseline", path}, strings.NewReader(benchOutput), &out, io.Discard); err != nil {
		t.Errorf("the figures just stored: %v\n%s", err, &out)
	}
	worse := strings.Replace(benchOutput, "2 allocs/op", "3 allocs/op", 1)
	if err := check([]string{"-baseline", path}, strings.NewReader(worse), &out, io.Discard); !errors.Is(err, errRegression) {
		t.Errorf("one allocation more: got %v, want %v", err, errRegression)
	}
}
