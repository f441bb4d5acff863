package sinktest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/sink/sinktest"
)

const wrongEnv = "SINKTEST_WRONG"

// TestWrong wants each fault to be found, by the test that is there for it.
func TestWrong(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the suite once for each fault")
	}
	for wrong, test := range map[string]string{
		"makes null empty":       "bytes",
		"drops empty headers":    "bytes",
		"loses the first":        "bytes",
		"reorders":               "order",
		"spreads keys":           "order",
		"answers first":          "durable",
		"repeats":                "resent",
		"gives up":               "resent",
		"takes poison":           "poison",
		"calls poison an outage": "poison",
		"ignores its context":    "cancelled",
		"ignores Close":          "closed",
		"sends after Close":      "closed",
		"does not fence":         "replaced",
		"leaks":                  "goroutines",
	} {
		t.Run(wrong, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVictim$/^"+test+"$", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), wrongEnv+"="+wrong)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestVictim/"+test) {
				t.Errorf("a publisher that %s passes the test %q: %v\n%s", wrong, test, err, out)
			}
		})
	}
}

// TestVictim is what TestWrong runs: the suite over a publisher with a fault.
func TestVictim(t *testing.T) {
	wrong := os.Getenv(wrongEnv)
	if wrong == "" {
		t.Skip("only for TestWrong")
	}
	sinktest.Run(t, func(*testing.T) sinktest.Target { return target(wrong) })
}
