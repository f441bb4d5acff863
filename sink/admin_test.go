package sink_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// admin changes topics while a test runs.
func admin(t testing.TB, brokers []string, do func(context.Context, *kadm.Client) error) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := do(ctx, kadm.NewClient(client)); err != nil {
		t.Fatal(err)
	}
}

func setTopicConfig(t testing.TB, brokers []string, topic, name, value string) {
	t.Helper()
	admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
		res, err := c.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
		for _, r := range res {
			if err == nil {
				err = r.Err
			}
		}
		return err
	})
}

func growTopic(t testing.TB, brokers []string, topic string, partitions int) {
	t.Helper()
	admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
		res, err := c.UpdatePartitions(ctx, partitions, topic)
		if err == nil {
			err = res.Error()
		}
		return err
	})
}
