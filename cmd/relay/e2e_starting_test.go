package main

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/state"
)

// TestE2E_StartingUntilTheBrokerAnswers: a relay that has the slot and not yet the broker is not ready, from its first
// moment on; the other way round readiness would let a rollout go on with a relay that cannot publish.
func TestE2E_StartingUntilTheBrokerAnswers(t *testing.T) {
	t.Parallel()
	_, proxy := proxiedKafka(t)
	r := newRig(t, sharedPostgres(t), []string{proxy.Addr()}, 1)
	proxy.Set(faultproxy.Faults{ToTarget: faultproxy.Path{Pause: true}}) // it connects, and nobody answers
	p := r.start()
	held := p.awaitStatus(30*time.Second, "does not get the slot", func(s *Report) bool { return s.Slot.Held || s.State.Ready() })
	if held.State != state.Starting || held.Reason == "" {
		t.Errorf("with the slot and without the broker the state is %q (%s)", held.State, held.Reason)
	}
	id, _ := r.publishOne("order-1")
	throughout(t, time.Second, func() (bool, string) {
		code, st := p.ready()
		return code != 200, "ready in state " + string(st.State) + " before the broker has answered"
	})
	proxy.Reset()
	proxy.Heal()
	p.awaitState(state.Streaming, 30*time.Second)
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave([]string{id}, true)
}
