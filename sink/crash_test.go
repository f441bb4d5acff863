package sink_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// load feeds rounds of one event per key until stop is closed, and tells how many rounds there were.
func (s *session) load(topic string, keys int, stop <-chan struct{}) <-chan int {
	rounds := make(chan int, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				rounds <- i
				return
			default:
			}
			events := make([]outbox.Committed, keys)
			for k := range keys {
				events[k] = to(topic, event(i*keys+k, fmt.Sprint("key", k), fmt.Sprint(i)))
			}
			first := s.next
			s.next += uint64(keys)
			if err := s.Accept(s.ctx, first, events); err != nil {
				s.t.Errorf("Accept: %v", err)
				rounds <- i
				return
			}
		}
	}()
	return rounds
}

// awaitPublished waits until n more events are acknowledged.
func (s *session) awaitPublished(n uint64) {
	s.t.Helper()
	total := func() (sum uint64) {
		for _, p := range s.Stats().Published {
			sum += p
		}
		return sum
	}
	want := total() + n
	testenv.Eventually(s.t, time.Minute, func() (bool, string) {
		return total() >= want, fmt.Sprintf("%d of %d events, problems %v, retries %v", total(), want, s.board.all(), s.Stats().Retries)
	})
}

// TestCrash_Broker kills the broker under load, twice, and starts it again: nothing lost, nothing out of order,
// nothing twice.
func TestCrash_Broker(t *testing.T) {
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{})
	topic := testenv.NewTopic(t, broker.Brokers(), 4, nil)
	cfg := testConfig(topic)
	cfg.WindowBytes, cfg.BatchBytes = 512<<10, 64<<10
	s := start(t, cfg, sink.NewKafka(kafkaConfig(broker.Brokers()), source))
	stop := make(chan struct{})
	const keys = 40
	rounds := s.load(topic, keys, stop)
	for range 2 {
		s.awaitPublished(20000)
		if err := broker.Kill(); err != nil {
			t.Fatal(err)
		}
		s.board.await(t, state.BrokerUnreachable)
		raised := s.board.raises()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := broker.Restart(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		s.awaitPublished(20000)
		s.board.awaitClear(t)
		if n := s.board.raises() - raised; n > 8 {
			t.Errorf("one outage raised %d states more", n)
		}
	}
	close(stop)
	n := <-rounds
	s.drain()
	checkOrder(t, testenv.Consume(t, broker.Brokers(), topic), keys, n)
	checkGoroutines(t)
}

// TestCrash_Pause freezes the broker for longer than the request timeout: requests that were given up are
// answered later, and still nothing is there twice.
func TestCrash_Pause(t *testing.T) {
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{})
	topic := testenv.NewTopic(t, broker.Brokers(), 4, nil)
	cfg := testConfig(topic)
	cfg.WindowBytes, cfg.BatchBytes = 512<<10, 64<<10
	kcfg := kafkaConfig(broker.Brokers())
	kcfg.RequestTimeout = time.Second
	s := start(t, cfg, sink.NewKafka(kcfg, source))
	stop := make(chan struct{})
	const keys = 40
	rounds := s.load(topic, keys, stop)
	s.awaitPublished(20000)
	if err := broker.Pause(); err != nil {
		t.Fatal(err)
	}
	before := s.Stats().Retries["timeout"]
	testenv.Eventually(t, time.Minute, func() (bool, string) {
		n := s.Stats().Retries["timeout"] - before
		return n >= 8, fmt.Sprintf("%d timeouts", n)
	})
	if err := broker.Continue(); err != nil {
		t.Fatal(err)
	}
	s.awaitPublished(20000)
	close(stop)
	n := <-rounds
	s.drain()
	checkOrder(t, testenv.Consume(t, broker.Brokers(), topic), keys, n)
}

// TestTopic_Missing wants an event to wait for its topic, which is named, and to go on by itself.
func TestTopic_Missing(t *testing.T) {
	brokers := testenv.Kafka(t)
	have := testenv.NewTopic(t, brokers, 1, nil)
	late := have + "-late"
	s := start(t, testConfig(have, late), sink.NewKafka(kafkaConfig(brokers), source+"m"))
	s.accept(to(have, event(1, "k", "1")))
	blocked := s.acceptAside(to(have, event(2, "k", "2")), to(late, event(3, "k", "3")), to(have, event(4, "k", "4")))
	status := s.board.await(t, state.TopicMissing)
	if want := fmt.Sprintf("%q", late); !strings.Contains(status.Reason, want) {
		t.Errorf("reason %q does not name the topic", status.Reason)
	}
	s.awaitAcked(2)
	testenv.CreateTopic(t, brokers, late, 2, nil)
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	s.drain()
	s.awaitAcked(4)
	if got := values(testenv.Consume(t, brokers, late)); len(got) != 1 || got[0] != "3" {
		t.Errorf("got %v", got)
	}
}

// TestTopic_TooSmall wants a real broker's refusal to halt the lane, and a raised limit to free it.
func TestTopic_TooSmall(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := testenv.NewTopic(t, brokers, 1, map[string]string{"max.message.bytes": "2000"})
	s := start(t, testConfig(topic), sink.NewKafka(kafkaConfig(brokers), source+"s"))
	var events []outbox.Committed
	for i := range 30 {
		events = append(events, to(topic, event(i, "k", fmt.Sprint(i))))
	}
	events[20].Payload = []byte(noise(3000))
	s.accept(events...)
	status := s.board.await(t, state.Halted)
	if !strings.Contains(status.Reason, `"id-20"`) {
		t.Errorf("got %+v", status)
	}
	s.awaitAcked(20)
	if s.isAcked(21) || s.isAcked(22) {
		t.Error("the lane went on")
	}
	setTopicConfig(t, brokers, topic, "max.message.bytes", "5000")
	s.drain()
	got := values(testenv.Consume(t, brokers, topic))
	if len(got) != 30 || got[19] != "19" || len(got[20]) != 3000 || got[21] != "21" {
		t.Errorf("got %d records: %v", len(got), got)
	}
}
