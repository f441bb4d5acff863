package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	o := defaults("drain")
	if err := o.parse("drain", strings.Fields("--systems relay,debezium --rows 5 --k 1,10 --json"), io.Discard); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{[]string{"relay", "debezium"}, 5, []int{1, 10}, true}, []any{o.systems, o.rows, o.k, o.json}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, line := range []string{"--rows 0", "--k 0", "--k ten", "--payload 9", "--clients 3", "rest", "--nonsense", "--repeats -1"} {
		if err := defaults("drain").parse("drain", strings.Fields(line), io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%q: got %v, want a usage error", line, err)
		}
	}
}

func TestDatasets(t *testing.T) {
	t.Parallel()
	sets := func(k []int, vary string) ([]series, error) {
		o := defaults("drain")
		o.k, o.vary = k, vary
		return (&bench{opt: o}).datasets()
	}
	got, err := sets([]int{1, 10}, "")
	if err != nil || len(got) != 2 || got[0].k != 1 || got[1].k != 10 || got[0].name == got[1].name {
		t.Errorf("two values of k: %v, %v", got, err)
	}
	got, err = sets([]int{10}, "payload=10,4000")
	if err != nil || len(got) != 2 || got[0].payload != 10 || got[1].payload != 4000 || got[1].x != 4000 || got[1].k != 10 {
		t.Errorf("two payloads: %v, %v", got, err)
	}
	for _, vary := range []string{"payload", "payload=9", "rows=0", "rows=x", "size=1"} {
		if got, err := sets([]int{10}, vary); !errors.Is(err, errUsage) {
			t.Errorf("vary %q: %v, %v, want a usage error", vary, got, err)
		}
	}
}

func TestPlotDrain(t *testing.T) {
	t.Parallel()
	var results []drainResult
	for _, x := range []int{1, 10, 1000} {
		for _, name := range []string{"relay", "a<b"} {
			results = append(results, drainResult{System: name, X: x, RowsPerSec: spread{1000, float64(2000 * x), 300_000}})
		}
	}
	for _, some := range [][]drainResult{results, results[:1], nil} {
		plot := plotDrain(some, "rows & more")
		d := xml.NewDecoder(bytes.NewReader(plot))
		points := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%v in\n%s", err, plot)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
				points++
			}
		}
		systems := map[string]bool{}
		for _, r := range some {
			systems[r.System] = true
		}
		if want := len(some) + len(systems); points != want { // each with its place in the legend
			t.Errorf("%d circles for %d results, want %d", points, len(some), want)
		}
	}
}
