package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outboxrelay/relay/internal/state"
)

// TestAlerts reads docs/alerts.yml as Prometheus would, and asks of each rule that it names series and states that
// there are, says what to do, and is explained.
func TestAlerts(t *testing.T) {
	t.Parallel()
	read := func(path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	doc, err := yaml.Parser().Unmarshal(read("../../docs/alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	manual := string(read("../../docs/monitoring.md"))
	descs := make(chan *prometheus.Desc, 100)
	newCollector(&sources{}, time.Now).Describe(descs)
	close(descs)
	series := map[string]bool{}
	for d := range descs {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		series[name] = true
	}
	known := map[string]bool{}
	for _, s := range state.All {
		known["relay_state/"+string(s)] = true
	}
	for _, s := range deadLetterStates {
		known["relay_dead_letters/"+s] = true
	}
	for _, s := range walStatuses {
		known["relay_slot_wal_status/"+s] = true
	}
	rules := 0
	for _, g := range doc["groups"].([]any) {
		for _, r := range g.(map[string]any)["rules"].([]any) {
			rule := r.(map[string]any)
			name, expr := rule["alert"].(string), rule["expr"].(string)
			rules++
			for _, used := range regexp.MustCompile(`\brelay_\w+`).FindAllString(expr, -1) {
				if !series[used] {
					t.Errorf("%s uses %s, which there is not", name, used)
				}
			}
			for _, m := range regexp.MustCompile(`(\w+)\{(?:state|status)=~?"([^"]*)"\}`).FindAllStringSubmatch(expr, -1) {
				for value := range strings.SplitSeq(m[2], "|") {
					if !known[m[1]+"/"+value] {
						t.Errorf("%s: %s is never %q", name, m[1], value)
					}
				}
			}
			notes, _ := rule["annotations"].(map[string]any)
			if notes["summary"] == nil || notes["action"] == nil {
				t.Errorf("%s does not say what it means and what to do", name)
			}
			if !strings.Contains(manual, "| `"+name+"` |") {
				t.Errorf("docs/monitoring.md does not explain %s", name)
			}
		}
	}
	if rules != 5 {
		t.Errorf("%d rules", rules)
	}
}
