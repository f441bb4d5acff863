package main

import (
	"fmt"
	"io"
)

// drainResult is what the runs of one system on one data set gave.
type drainResult struct {
	System       string  `json:"system"`
	Rows         int     `json:"rows"`
	K            int     `json:"k"`
	Keys         int     `json:"keys"`
	Payload      int     `json:"payload_bytes"`
	Partitions   int     `json:"partitions"`
	Runs         int     `json:"runs"`
	X            int     `json:"x"` // where it stands on the plot's axis
	Seconds      spread  `json:"seconds"`
	RowsPerSec   spread  `json:"rows_per_second"`
	MBPerSec     spread  `json:"payload_mb_per_second"`
	First        spread  `json:"first_record_seconds"`
	SystemCPU    spread  `json:"system_cpu_per_million_rows"`
	WalsenderCPU spread  `json:"walsender_cpu_per_million_rows"`
	BrokerCPU    spread  `json:"broker_cpu_per_million_rows"`
	ConsumerCPU  spread  `json:"consumer_cpu_per_million_rows"`
	Others       spread  `json:"others_cores"`
	PeakMB       spread  `json:"peak_rss_mb"`
	Verdict      string  `json:"verdict"` // "exact", "not published", or what is wrong
	Wrong        verdict `json:"wrong"`   // of all runs together
	// To is this system's rows a second over another's: the median of the ratios of each repeat.
	To map[string]float64 `json:"to"`
}

func newDrainResult(name string, d *dataset, runs []drainRun) drainResult {
	million := float64(d.rows) / 1e6
	r := drainResult{
		System: name, Rows: d.rows, K: d.k, Keys: d.keys, Payload: d.payload, Partitions: d.partitions, Runs: len(runs),
		Seconds:      collect(runs, func(r drainRun) float64 { return r.seconds }),
		RowsPerSec:   collect(runs, func(r drainRun) float64 { return float64(d.rows) / r.seconds }),
		MBPerSec:     collect(runs, func(r drainRun) float64 { return float64(d.rows) * float64(d.payload) / 1e6 / r.seconds }),
		First:        collect(runs, func(r drainRun) float64 { return r.first }),
		SystemCPU:    collect(runs, func(r drainRun) float64 { return r.cpu.System / million }),
		WalsenderCPU: collect(runs, func(r drainRun) float64 { return r.cpu.Walsender / million }),
		BrokerCPU:    collect(runs, func(r drainRun) float64 { return r.cpu.Broker / million }),
		ConsumerCPU:  collect(runs, func(r drainRun) float64 { return r.cpu.Consumer / million }),
		Others:       collect(runs, func(r drainRun) float64 { return r.cpu.Others }),
		PeakMB:       collect(runs, func(r drainRun) float64 { return r.peakMB }),
		Verdict:      "not published", To: map[string]float64{},
	}
	for _, run := range runs {
		if v := run.verdict; v != nil {
			r.Wrong.Missing += v.Missing
			r.Wrong.Duplicates += v.Duplicates
			r.Wrong.Reordered += v.Reordered
			r.Wrong.Altered += v.Altered
			r.Wrong.Misplaced += v.Misplaced
			r.Wrong.Unknown += v.Unknown
			r.Verdict = r.Wrong.String()
		}
	}
	return r
}

// compare notes the ratio to another system. Runs of one repeat stood close together in time.
func (r *drainResult) compare(other string, mine, theirs []drainRun) {
	var ratios []float64
	for i := range min(len(mine), len(theirs)) {
		ratios = append(ratios, theirs[i].seconds/mine[i].seconds)
	}
	r.To[other] = spreadOf(ratios).Median
}

// table writes what the command measured.
func (r *report) table(w io.Writer) {
	if len(r.Drain) > 0 {
		fmt.Fprintln(w, "system\trows\tk\trows/s\tMB/s\tfirst s\tsystem CPU s/M\twalsender\tbroker\tconsumer\tpeak MB\tothers\tto receive\tto pipe\tverdict")
		for _, d := range r.Drain {
			fmt.Fprintf(w, "%s\t%d\t%d\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%s\t%s\t%s\n", d.System, d.Rows, d.K, d.RowsPerSec, d.MBPerSec, known(d.First),
				d.SystemCPU, d.WalsenderCPU, d.BrokerCPU, d.ConsumerCPU, d.PeakMB, d.Others, ratio(d.To["floor-receive"]), ratio(d.To["floor-pipe"]), d.Verdict)
		}
	}
	if len(r.Latency) > 0 {
		fmt.Fprintln(w, "system\tevents\tp50 ms\tp95\tp99\tmax\tcommit p50\tcommit p99\tlate commits\tsystem CPU s\twalsender\tbroker\tpeak MB\tothers\tmissing\tduplicate")
		for _, l := range r.Latency {
			fmt.Fprintf(w, "%s\t%d\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%v\t%d\t%d\n", l.System, l.Events, known(l.P50), known(l.P95), known(l.P99), known(l.Max), l.CommitP50,
				l.CommitP99, l.Late, known(l.SystemCPU), known(l.WalsenderCPU), known(l.BrokerCPU), known(l.PeakMB), known(l.Others), l.Missing, l.Duplicates)
		}
	}
	if len(r.Memory) > 0 {
		fmt.Fprintln(w, "system\tscenario\trows\tpeak MB\tseconds\tverdict")
		for _, m := range r.Memory {
			fmt.Fprintf(w, "%s\t%s\t%d\t%v\t%v\t%s\n", m.System, m.Scenario, m.Rows, m.PeakMB, m.Seconds, m.Verdict)
		}
	}
	if len(r.Rates) > 0 {
		fmt.Fprintln(w, "system\tk\tclients\trows/s\ttx p50 ms\ttx p99 ms\tto bare\tdead rows")
		for _, x := range r.Rates {
			fmt.Fprintf(w, "%s\t%d\t%d\t%v\t%v\t%v\t%s\t%d\n", x.System, x.K, x.Clients, x.RowsPerSec, x.P50, x.P99, ratio(x.ToBare), x.DeadRows)
		}
	}
}

// known writes a spread, a dash where nothing was measured.
func known(s spread) string {
	if s == (spread{}) {
		return "-"
	}
	return s.String()
}

// ratio writes a ratio, a dash where there is none.
func ratio(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", v)
}
