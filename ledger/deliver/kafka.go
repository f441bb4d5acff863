package deliver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
)

// KafkaConfig says how to read the relay's topics. Start from DefaultKafkaConfig.
type KafkaConfig struct {
	// Brokers are the addresses, host:port, of which one must answer at the start.
	Brokers []string
	// ClientID is how the worker calls itself. Default "relay-deliver".
	ClientID string
	// Group is the consumer group: its members share the partitions.
	Group string
	// Topics are read from their beginning where the group has no offset. Those that do not exist are waited for.
	Topics []string
	// Dial opens a connection, encrypted and authenticated as the brokers want it. Default: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// SessionTimeout is after how long without a heartbeat the brokers give a member's partitions to others. Default
	// 30 s, at least 1 s.
	SessionTimeout time.Duration
	// Timeout bounds a request. Default 10 s.
	Timeout time.Duration
}

// DefaultKafkaConfig returns the defaults.
func DefaultKafkaConfig() KafkaConfig {
	return KafkaConfig{ClientID: "relay-deliver", SessionTimeout: 30 * time.Second, Timeout: 10 * time.Second}
}

func (c KafkaConfig) validate() error {
	if len(c.Topics) == 0 {
		return nil
	}
	var errs []error
	if len(c.Brokers) == 0 {
		errs = append(errs, errors.New("config Kafka.Brokers: none"))
	}
	if c.Group == "" {
		errs = append(errs, errors.New("config Kafka.Group: empty"))
	}
	if c.SessionTimeout < time.Second || c.Timeout < time.Second {
		errs = append(errs, errors.New("config Kafka.SessionTimeout and Timeout: want at least 1 s"))
	}
	return errors.Join(errs...)
}

func (c KafkaConfig) dial() func(ctx context.Context, network, address string) (net.Conn, error) {
	if c.Dial != nil {
		return c.Dial
	}
	return (&net.Dialer{Timeout: c.Timeout}).DialContext
}

// group joins the consumer group. Its generations end with the membership; close leaves.
func (c KafkaConfig) group(b *spread) (*kafka.ConsumerGroup, error) {
	g, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: c.Group, Brokers: c.Brokers, Topics: c.Topics, StartOffset: kafka.FirstOffset,
		Dialer:         &kafka.Dialer{ClientID: c.ClientID, Timeout: c.Timeout, DialFunc: c.dial()},
		GroupBalancers: []kafka.GroupBalancer{b},
		// The session's third, so that two may be lost.
		HeartbeatInterval: min(3*time.Second, c.SessionTimeout/3), SessionTimeout: c.SessionTimeout,
		RebalanceTimeout: c.SessionTimeout, JoinGroupBackoff: time.Second, Timeout: c.Timeout,
	})
	if err != nil {
		return nil, fmt.Errorf("join group %q: %w", c.Group, err)
	}
	return g, nil
}

// client returns what fetches. closing it ends its connections.
func (c KafkaConfig) client() (client *kafka.Client, close func()) {
	t := &kafka.Transport{
		Dial: c.dial(), DialTimeout: c.Timeout, IdleTimeout: time.Minute, MetadataTTL: 5 * time.Second, MetadataTopics: c.Topics, ClientID: c.ClientID,
	}
	return &kafka.Client{Addr: kafka.TCP(c.Brokers...), Timeout: c.Timeout, Transport: t}, t.CloseIdleConnections
}
