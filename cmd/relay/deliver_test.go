package main

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

func deliverStats() deliver.Stats {
	return deliver.Stats{
		Records:    map[deliver.RecordOutcome]uint64{deliver.RecordRegistered: 3},
		Registered: map[string]map[ledger.Outcome]uint64{"mail": {ledger.Known: 2}},
		Attempts:   map[string]map[ledger.Outcome]uint64{"mail": {ledger.Delivered: 1, "": 4}},
		Member:     true, Partitions: 2, Lag: 7, Rebalances: 1,
	}
}

func TestDeliverMetrics(t *testing.T) {
	t.Parallel()
	rules := &deliver.Rules{Channels: []*deliver.ChannelSetting{{Name: "mail"}}}
	w := httptest.NewRecorder()
	newDeliverRegistry(deliverStats, rules, "v1").ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	page := w.Body.String()
	for _, want := range []string{
		`relay_deliver_records_total{outcome="registered"} 3`, `relay_deliver_records_total{outcome="parked"} 0`,
		`relay_deliver_registered_total{channel="mail",outcome="known"} 2`, `relay_deliver_attempts_total{channel="mail",outcome="delivered"} 1`,
		`relay_deliver_attempts_total{channel="mail",outcome="unrecorded"} 4`, `relay_deliver_attempts_total{channel="mail",outcome="dead"} 0`,
		`relay_deliver_parked_records_total{class="foreign"} 0`, `relay_deliver_lag_records 7`, `relay_deliver_held{channel="mail"} 0`, `relay_deliver_stalled 0`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("lacks %q", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 100)
	newDeliverCollector(deliverStats, rules).Describe(descs)
	close(descs)
	for d := range descs {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		if !bytes.Contains(readme, []byte("`"+name+"`")) {
			t.Errorf("README.md does not list %s", name)
		}
	}
}

func TestDeliverReport(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*deliver.Stats){
		"delivering": func(*deliver.Stats) {},
		"rejoining":  func(s *deliver.Stats) { s.Member = false },
		"starting":   func(s *deliver.Stats) { s.Rebalances = 0 },
		"stalled":    func(s *deliver.Stats) { s.Stalled = "the database is away" },
	} {
		s := deliverStats()
		change(&s)
		h := deliverHandler(func() deliver.Stats { return s }, http.NotFoundHandler(), nil)
		w := httptest.NewRecorder()
		req := httptest.NewRequest("GET", "/readyz", nil)
		req.Host = "127.0.0.1"
		h.ServeHTTP(w, req)
		if code := w.Code; (code == 200) != (want == "delivering") || !strings.Contains(w.Body.String(), `"state": "`+want+`"`) {
			t.Errorf("%s: code %d, %s", want, code, w.Body)
		}
	}
}

// What an attempt failed of may name who was to get what, and is not logged.
func TestObserveDeliveries(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	observe := observeDeliveries(t.Context(), newLogger(&log, LogConfig{Format: "json", Level: -8}), newThrottle(throttleInterval))
	for _, o := range []ledger.Outcome{ledger.Delivered, ledger.Failed, ledger.Failed, ledger.Dead, ""} {
		observe(deliver.Observation{Channel: "mail", Attempt: 2, Outcome: o, Err: errors.New("no mailbox ann@example.test")})
	}
	text := log.String()
	if strings.Contains(text, "ann@") || strings.Count(text, "\n") != 4 || !strings.Contains(text, `"delivery needs a person"`) {
		t.Errorf("log:\n%s", text)
	}
}
