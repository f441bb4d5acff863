package ledger_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/ledger"
)

// Terminal rows are left only by redrive, purge and a late success; delivered and skipped not even by that (LI4).
func TestMachine_terminal(t *testing.T) {
	t.Parallel()
	for _, s := range ledger.Machine() {
		for _, from := range s.From {
			if !from.Terminal() || from == s.To {
				continue
			}
			if s.Row != "19" && s.Row != "20" && s.Row != "21" && !(s.Row == "11" && from == ledger.StateDead) {
				t.Errorf("row %s leaves %s", s.Row, from)
			}
		}
	}
}

// Every state is reached, every state is left, and every outcome is one of the list.
func TestMachine_whole(t *testing.T) {
	t.Parallel()
	reached, left := map[ledger.State]bool{}, map[ledger.State]bool{}
	for _, s := range ledger.Machine() {
		reached[s.To] = true
		for _, from := range s.From {
			left[from] = true
		}
		if s.Outcome != "" && !slices.Contains(ledger.Outcomes(), s.Outcome) {
			t.Errorf("row %s: outcome %q is not listed", s.Row, s.Outcome)
		}
	}
	for _, s := range ledger.States() {
		if !reached[s] || !left[s] {
			t.Errorf("state %q: reached %v, left %v", s, reached[s], left[s])
		}
	}
}

// R15: every outcome has its acknowledgement; what the ledger holds no row for is never acknowledged.
func TestOutcome_Acknowledge(t *testing.T) {
	t.Parallel()
	wants := map[ledger.Acknowledgement][]ledger.Outcome{
		ledger.Acknowledge:          {"delivered", "already_delivered", "late_accepted", "skipped", "already_skipped", "expired", "gone"},
		ledger.AcknowledgeAndAlert:  {"dead", "payload_mismatch", "not_begun", "refused"},
		ledger.AcknowledgeIfClaimed: {"already_reserved", "not_due", "blocked", "failed", "uncertain", "fenced", "released", "reserved", "registered", "known", "redriven", "begun", "already_begun", "lease_short", "renewed", "hold_cap", "lease_over"},
		ledger.TryAgain:             {"busy", "", "what is this"},
	}
	n := 0
	for ack, outcomes := range wants {
		for _, o := range outcomes {
			if got := o.Acknowledge(); got != ack {
				t.Errorf("%q: %v, want %v", o, got, ack)
			}
			if slices.Contains(ledger.Outcomes(), o) {
				n++
			}
		}
	}
	if n != len(ledger.Outcomes()) {
		t.Errorf("%d outcomes tested of %d", n, len(ledger.Outcomes()))
	}
}

// change is a step of one function from one state.
type change struct {
	call     string
	from, to ledger.State
	outcome  ledger.Outcome
}

// functions are those of schema ledger that move rows; answering ones say outcomes.
var functions = map[string]bool{
	"reserve": true, "reserve_batch": true, "once": true, "once_batch": true, "begin_effect": true, "renew": true, "complete": true,
	"complete_batch": true, "fail": true, "skip": true, "release": true, "resolve": true, "redrive": true,
	"register_batch": false, "claim_due": false, "claim_uncertain": false, "sweep": false, "purge": false,
}

// The state machine in Go is the one that the SQL functions are tested against, line by line.
func TestMachine_matchesSQL(t *testing.T) {
	t.Parallel()
	inGo, inSQL := map[change]string{}, map[change]string{}
	for _, s := range ledger.Machine() {
		for _, call := range s.Calls {
			for _, from := range s.From {
				c := change{call, from, s.To, s.Outcome}
				if !functions[call] {
					c.outcome = ""
				}
				inGo[c] = s.Row
			}
		}
	}
	f, err := os.Open("testdata/transitions.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines[1:] { // rule, state, situation, channel, call, to, outcome, ...
		to := ledger.State(strings.Replace(line[5], "gone", "none", 1))
		if to == "=" {
			continue
		}
		for _, state := range strings.Fields(line[1]) {
			from := ledger.State(state)
			if from == "none" && to == "none" {
				continue
			}
			for _, variant := range strings.Fields(line[4]) {
				call := functionOf(t, variant)
				c := change{call, from, to, ledger.Outcome(line[6])}
				if !functions[call] {
					c.outcome = ""
				}
				inSQL[c] = line[0]
				if variant == "complete@late" { // stands for the batch as well, which does the same row by row
					c.call = "complete_batch"
					inSQL[c] = line[0]
				}
			}
		}
	}
	for c, row := range inGo {
		if _, ok := inSQL[c]; !ok {
			t.Errorf("row %s, only in Go: %+v", row, c)
		}
	}
	for c, row := range inSQL {
		if _, ok := inGo[c]; !ok {
			t.Errorf("row %s, only in SQL: %+v", row, c)
		}
	}
	if len(inGo) < 80 {
		t.Errorf("%d changes", len(inGo))
	}
}

// functionOf strips the variant of a call: fail_retry, complete@late.
func functionOf(t *testing.T, variant string) string {
	t.Helper()
	name, _, _ := strings.Cut(variant, "@")
	for {
		if _, ok := functions[name]; ok {
			return name
		}
		cut := strings.LastIndex(name, "_")
		if cut < 0 {
			t.Fatalf("call %q is unknown", variant)
		}
		name = name[:cut]
	}
}

// docs/ledger.md has the table as it is here, and names only tests that exist.
func TestDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/ledger.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range ledger.Machine() {
		var from []string
		for _, state := range s.From {
			from = append(from, string(state))
		}
		line := fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", s.Row, strings.Join(s.Calls, ", "), strings.Join(from, ", "), s.To, s.Outcome, s.Guard)
		if !strings.Contains(string(page), line) {
			t.Errorf("the page lacks %s", line)
		}
	}
	var code strings.Builder
	for _, pattern := range []string{"*_test.go", "sqltest/*_test.go", "../examples/*_test.go", "../internal/lint/*_test.go"} {
		for name := range testsIn(t, pattern) {
			code.WriteString("func " + name + "(")
		}
	}
	named := regexp.MustCompile("`(Test[A-Za-z_]+)").FindAllStringSubmatch(string(page), -1)
	if len(named) < 40 {
		t.Errorf("the page names %d tests", len(named))
	}
	for _, m := range named {
		if !strings.Contains(code.String(), "func "+m[1]+"(") {
			t.Errorf("the page names %s, which does not exist", m[1])
		}
	}
}
