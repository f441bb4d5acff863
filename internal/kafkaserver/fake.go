package kafkaserver

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Fake is a broker inside this process: up in a millisecond, forgets everything, and can be told to misbehave
// through Cluster. It keeps one epoch per producer id for all partitions at once, where Kafka does so per
// partition: test fencing on a Broker.
type Fake struct {
	Cluster *kfake.Cluster
}

// FakeConfig says how to run a Fake.
type FakeConfig struct {
	// Topics are made at the start, by name with their number of partitions.
	Topics map[string]int32

	// Brokers is the number of nodes. Default 1.
	Brokers int

	// Options are further options of the cluster; they win over the fields above.
	Options []kfake.Opt
}

// StartFake starts a Fake on free ports of 127.0.0.1. Topics are not made by producing to them.
func StartFake(cfg FakeConfig) (*Fake, error) {
	options := []kfake.Opt{kfake.NumBrokers(max(cfg.Brokers, 1))}
	for topic, partitions := range cfg.Topics {
		options = append(options, kfake.SeedTopics(partitions, topic))
	}
	cluster, err := kfake.NewCluster(append(options, cfg.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("start fake Kafka: %w", err)
	}
	return &Fake{Cluster: cluster}, nil
}

// Brokers returns the addresses that clients connect to first.
func (f *Fake) Brokers() []string { return f.Cluster.ListenAddrs() }

// Close ends the cluster and its goroutines.
func (f *Fake) Close() { f.Cluster.Close() }
