package sink_test

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// counter counts the connections that are open.
type counter struct {
	net.Listener
	open atomic.Int32
	most atomic.Int32
}

func (c *counter) listen(network, address string) (_ net.Listener, err error) {
	c.Listener, err = net.Listen(network, address)
	return c, err
}

func (c *counter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n := c.open.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	return &counted{Conn: conn, c: c}, nil
}

type counted struct {
	net.Conn
	c    *counter
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.c.open.Add(-1) })
	return c.Conn.Close()
}

// TestCourier_ManyPartitions wants the batches of hundreds of partitions to go in few requests on few connections.
func TestCourier_ManyPartitions(t *testing.T) {
	var connections counter
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 500}, Options: []kfake.Opt{kfake.ListenFn(connections.listen), kfake.SleepOutOfOrder()}})
	var requests atomic.Int32
	f.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		f.Cluster.KeepControl()
		requests.Add(1)
		f.Cluster.SleepControl(func() { <-time.After(5 * time.Millisecond) }) // the time that a broker takes
		return nil, nil, false
	})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const keys, each = 2000, 20
	for i := range each {
		var events []outbox.Committed
		for k := range keys {
			events = append(events, to("t", event(i*keys+k, fmt.Sprint("key", k), fmt.Sprint(i))))
		}
		s.accept(events...)
	}
	s.drain()
	st := s.Stats()
	if most := connections.most.Load(); st.Lanes < 450 || most > 30 {
		t.Errorf("%d partitions had %d connections", st.Lanes, most)
	}
	if n := requests.Load(); n == 0 || uint64(n) > st.Batches/4 {
		t.Errorf("%d batches went in %d requests", st.Batches, n)
	}
	checkOrder(t, testenv.Consume(t, f.Brokers(), "t"), keys, each)
}

// TestCourier_SlowPartition has a broker hold the answers for one partition while it is busy with many: the others go
// on, held up by no more than the request that they shared with it.
func TestCourier_SlowPartition(t *testing.T) {
	const hold = 600 * time.Millisecond
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 24}, Options: []kfake.Opt{kfake.SleepOutOfOrder()}})
	var holding atomic.Bool
	var held, shared atomic.Int32
	f.Cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.Cluster.KeepControl()
		takes, partitions := 10*time.Millisecond, 0
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				partitions++
				if p.Partition == 3 && holding.Load() {
					takes = hold
				}
			}
		}
		if takes == hold {
			held.Add(1)
			if partitions > 1 {
				shared.Add(1)
			}
		}
		f.Cluster.SleepControl(func() { <-time.After(takes) })
		return nil, nil, false
	})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	const keys = 240
	rounds := 0
	round := func() {
		var events []outbox.Committed
		for k := range keys {
			events = append(events, to("t", event(rounds*keys+k, fmt.Sprint("key", k), fmt.Sprint(rounds))))
		}
		s.accept(events...)
		rounds++
	}
	round()
	s.awaitAcked(keys)
	inSlow := uint64(0)
	for _, r := range testenv.Consume(t, f.Brokers(), "t") {
		if r.Partition == 3 {
			inSlow++
		}
	}
	holding.Store(true)
	for held.Load() < 10 {
		round()
		// The others are kept busy, some rounds behind, while the slow one falls back.
		most := uint64(rounds-1)*inSlow + 5*keys
		testenv.Eventually(t, within, func() (bool, string) {
			n := s.Stats().BacklogEvents
			return n <= most, fmt.Sprintf("%d events are left, %d of them may be", n, most)
		})
	}
	holding.Store(false)
	if n := shared.Load(); n > 2 {
		t.Errorf("of %d slow requests %d held up other partitions", held.Load(), n)
	}
	s.drain()
	checkOrder(t, testenv.Consume(t, f.Brokers(), "t"), keys, rounds)
}

// TestCourier_Throttled wants a broker that asks to be left alone for a while to be left alone.
func TestCourier_Throttled(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
	var mu sync.Mutex
	var at []time.Time
	f.Cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.Cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		at = append(at, time.Now())
		if len(at) > 1 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		res.ThrottleMillis = 700
		topic, partition := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
		topic.Topic, partition.ErrorCode = "t", kerr.NotEnoughReplicas.Code
		topic.Partitions = append(topic.Partitions, partition)
		res.Topics = append(res.Topics, topic)
		return res, nil, true
	})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	s.accept(to("t", event(1, "k", "1")))
	s.drain()
	mu.Lock()
	defer mu.Unlock()
	if len(at) != 2 || at[1].Sub(at[0]) < 690*time.Millisecond {
		t.Errorf("got requests at %v", at)
	}
}

