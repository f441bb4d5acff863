package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a command prints at its end, as a table and as JSON.
type report struct {
	Command  string            `json:"command"`
	Time     string            `json:"time"`
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Absent   map[string]string `json:"absent,omitempty"` // systems, with the reason

	Drain   []drainResult   `json:"drain,omitempty"`
	Latency []latencyResult `json:"latency,omitempty"`
	Memory  []memoryResult  `json:"memory,omitempty"`
	Rates   []rateResult    `json:"rates,omitempty"`

	// RelayToFloor is the relay's rows a second over floor-receive's, median of the repeats' own ratios, in the
	// first data set. RelayToPipe is the same over floor-pipe's.
	RelayToFloor float64 `json:"relay_to_floor,omitempty"`
	RelayToPipe  float64 `json:"relay_to_pipe,omitempty"`
}

type machine struct {
	CPU      string  `json:"cpu"`
	Cores    int     `json:"cores"`
	MemoryGB float64 `json:"memory_available_gb"`
	Kernel   string  `json:"kernel"`
	Load     string  `json:"load_before"`
}

func (b *bench) newReport(ctx context.Context) (*report, error) {
	free, err := availableMemory()
	if err != nil {
		return nil, err
	}
	r := &report{
		Command: b.command, Time: time.Now().UTC().Format(time.RFC3339),
		Machine: machine{CPU: cpuModel(), Cores: runtime.NumCPU(), MemoryGB: float64(free>>20) / 1024, Kernel: output(ctx, "uname", "-sr"), Load: loadAverage()},
		Versions: map[string]string{
			"go": runtime.Version(), "commit": output(ctx, "git", "describe", "--always", "--dirty"),
		},
	}
	if b.pg != nil {
		conn, err := b.connect(ctx, "postgres")
		if err != nil {
			return nil, err
		}
		defer closeQuietly(conn)
		var version, buffers string
		if err := conn.QueryRow(ctx, "select current_setting('server_version'), current_setting('shared_buffers')").Scan(&version, &buffers); err != nil {
			return nil, fmt.Errorf("read server version: %w", err)
		}
		r.Versions["postgresql"] = version + ", shared_buffers " + buffers
	}
	if b.kafka != nil {
		r.Versions["kafka"] = b.kafkaVersion(ctx)
		r.Versions["java"] = strings.Trim(output(ctx, "java", "--version"), "\n")
		r.Versions["debezium"] = debeziumVersion
	}
	return r, nil
}

// output returns the first line of what a command prints; "unknown" if it cannot be run.
func output(ctx context.Context, name string, args ...string) string {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// summarise fills what stands above the single results.
func (r *report) summarise() {
	for _, d := range r.Drain {
		if d.System != "relay" || d.X != r.Drain[0].X {
			continue
		}
		r.RelayToFloor, r.RelayToPipe = d.To["floor-receive"], d.To["floor-pipe"]
	}
}

// publish prints the report, and fails if anything that was published is not exact.
func (b *bench) publish(r *report) error {
	fmt.Fprintf(b.out, "%s at %s: %d cores, %s, %s, %.1f GB free, load %s\n", r.Command, r.Time, r.Machine.Cores, r.Machine.CPU, r.Machine.Kernel, r.Machine.MemoryGB, r.Machine.Load)
	for _, name := range []string{"commit", "go", "postgresql", "kafka", "java", "debezium"} {
		if v := r.Versions[name]; v != "" {
			fmt.Fprintf(b.out, "%s: %s\n", name, v)
		}
	}
	for name, why := range r.Absent {
		fmt.Fprintf(b.out, "%s: %s\n", name, why)
	}
	fmt.Fprintln(b.out)
	tw := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	r.table(tw)
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	if b.opt.svg != "" {
		if err := writeFile(b.opt.svg, plotDrain(r.Drain, b.axis())); err != nil {
			return err
		}
	}
	if b.opt.json {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("encode report: %w", err)
		}
		fmt.Fprintf(b.out, "%s\n", line)
	}
	return r.inexact()
}

// axis names what the data sets differ in.
func (b *bench) axis() string {
	if name, _, found := strings.Cut(b.opt.vary, "="); found {
		return name
	}
	return "rows a transaction"
}

// inexact is an error if the relay lost, repeated, reordered or changed something. Others may: that is their result.
func (r *report) inexact() error {
	for _, d := range r.Drain {
		if d.System == "relay" && d.Verdict != "exact" {
			return fmt.Errorf("relay is not exact: %s", d.Verdict)
		}
	}
	for _, l := range r.Latency {
		if l.System == "relay" && l.Missing+l.Duplicates > 0 {
			return fmt.Errorf("relay is not exact: %d missing, %d duplicate", l.Missing, l.Duplicates)
		}
	}
	for _, m := range r.Memory {
		if m.System == "relay" && m.Verdict != "exact" {
			return fmt.Errorf("relay is not exact: %s", m.Verdict)
		}
	}
	return nil
}
