package chaos

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// SetTopicConfig sets one setting of a topic that is there.
func SetTopicConfig(ctx context.Context, brokers []string, topic, name, value string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("make Kafka client: %w", err)
	}
	defer client.Close()
	answers, err := kadm.NewClient(client).AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
	if err != nil {
		return fmt.Errorf("set %s of topic %q: %w", name, topic, err)
	}
	for _, a := range answers {
		if a.Err != nil {
			return fmt.Errorf("set %s of topic %q: %w", name, topic, a.Err)
		}
	}
	return nil
}
