package kafkaserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

// envParent makes the test binary a parent: a process that runs a broker until its standard input ends.
const envParent = "KAFKASERVER_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(envParent) != "" {
		b, err := kafkaserver.Start(context.Background(), kafkaserver.Config{})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println(b.PID())
		io.Copy(io.Discard, os.Stdin)
		b.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func needBroker(t *testing.T) {
	t.Helper()
	if err := kafkaserver.Available(); err != nil {
		testenv.Require(t, "needs a Kafka broker: "+err.Error())
	}
}

func client(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func createTopic(t *testing.T, brokers []string, topic string) {
	t.Helper()
	if _, err := kadm.NewClient(client(t, brokers)).CreateTopic(t.Context(), 2, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, brokers []string, topic, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	record := &kgo.Record{Topic: topic, Value: []byte(value)}
	if err := client(t, brokers).ProduceSync(ctx, record).FirstErr(); err != nil {
		t.Fatalf("produce %q: %v", value, err)
	}
}

// expectTopic reads the topic and compares the values as a set.
func expectTopic(t *testing.T, brokers []string, topic string, want ...string) {
	t.Helper()
	got := map[string]int{}
	for _, r := range testenv.Consume(t, brokers, topic) {
		got[string(r.Value)]++
	}
	for _, value := range want {
		if got[value] != 1 {
			t.Errorf("topic %q has %q %d times, want once", topic, value, got[value])
		}
		delete(got, value)
	}
	if len(got) > 0 {
		t.Errorf("topic %q has unexpected %v", topic, got)
	}
}

func TestFake(t *testing.T) {
	t.Parallel()
	f, err := kafkaserver.StartFake(kafkaserver.FakeConfig{Topics: map[string]int32{"ready": 2}, Brokers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := len(f.Brokers()); got != 3 {
		t.Errorf("got %d brokers, want 3", got)
	}
	produce(t, f.Brokers(), "ready", "a")
	expectTopic(t, f.Brokers(), "ready", "a")

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	record := &kgo.Record{Topic: "never-made", Value: []byte("a")}
	c := client(t, f.Brokers(), kgo.UnknownTopicRetries(0))
	if err := c.ProduceSync(ctx, record).FirstErr(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("produce to a topic that was never made: got error %v, want that it is unknown", err)
	}
}
