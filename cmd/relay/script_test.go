package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/testenv"
)

// TestCLI runs the scenarios in testdata/cli. A scenario is a list of sections, each begun by a line "-- ":
//
//	-- file NAME MODE      the lines that follow are written to the file, in a directory of the scenario's own
//	-- env NAME=VALUE      for the commands that follow; env alone forgets all
//	-- run ARGUMENTS       a command line of relay; $DIR is the directory
//	-- exit CODE           what it returned
//	-- stdout, -- stderr   what it wrote, the lines that follow; left out when it wrote nothing
//
// With -update, what a command did replaces what was expected.
func TestCLI(t *testing.T) {
	paths, err := filepath.Glob("testdata/cli/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := playScenario(t, string(want))
			if flag.Lookup("update").Value.String() == "true" {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite the scenarios' expectations")
	if code, ok := childMain(); ok {
		os.Exit(code)
	}
	os.Exit(testenv.Main(m))
}

// playScenario runs a scenario and returns it with the expectations replaced by what happened.
func playScenario(t *testing.T, script string) string {
	t.Helper()
	dir := t.TempDir()
	var environ []string
	var out strings.Builder
	head, rest, _ := strings.Cut("\n"+script, "\n-- ")
	out.WriteString(strings.TrimPrefix(head, "\n"))
	if head != "" {
		out.WriteString("\n")
	}
	for section := range strings.SplitSeq(strings.TrimSuffix(rest, "\n"), "\n-- ") {
		line, body, _ := strings.Cut(section, "\n")
		verb, arg, _ := strings.Cut(line, " ")
		switch verb {
		case "exit", "stdout", "stderr":
			continue
		case "file":
			var name string
			var mode os.FileMode
			if _, err := fmt.Sscanf(arg, "%s %o", &name, &mode); err != nil {
				t.Fatalf("scenario: file %q: %v", arg, err)
			}
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(strings.ReplaceAll(body, "$DIR", dir)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, mode); err != nil { // WriteFile's mode goes through the umask
				t.Fatal(err)
			}
		case "env":
			if arg == "" {
				environ = nil
			} else {
				environ = append(environ, strings.ReplaceAll(arg, "$DIR", dir))
			}
		case "run":
		default:
			t.Fatalf("scenario: unknown section %q", line)
		}
		fmt.Fprintf(&out, "-- %s\n", section)
		if verb == "run" {
			var stdout, stderr bytes.Buffer
			args := strings.Fields(strings.ReplaceAll(arg, "$DIR", dir))
			p := testProcess(environ, &stdout, &stderr)
			fmt.Fprintf(&out, "-- exit %d\n", p.execute(t.Context(), args))
			for _, s := range []struct {
				name string
				text string
			}{{"stdout", stdout.String()}, {"stderr", stderr.String()}} {
				if s.text != "" {
					fmt.Fprintf(&out, "-- %s\n%s\n", s.name, strings.TrimSuffix(strings.ReplaceAll(s.text, dir, "$DIR"), "\n"))
				}
			}
		}
	}
	return out.String()
}
