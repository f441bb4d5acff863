package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/testenv"
)

// resumeKills is how often a test of the resume check kills.
func resumeKills() int {
	switch {
	case os.Getenv("RELAY_TEST_SOAK") == "1":
		return 200
	case testing.Short():
		return 5
	}
	return 20
}

// counter reads one of the relay's own series that has no labels; 0 when nobody answers.
func (p *relayProcess) counter(name string) (n float64) {
	p.t.Helper()
	if _, body, err := p.get("/metrics"); err == nil {
		for line := range strings.Lines(string(body)) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				if _, err := fmt.Sscan(rest, &n); err != nil {
					p.t.Fatalf("read %s: %v", name, err)
				}
			}
		}
	}
	return n
}

const (
	resumedTotal   = "relay_sink_resumed_events_total"
	undecidedTotal = "relay_sink_resume_undecided_total"
)

// TestE2E_Resume kills the relay by SIGKILL at random points between acknowledgement and confirmation, which are up
// to a second apart: nothing is lost, and nothing is in the topic twice.
func TestE2E_Resume(t *testing.T) {
	t.Parallel()
	seed := seed(t)
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 6)
	p := r.startStreaming()
	w := r.write(seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	resumed, undecided := 0.0, 0.0
	for range resumeKills() {
		p.awaitStatus(30*time.Second, "publishes nothing", func(s *Report) bool { return s.Published.Events > 0 })
		if p.proc.WaitFor(time.Duration(rng.Int64N(int64(1200 * time.Millisecond)))) {
			p.mustRun()
		}
		resumed += p.counter(resumedTotal)
		undecided += p.counter(undecidedTotal)
		p.kill()
		p = r.start()
	}
	w.verify(p, 0)
	if resumed == 0 {
		t.Error("no event was found published: the kills did not hit")
	}
	if undecided > 0 {
		t.Errorf("%v checks were undecided", undecided)
	}
	t.Logf("%v events were found published", resumed)
}

// TestE2E_ResumeOff wants the switch to give up what the check gives.
func TestE2E_ResumeOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 1)
	p := r.startStreaming("RELAY_KAFKA_RESUME_CHECK=off")
	w := r.write(seed(t))
	repeated := func() bool {
		seen := map[string]bool{}
		for _, rec := range r.consume() {
			id, _ := rec.Header("id")
			if seen[id] {
				return true
			}
			seen[id] = true
		}
		return false
	}
	for range 20 {
		p.awaitStatus(30*time.Second, "publishes nothing", func(s *Report) bool { return s.Published.Events > 0 })
		p.kill()
		p = r.start("RELAY_KAFKA_RESUME_CHECK=off")
		if repeated() {
			break
		}
	}
	if !repeated() {
		t.Error("nothing came twice, so the kills of the other tests may show nothing either")
	}
	w.verify(p, chaos.AnyRepeats)
}
