package main

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("GET /metrics = %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetrics_Lint(t *testing.T) {
	t.Parallel()
	m := newMetrics(testSources(state.NewBoard(nil)), "v1.2.3")
	problems, err := promlint.New(strings.NewReader(scrape(t, m))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetHelp() == "" {
			t.Errorf("%s has no HELP", f.GetName())
		}
		if (f.GetType() == dto.MetricType_COUNTER) != strings.HasSuffix(f.GetName(), "_total") {
			t.Errorf("%s is a %s", f.GetName(), f.GetType())
		}
	}
}

func TestMetrics_Series(t *testing.T) {
	t.Parallel()
	board := state.NewBoard(nil)
	board.Set(state.Status{State: state.Streaming})
	m := newMetrics(testSources(board), "v1.2.3")
	m.Observe(sink.BatchResult{Events: 3, Produce: 3 * time.Millisecond, CommitAge: -time.Second})
	text := scrape(t, m)
	for _, want := range []string{
		`relay_state{state="streaming"} 1`, `relay_state{state="starting"} 0`, `relay_state{state="config_invalid"} 0`,
		"relay_cdc_connected 1", "relay_cdc_received_transactions_total 10", "relay_cdc_received_events_total 20", "relay_cdc_received_wal_bytes_total 3000",
		`relay_cdc_reconnects_total{reason="stopped"} 1`, `relay_cdc_reconnects_total{reason="database_unreachable"} 2`,
		`relay_cdc_reconnects_total{reason="other"} 4`, `relay_cdc_reconnects_total{reason="slot_lost"} 0`,
		`relay_slot_lag_bytes{slot="relay"} 4096`, `relay_slot_retained_bytes{slot="relay"} 1.048576e+06`, `relay_slot_active{slot="relay"} 1`,
		`relay_slot_wal_status{slot="relay",status="reserved"} 1`, `relay_slot_wal_status{slot="relay",status="lost"} 0`,
		`relay_slot_safe_wal_bytes{slot="relay"} 6.6060288e+07`, `relay_slot_limit_seconds{slot="relay"} 63`, "relay_backlog_left_events 6",
		`relay_dead_letters{state="parked"} 2`, `relay_dead_letters{state="discarded"} 0`,
		"relay_backlog_events 5", "relay_backlog_bytes 700", "relay_publish_lag_seconds 2", "relay_last_confirm_timestamp_seconds 1.7000000005e+09",
		`relay_publish_events_total{outcome="published",topic="a"} 7`, `relay_publish_retries_total{reason="timeout"} 2`, `relay_publish_retries_total{reason="leader"} 0`,
		"relay_batch_events_sum 3", "relay_produce_duration_seconds_sum 0.003", "relay_commit_to_ack_seconds_sum 0\n", "relay_commit_to_ack_seconds_count 1",
		`relay_build_info{go_version="`, `version="v1.2.3"} 1`, "go_goroutines ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q", want)
		}
	}
	for _, s := range state.All {
		if !strings.Contains(text, fmt.Sprintf("relay_state{state=%q} ", s)) {
			t.Errorf("state %s has no series", s)
		}
	}
}

// TestMetrics_Unknown shows that a number nobody has is left out, not told as zero.
func TestMetrics_Unknown(t *testing.T) {
	t.Parallel()
	src := testSources(state.NewBoard(nil))
	src.slot = func() (slotReading, bool) { return slotReading{}, false }
	if text := scrape(t, newMetrics(src, "")); strings.Contains(text, "relay_slot_lag_bytes") {
		t.Error("slot lag is shown without being known")
	}
	src.slot = func() (slotReading, bool) { return slotReading{WALStatus: "reserved", Growth: ptr(1.0)}, true }
	if text := scrape(t, newMetrics(src, "")); strings.Contains(text, "relay_slot_limit_seconds{") || strings.Contains(text, "relay_slot_safe_wal_bytes{") {
		t.Error("a limit is shown where there is none")
	}
}

// TestMetrics_Bounded shows that the number of series does not follow the number of topics.
func TestMetrics_Bounded(t *testing.T) {
	t.Parallel()
	published := map[string]uint64{}
	src := testSources(state.NewBoard(nil))
	src.sink = func() sink.Stats { return sink.Stats{Published: published} }
	m := newMetrics(src, "")
	published["first"] = 1
	scrape(t, m)
	for i := range 3 * maxTopicLabels {
		published[fmt.Sprint("topic-", i)] = 1
	}
	for range 2 {
		text := scrape(t, m)
		if n := strings.Count(text, "relay_publish_events_total{"); n != maxTopicLabels+1 {
			t.Errorf("%d series, want %d", n, maxTopicLabels+1)
		}
		for _, want := range []string{
			`{outcome="published",topic="first"} 1`,
			fmt.Sprintf(`{outcome="published",topic="other"} %d`, 2*maxTopicLabels+1),
		} {
			if !strings.Contains(text, want) {
				t.Errorf("lacks %q", want)
			}
		}
	}
}

func TestSinkTotals(t *testing.T) {
	t.Parallel()
	var totals sinkTotals
	if got := totals.Stats(); got.Sends != 0 || got.Published == nil {
		t.Errorf("before the first session: %+v", got)
	}
	session := func(n uint64) func() sink.Stats {
		return func() sink.Stats {
			return sink.Stats{BacklogEvents: n, BacklogBytes: n, Published: map[string]uint64{"a": n, fmt.Sprint(n): 1}, PublishedBytes: n, Sends: n, Batches: n,
				Retries: map[string]uint64{"r": n}, Lanes: int(n), HaltedLanes: int(n), Halted: n == 4}
		}
	}
	for _, n := range []uint64{1, 2, 4} {
		totals.Begin(session(n))
	}
	want := sink.Stats{BacklogEvents: 4, BacklogBytes: 4, Published: map[string]uint64{"a": 7, "1": 1, "2": 1, "4": 1}, PublishedBytes: 7, Sends: 7, Batches: 7,
		Retries: map[string]uint64{"r": 7}, Lanes: 4, HaltedLanes: 4, Halted: true}
	for range 2 { // reading does not count twice
		if diff := cmp.Diff(want, totals.Stats()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestMetrics_InREADME: an operator finds every series of ours in the README.
func TestMetrics_InREADME(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 100)
	newCollector(&sources{}, time.Now).Describe(descs)
	close(descs)
	names := []string{"relay_build_info", "relay_produce_duration_seconds", "relay_batch_events", "relay_commit_to_ack_seconds"}
	for d := range descs {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		names = append(names, name)
	}
	if len(names) < 15 {
		t.Fatalf("only %d series: %v", len(names), names)
	}
	for _, name := range names {
		if !bytes.Contains(readme, []byte("`"+name+"`")) {
			t.Errorf("README.md does not list %s", name)
		}
	}
}
