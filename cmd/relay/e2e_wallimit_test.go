package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_WALLimit lets a slot run towards the server's limit while the broker is away: status, metrics and log say
// so long before it is reached, and that it is over when the broker is back.
func TestE2E_WALLimit(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("skipped: writes 150 MiB of WAL")
	}
	server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"max_slot_wal_keep_size": "160MB", "max_wal_size": "64MB"}})
	broker, proxy := proxiedKafka(t)
	r := newRig(t, server, []string{proxy.Addr()}, 1)
	p := r.startStreaming()
	ids := r.publish("order-1", 1)
	r.drained(p, 30*time.Second)
	if s := p.status(); s.Slot.Warning != "" || strings.Contains(p.log(), "slot retains") {
		t.Errorf("a warning of nothing: %+v", s.Slot)
	}

	proxy.SetTarget("127.0.0.1:1")
	proxy.Reset()
	ids = append(ids, r.publish("order-1", 1)...) // from here on nothing is confirmed
	p.awaitState(state.BrokerUnreachable, 30*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	noise, written := r.connect(), make(chan error, 1)
	go func() {
		for i := 0; i < 100; i++ { // 100 MiB, as fast as seconds pass
			if err := chaos.Noise(ctx, noise, 1); err != nil {
				written <- err
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		written <- nil
	}()
	s := p.awaitStatus(60*time.Second, "no warning", func(s *Report) bool { return s.Slot.Warning != "" && s.Slot.LimitSeconds != nil })
	if s.State != state.BrokerUnreachable || *s.Slot.RetainedBytes < 80<<20 || *s.Slot.LimitBytes != 160<<20 || *s.Slot.SafeWALBytes >= 100<<20 ||
		*s.Slot.GrowthPerSecond < 1<<20 || *s.Slot.LimitSeconds <= 0 || *s.Slot.LimitSeconds > 600 || s.Slot.WALStatus == "" {
		t.Errorf("status says %+v", s.Slot)
	}
	var screen strings.Builder
	if err := s.print(&screen, time.Now()); err != nil {
		t.Fatal(err)
	}
	t.Logf("relay status:\n%s", &screen)
	_, metrics, err := p.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"relay_slot_limit_seconds{", "relay_slot_safe_wal_bytes{", fmt.Sprintf("relay_slot_wal_status{slot=%q,status=%q} 1", r.slot, s.Slot.WALStatus)} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	if log := p.log(); strings.Count(log, "slot retains much WAL") != 1 || !strings.Contains(log, "max_slot_wal_keep_size = '...'") {
		t.Errorf("log:\n%s", tail(log, 2000))
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}

	proxy.SetTarget(broker.Brokers()[0])
	p.awaitState(state.Streaming, time.Minute)
	r.drained(p, 30*time.Second)
	// The server lets go of WAL as it is confirmed; what tells it where it may is written now and then.
	testenv.Eventually(t, time.Minute, func() (bool, string) {
		r.exec(`CHECKPOINT`)
		ids = append(ids, r.publish("order-1", 1)...)
		log := p.log()
		return strings.Contains(log, "slot retains little WAL again"), "it is not said to be over: " + tail(log, 500)
	})
	if s := p.awaitStatus(10*time.Second, "the warning stays", func(s *Report) bool { return s.Slot.Warning == "" }); s.Slot.LimitSeconds != nil && *s.Slot.LimitSeconds < 1 {
		t.Errorf("status says %+v", s.Slot)
	}
	if n := strings.Count(p.log(), "slot retains"); n != 2 {
		t.Errorf("the log says it %d times:\n%s", n, tail(p.log(), 3000))
	}
	r.drained(p, 30*time.Second)
	p.stop()
	r.mustHave(ids, true)
}
