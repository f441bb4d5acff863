package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// cost is what one operation of a benchmark takes, as far as it does not hang on the clock.
type cost struct {
	bytes  int64 // allocated
	allocs int64
}

// errRegression ends check when something costs more than it did.
var errRegression = errors.New("bench: hot paths cost more than the stored figures")

// check holds the output of go test -bench, on its standard input, against stored figures: no clock, so it means the
// same on a busy machine. With -update it stores them.
func check(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	fs := flag.NewFlagSet("bench check", flag.ContinueOnError)
	fs.SetOutput(stderr)
	path := fs.String("baseline", "bench/baseline.txt", "stored figures")
	update := fs.Bool("update", false, "store what is read")
	if err := fs.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	got, err := readBenchmarks(io.TeeReader(stdin, stderr))
	if err != nil {
		return err
	}
	if *update {
		return writeFile(*path, []byte(formatBaseline(got)))
	}
	text, err := os.ReadFile(*path)
	if err != nil {
		return fmt.Errorf("read baseline: %w", err)
	}
	want, err := parseBaseline(string(text))
	if err != nil {
		return fmt.Errorf("read baseline %q: %w", *path, err)
	}
	complaints := compareCosts(want, got)
	for _, c := range complaints {
		fmt.Fprintln(stdout, c)
	}
	if len(complaints) > 0 {
		return errRegression
	}
	fmt.Fprintf(stdout, "%d benchmarks within the stored figures\n", len(want))
	return nil
}

// compareCosts lists what got worse, and what is in one of the two only: a guard that is gone guards nothing.
func compareCosts(want, got map[string]cost) []string {
	var complaints []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w := want[name]
		g, ran := got[name]
		switch {
		case !ran:
			complaints = append(complaints, name+": it is in the baseline and did not run")
		case g.allocs > allowed(w.allocs, 0):
			complaints = append(complaints, fmt.Sprintf("%s: %d allocations, stored are %d", name, g.allocs, w.allocs))
		case g.bytes > allowed(w.bytes, 16):
			complaints = append(complaints, fmt.Sprintf("%s: %d bytes allocated, stored are %d", name, g.bytes, w.bytes))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, stored := want[name]; !stored {
			complaints = append(complaints, name+": it is not in the baseline; make bench-baseline stores it")
		}
	}
	return complaints
}

// allowed is a stored figure and a twentieth of it, at least slack: a buffer that grows once is spread over as many
// operations as the run had.
func allowed(stored, slack int64) int64 { return stored + max(stored/20, slack) }

// readBenchmarks reads what go test -bench -benchmem prints. Names are led by their package, without the module.
func readBenchmarks(r io.Reader) (map[string]cost, error) {
	all := map[string]cost{}
	pkg := ""
	for scan := bufio.NewScanner(r); ; {
		if !scan.Scan() {
			if err := scan.Err(); err != nil {
				return nil, fmt.Errorf("read benchmarks: %w", err)
			}
			break
		}
		line := scan.Text()
		if path, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = path[strings.LastIndexByte(path, '/')+1:]
		}
		if strings.HasPrefix(line, "FAIL") || strings.HasPrefix(line, "--- FAIL") {
			return nil, fmt.Errorf("read benchmarks: %s", line)
		}
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		c := cost{bytes: -1, allocs: -1}
		for i := 2; i+1 < len(fields); i += 2 {
			if n, err := strconv.ParseInt(fields[i], 10, 64); err == nil {
				switch fields[i+1] {
				case "B/op":
					c.bytes = n
				case "allocs/op":
					c.allocs = n
				}
			}
		}
		if c.bytes < 0 || c.allocs < 0 {
			return nil, fmt.Errorf("read benchmarks: no allocations in %q; go test needs -benchmem", line)
		}
		all[pkg+"."+withoutProcs(fields[0])] = c
	}
	if len(all) == 0 {
		return nil, errors.New("read benchmarks: there are none")
	}
	return all, nil
}

// withoutProcs strips the number of processors that go test hangs on a name.
func withoutProcs(name string) string {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return name
	}
	if _, err := strconv.Atoi(name[i+1:]); err != nil {
		return name
	}
	return name[:i]
}

const baselineHead = "# Bytes and allocations of one operation; make bench-baseline writes this file.\n"

func formatBaseline(all map[string]cost) string {
	var b strings.Builder
	b.WriteString(baselineHead)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s %d B/op %d allocs/op\n", name, all[name].bytes, all[name].allocs)
	}
	return b.String()
}

func parseBaseline(text string) (map[string]cost, error) {
	all := map[string]cost{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		var name string
		var c cost
		if _, err := fmt.Sscanf(line, "%s %d B/op %d allocs/op", &name, &c.bytes, &c.allocs); err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		all[name] = c
	}
	return all, nil
}
