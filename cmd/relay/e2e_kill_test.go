package main

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// kills is how often a kill test kills.
func kills() int {
	switch {
	case os.Getenv("RELAY_TEST_SOAK") == "1":
		return 500
	case testing.Short():
		return 5
	}
	return 20
}

// TestE2E_Kill kills the relay by SIGKILL again and again while writers commit, roll back and are cut off: every
// committed event is in the topic once, as it was written, no other is, and all are in commit order.
func TestE2E_Kill(t *testing.T) {
	t.Parallel()
	seed := seed(t)
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 6)
	p := r.startStreaming()
	w := r.write(seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	published := uint64(0)
	for range kills() {
		// Half of them anywhere from the start on, the others in full flight.
		most := 400 * time.Millisecond
		if rng.IntN(2) == 0 {
			p.awaitStatus(30*time.Second, "publishes nothing", func(s *Report) bool { return s.Published.Events > 0 })
			most = 250 * time.Millisecond
		}
		if p.proc.WaitFor(time.Duration(rng.Int64N(int64(most)))) {
			p.mustRun()
		}
		published += p.status().Published.Events
		p.kill()
		p = r.start()
	}
	w.verify(p, 0)
	if published == 0 {
		t.Error("no relay had published anything when it was killed")
	}
}

// TestE2E_Standby runs two relays on one slot. The one that does not hold it is ready all the same; when the other
// is killed it takes over.
func TestE2E_Standby(t *testing.T) {
	t.Parallel()
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), 3)
	active := r.startStreaming()
	w := r.write(seed(t))
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		standby := r.start()
		standby.awaitState(state.Standby, 20*time.Second)
		active.awaitStatus(30*time.Second, "publishes nothing", func(s *Report) bool { return s.Published.Events > 100 })
		if s := standby.status(); s.Published.Events != 0 || s.Received.Events != 0 {
			t.Errorf("a standby has received %d events and published %d", s.Received.Events, s.Published.Events)
		}
		active.kill()
		standby.awaitState(state.Streaming, 10*time.Second)
		active = standby
	}
	w.verify(active, 0)
}
