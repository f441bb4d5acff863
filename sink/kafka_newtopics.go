package sink

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/segmentio/kafka-go/protocol/createtopics"
)

// NewTopics says what the topics that the relay makes are like.
type NewTopics struct {
	// Partitions and ReplicationFactor of a topic. 0, the default, is what the brokers are set to.
	Partitions, ReplicationFactor int
	// Settings are settings of a topic by their name, such as min.insync.replicas. What is not among them is as the
	// brokers have it.
	Settings map[string]string
}

func (n NewTopics) validate() error {
	var errs []error
	if n.Partitions < 0 || n.Partitions > 100_000 {
		errs = append(errs, fmt.Errorf("new topics of %d partitions: want 0 to 100000", n.Partitions))
	}
	if n.ReplicationFactor < 0 || n.ReplicationFactor > 1000 {
		errs = append(errs, fmt.Errorf("new topics of %d replicas: want 0 to 1000", n.ReplicationFactor))
	}
	for _, name := range slices.Sorted(maps.Keys(n.Settings)) {
		if name == "" || n.Settings[name] == "" {
			errs = append(errs, fmt.Errorf("setting %q of new topics: want a name and a value", name))
		}
	}
	return errors.Join(errs...)
}

// request asks for a topic.
func (n NewTopics) request(topic string) createtopics.RequestTopic {
	t := createtopics.RequestTopic{Name: topic, NumPartitions: -1, ReplicationFactor: -1}
	if n.Partitions > 0 {
		t.NumPartitions = int32(n.Partitions)
	}
	if n.ReplicationFactor > 0 {
		t.ReplicationFactor = int16(n.ReplicationFactor)
	}
	for _, name := range slices.Sorted(maps.Keys(n.Settings)) {
		t.Configs = append(t.Configs, createtopics.RequestConfig{Name: name, Value: n.Settings[name]})
	}
	return t
}
