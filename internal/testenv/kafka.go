package testenv

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/kafkaserver"
)

// Kafka returns the addresses of the shared broker. Where a real one cannot run it is a fake one in this
// process, said on the standard error and in the test's log; with RELAY_TEST_REQUIRE=1 the test fails instead.
func Kafka(tb testing.TB) []string {
	tb.Helper()
	if list := os.Getenv(envKafkaBrokers); list != "" {
		return strings.Split(list, ",")
	}
	missing := kafkaserver.Available()
	if missing != nil && required() {
		tb.Fatalf("%s=1, and a Kafka broker cannot run here: %v", envRequire, missing)
	}
	brokers, err := share(tb, "kafka", func() ([]string, func() error, error) {
		if missing != nil {
			fmt.Fprintf(os.Stderr, "testenv: NO REAL KAFKA, tests run against a fake broker: %v\n", missing)
			f, err := kafkaserver.StartFake(kafkaserver.FakeConfig{})
			if err != nil {
				return nil, nil, err
			}
			return f.Brokers(), func() error { f.Close(); return nil }, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), startTimeout)
		defer cancel()
		b, err := kafkaserver.Start(ctx, kafkaserver.Config{})
		if err != nil {
			return nil, nil, err
		}
		return b.Brokers(), b.Close, nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	if missing != nil {
		tb.Logf("not a real Kafka but a fake broker: %v", missing)
	}
	return brokers
}

// DedicatedKafka starts a real broker for one test, which may stop and kill it. It is closed at cleanup. Where
// it cannot run the test is skipped, or fails, see Require.
func DedicatedKafka(tb testing.TB, cfg kafkaserver.Config) *kafkaserver.Broker {
	tb.Helper()
	if err := kafkaserver.Available(); err != nil {
		Require(tb, "needs a real Kafka broker: "+err.Error())
	}
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	b, err := kafkaserver.Start(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Close(); err != nil {
			tb.Errorf("close Kafka: %v", err)
		}
	})
	return b
}

// NewTopic makes a topic of a fresh name and deletes it at cleanup. configs may be nil.
func NewTopic(tb testing.TB, brokers []string, partitions int32, configs map[string]string) string {
	tb.Helper()
	name := uniqueName(tb, "-", 80)
	CreateTopic(tb, brokers, name, partitions, configs)
	return name
}

// CreateTopic makes a topic of a given name and deletes it at cleanup, if its broker still answers. It returns
// once every partition has a leader.
func CreateTopic(tb testing.TB, brokers []string, name string, partitions int32, configs map[string]string) {
	tb.Helper()
	client := kafkaClient(tb, brokers)
	defer client.Close()
	admin := kadm.NewClient(client)
	values := map[string]*string{}
	for key, value := range configs {
		values[key] = &value
	}
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
	defer cancel()
	if _, err := admin.CreateTopic(ctx, partitions, 1, values, name); err != nil {
		tb.Fatalf("create topic %q: %v", name, err)
	}
	tb.Cleanup(func() {
		client := kafkaClient(tb, brokers)
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 5*time.Second)
		defer cancel()
		if _, err := kadm.NewClient(client).DeleteTopic(ctx, name); err != nil {
			tb.Logf("topic %q is left behind: %v", name, err)
		}
	})
	Eventually(tb, 10*time.Second, func() (bool, string) {
		topics, err := admin.ListTopics(ctx, name)
		if err != nil {
			return false, err.Error()
		}
		found := topics[name].Partitions
		led := 0
		for _, p := range found {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		}
		return led == int(partitions), fmt.Sprintf("topic %q: %d of %d partitions have a leader", name, led, partitions)
	})
}

func kafkaClient(tb testing.TB, brokers []string, more ...kgo.Opt) *kgo.Client {
	tb.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.MetadataMinAge(10 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.RetryTimeout(5 * time.Second),
	}, more...)...)
	if err != nil {
		tb.Fatalf("make Kafka client: %v", err)
	}
	return client
}