// TestKafka_LateRequests delays what goes to the broker until its sender has given up on it: it arrives after all,
// behind or before what was sent again, and nothing is there twice or out of order.
func TestKafka_LateRequests(t *testing.T) {
	proxy, err := faultproxy.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: map[string]string{"advertised.listeners": "PLAINTEXT://" + proxy.Addr()}})
	proxy.SetTarget(broker.Brokers()[0])
	brokers := []string{proxy.Addr()}
	topic := testenv.NewTopic(t, brokers, 4, nil)
	cfg := testConfig(topic)
	cfg.WindowBytes, cfg.BatchBytes = 512<<10, 64<<10
	kcfg := kafkaConfig(brokers)
	kcfg.RequestTimeout = time.Second
	s := start(t, cfg, sink.NewKafka(kcfg, source))
	stop := make(chan struct{})
	const keys = 40
	rounds := s.load(topic, keys, stop)
	s.awaitPublished(5000)
	for range 3 {
		before := s.Stats().Retries["timeout"]
		proxy.Set(faultproxy.Faults{ToTarget: faultproxy.Path{Delay: 1500 * time.Millisecond}})
		testenv.Eventually(t, time.Minute, func() (bool, string) {
			n := s.Stats().Retries["timeout"] - before
			return n >= 3, fmt.Sprintf("%d timeouts", n)
		})
		proxy.Heal()
		s.awaitPublished(5000)
	}
	close(stop)
	n := <-rounds
	s.drain()
	checkOrder(t, testenv.Consume(t, brokers, topic), keys, n)
}

// TestKafka_MetadataGone takes the topic out of the brokers' answers for a while, and then every answer.
func TestKafka_MetadataGone(t *testing.T) {
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}})
	s := start(t, testConfig("t"), sink.NewKafka(kafkaConfig(f.Brokers()), source))
	stop := make(chan struct{})
	rounds := s.load("t", 30, stop)
	s.awaitPublished(3000)
	moved := produceFault(f, kerr.NotLeaderForPartition, 6) // so that the view is read again
	gone := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Err: kerr.UnknownTopicOrPartition, Count: 5})
	testenv.Eventually(t, within, func() (bool, string) { return gone.Hits() > 0, "the metadata is not read" })
	s.awaitPublished(3000)
	moved.Remove()
	close(stop)
	n := <-rounds
	s.drain()
	checkOrder(t, testenv.Consume(t, f.Brokers(), "t"), 30, n)
}

// TestKafka_Sessions has a real broker end connections whose credentials have run out, and refuse a wrong password.
func TestKafka_Sessions(t *testing.T) {
	port := func() string {
		p, err := child.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		return child.Address(p)
	}
	plain, controller, secured := port(), port(), port()
	number := 0
	fmt.Sscan(plain[strings.LastIndex(plain, ":")+1:], &number)
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{Port: number, Settings: map[string]string{
		"listeners":                                       "PLAINTEXT://" + plain + ",CONTROLLER://" + controller + ",SECURED://" + secured,
		"advertised.listeners":                            "PLAINTEXT://" + plain + ",SECURED://" + secured,
		"controller.quorum.voters":                        "1@" + controller,
		"listener.security.protocol.map":                  "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_PLAINTEXT",
		"sasl.enabled.mechanisms":                         "PLAIN",
		"listener.name.secured.plain.sasl.jaas.config":    `org.apache.kafka.common.security.plain.PlainLoginModule required user_relay="word";`,
		"listener.name.secured.connections.max.reauth.ms": "600",
		"connections.max.reauth.ms":                       "600",
	}})
	topic := testenv.NewTopic(t, broker.Brokers(), 4, nil)
	cfg := testConfig(topic)
	cfg.WindowBytes, cfg.BatchBytes = 512<<10, 64<<10
	kcfg := kafkaConfig([]string{secured})
	secret := &password{value: "canary-wrong"}
	kcfg.SASL = &sink.SASL{Mechanism: "PLAIN", Credentials: secret.read}
	s := start(t, cfg, sink.NewKafka(kcfg, source))
	status := s.board.await(t, state.BrokerDenied)
	if !strings.Contains(status.Hint, "password") || strings.Contains(status.Reason+status.Hint, "canary") {
		t.Errorf("got %+v", status)
	}
	secret.set("word", nil)
	s.board.awaitClear(t)
	stop := make(chan struct{})
	rounds := s.load(topic, 40, stop)
	testenv.Eventually(t, time.Minute, func() (bool, string) {
		n := s.Stats().Retries["network"]
		return n >= 4, fmt.Sprintf("%d connections ended", n)
	})
	close(stop)
	n := <-rounds
	s.drain()
	checkOrder(t, testenv.Consume(t, broker.Brokers(), topic), 40, n)
	if s.board.raises() > 3 {
		t.Errorf("%d states were raised", s.board.raises())
	}
}
