package sink_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// TestPublishers runs what every publisher must do over each one.
func TestPublishers(t *testing.T) {
	t.Run("kafka", func(t *testing.T) {
		proxy, err := faultproxy.New("127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = proxy.Close() })
		broker := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: map[string]string{"advertised.listeners": "PLAINTEXT://" + proxy.Addr()}})
		proxy.SetTarget(broker.Brokers()[0])
		sinktest.Run(t, func(t *testing.T) sinktest.Target { return brokerTarget(t, proxy) })
	})
	t.Run("kafka in process", func(t *testing.T) { sinktest.Run(t, fakeTarget) })
	t.Run("webhook", func(t *testing.T) { sinktest.Run(t, webhookTarget) })
	t.Run("stdout", func(t *testing.T) {
		sinktest.Run(t, func(t *testing.T) sinktest.Target {
			var w lines
			return sinktest.Target{
				New:   func() sink.Publisher { return sink.NewStdout(&w) },
				Topic: "t",
				Read:  func() []sinktest.Record { return w.records(t) },
				// A line that is cut is taken up where it was.
				LoseAnswer: func() { w.cutNext(100) },
				Once:       true,
			}
		})
	})
}

// brokerTarget is a topic on a real broker behind a proxy.
func brokerTarget(t *testing.T, proxy *faultproxy.Proxy) sinktest.Target {
	brokers := []string{proxy.Addr()}
	target := kafkaTarget(t, brokers)
	target.Down = func() func() {
		proxy.Set(faultproxy.Faults{Refuse: true})
		proxy.Reset()
		return proxy.Heal
	}
	target.Stall = func() func() {
		proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{Pause: true}})
		return proxy.Heal
	}
	target.LoseAnswer = func() {
		proxy.Set(faultproxy.Faults{ToClient: faultproxy.Path{CutAfter: 8}}) // in the middle of the answer
		time.AfterFunc(300*time.Millisecond, proxy.Heal)
	}
	return target
}

// fakeTarget is a topic on a broker in this process.
func fakeTarget(t *testing.T) sinktest.Target {
	f := fake(t, kafkaserver.FakeConfig{})
	target := kafkaTarget(t, f.Brokers())
	target.LoseAnswer = func() { produceFault(f, kerr.RequestTimedOut, 1) } // appended, and answered so
	target.Stall = func() func() {
		release := make(chan struct{})
		f.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
			<-release
			return nil, nil, false
		})
		return func() { close(release) }
	}
	return target
}

func kafkaTarget(t *testing.T, brokers []string) sinktest.Target {
	const most = 200_000
	topic := testenv.NewTopic(t, brokers, 4, map[string]string{"max.message.bytes": "200000"})
	return sinktest.Target{
		New:     func() sink.Publisher { return sink.NewKafka(kafkaConfig(brokers), source) },
		Topic:   topic,
		Missing: topic + "-missing",
		Poison:  func() []byte { return []byte(noise(2 * most)) },
		Once:    true,
		Fences:  true,
		Read: func() (out []sinktest.Record) {
			for _, r := range testenv.Consume(t, brokers, topic) {
				record := sinktest.Record{Partition: r.Partition, Key: string(r.Key), Value: r.Value}
				for _, h := range r.Headers {
					record.Headers = append(record.Headers, sinktest.Header{Name: h.Key, Value: string(h.Value)})
				}
				out = append(out, record)
			}
			return out
		},
	}
}
