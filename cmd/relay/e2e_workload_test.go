package main

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
)

// writing is a workload under way on a rig.
type writing struct {
	r     *rig
	load  *chaos.Workload
	stop  context.CancelFunc
	ended chan error
}

// seed returns the seed of this run: a new one, or the one that RELAY_TEST_SEED names. It is shown if the test
// fails.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := rand.Uint64()
	if text := os.Getenv("RELAY_TEST_SEED"); text != "" {
		var err error
		if n, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("RELAY_TEST_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("RELAY_TEST_SEED=%d", n)
		}
	})
	return n
}

// write starts a workload.
func (r *rig) write(seed uint64) *writing {
	r.t.Helper()
	cfg := chaos.Config{URL: r.db.URL, Seed: seed, Writers: 4, Aggregates: 64, Pause: 8 * time.Millisecond, LargeRows: 1500}
	if err := chaos.Prepare(r.t.Context(), r.conn, cfg); err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.t.Context())
	w := &writing{r: r, load: chaos.New(cfg), stop: stop, ended: make(chan error, 1)}
	go func() { w.ended <- w.load.Run(ctx) }()
	r.t.Cleanup(func() { stop(); w.wait() })
	return w
}

func (w *writing) wait() error {
	err := <-w.ended
	w.ended <- err
	return err
}

// finish ends the workload and returns what it committed.
func (w *writing) finish() []chaos.Fact {
	t := w.r.t
	t.Helper()
	w.stop()
	if err := w.wait(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := chaos.Quiesce(ctx, w.r.conn); err != nil {
		t.Fatal(err)
	}
	facts, err := chaos.Truth(ctx, w.r.conn)
	if err != nil {
		t.Fatal(err)
	}
	if len(facts) < 50 {
		t.Fatalf("the workload committed %d events, which is no test; transactions: %v", len(facts), w.load.Tally())
	}
	return facts
}

// verify ends the workload, has the relay publish the rest and stop, and holds the topic against the truth.
func (w *writing) verify(p *relayProcess, allowed chaos.Repeats) {
	t := w.r.t
	t.Helper()
	facts := w.finish()
	w.r.drained(p, time.Minute)
	p.stop()
	report := chaos.Check(facts, w.r.consume(), allowed)
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	t.Logf("%s; transactions: %v", report, w.load.Tally())
}
