package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// Tests that take from minutes to an hour, for make soak. RELAY_TEST_SOAK=1 also makes the kill tests kill for long.

// soak skips the test unless it was asked for.
func soak(t *testing.T) {
	t.Helper()
	if os.Getenv("RELAY_TEST_SOAK") != "1" {
		t.Skip("skipped: takes minutes; RELAY_TEST_SOAK=1 runs it")
	}
}

// residentLimit is what the relay as it is shipped may have resident with the default window, whatever goes on.
const residentLimit = 64 << 20

// TestSoak_LargeTransaction publishes five million events of one transaction, which PostgreSQL keeps on its disk and
// the relay nowhere: each comes once, in one session, in bounded memory.
func TestSoak_LargeTransaction(t *testing.T) {
	soak(t)
	const rows, partitions = 5_000_000, 6
	r := newRig(t, sharedPostgres(t), testenv.Kafka(t), partitions)
	p := startBinary(t, shippedRelay(t), r.environ()...)
	p.awaitState(state.Streaming, time.Minute)
	r.publishBulk(rows)
	began := time.Now()
	s := p.awaitStatus(30*time.Minute, "not everything is published", func(s *Report) bool { return s.Published.Events >= rows })
	took := time.Since(began)
	r.drained(p, time.Minute)
	rss := p.peakRSS()
	t.Logf("%d events of one transaction within %v of its commit, at most %d MiB resident", rows, took.Round(time.Second), rss>>20)
	if rss > residentLimit {
		t.Errorf("%d MiB were resident, want at most %d", rss>>20, residentLimit>>20)
	}
	if s.Published.Events != rows || s.Received.Events != rows || s.Slot.Sessions != 1 {
		t.Errorf("published %d of %d received events in %d sessions, want %d in one", s.Published.Events, s.Received.Events, s.Slot.Sessions, rows)
	}
	p.stop()
	// A fence leaves one control record in a partition.
	if n := r.endOffsets(); n < rows || n > rows+partitions {
		t.Errorf("the topic has %d records and markers, want %d and at most a marker a partition", n, rows)
	}
}

// TestSoak_BrokerOutage takes the broker away for some minutes while writers go on: memory stays bounded, the state
// says what is wrong, and when the broker is back each event comes once and in order.
func TestSoak_BrokerOutage(t *testing.T) {
	soak(t)
	_, proxy := proxiedKafka(t)
	r := newRig(t, sharedPostgres(t), []string{proxy.Addr()}, 6)
	p := startBinary(t, shippedRelay(t), r.environ()...)
	p.awaitState(state.Streaming, time.Minute)
	w := r.write(seed(t))
	p.awaitStatus(time.Minute, "publishes nothing", func(s *Report) bool { return s.Published.Events > 500 })
	unreachable(proxy)
	p.awaitState(state.BrokerUnreachable, time.Minute)
	throughout(t, 4*time.Minute, func() (bool, string) {
		s := p.status()
		return s.State == state.BrokerUnreachable && s.Slot.Sessions == 1, fmt.Sprintf("in the outage: %+v", s)
	})
	proxy.Heal()
	p.awaitState(state.Streaming, time.Minute)
	rss := p.peakRSS()
	t.Logf("at most %d MiB resident", rss>>20)
	if rss > residentLimit {
		t.Errorf("%d MiB were resident, want at most %d", rss>>20, residentLimit>>20)
	}
	w.verify(p, 0)
}

// endOffsets adds up how far the topic's partitions go.
func (r *rig) endOffsets() (n int64) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(r.t.Context(), r.topic)
	if err != nil {
		r.t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}
