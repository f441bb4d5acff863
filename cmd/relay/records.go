package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/sink"
)

// NewTopicsConfig says what the topics are like that the relay makes.
type NewTopicsConfig struct {
	// Partitions and ReplicationFactor are 0 by default, which is what the brokers are set to.
	Partitions, ReplicationFactor int
	// Config are settings of the topic, name=value.
	Config []string
}

// client translates the settings; wrong names the entry of Config that is none.
func (n *NewTopicsConfig) client() (topics sink.NewTopics, wrong string) {
	topics = sink.NewTopics{Partitions: n.Partitions, ReplicationFactor: n.ReplicationFactor, Settings: map[string]string{}}
	for _, entry := range n.Config {
		name, value, ok := strings.Cut(entry, "=")
		if name, value = strings.TrimSpace(name), strings.TrimSpace(value); !ok || name == "" || value == "" {
			return topics, entry
		}
		topics.Settings[name] = value
	}
	return topics, ""
}

func (k *KafkaConfig) validateNewTopics(add addMistake) {
	n := &k.NewTopics
	if n.Partitions < 0 || n.Partitions > 100_000 {
		add("kafka.new_topics.partitions", fmt.Sprintf("%d is out of range", n.Partitions), "use 1 to 100000, or 0 for the brokers' default")
	}
	if n.ReplicationFactor < 0 || n.ReplicationFactor > 1000 {
		add("kafka.new_topics.replication_factor", fmt.Sprintf("%d is out of range", n.ReplicationFactor), "use 1 to as many as there are brokers, or 0 for their default")
	}
	if _, wrong := n.client(); wrong != "" {
		add("kafka.new_topics.config", fmt.Sprintf("%s is not a setting", quoted(wrong)), "write name=value, like min.insync.replicas=2")
	}
	if !k.CreateTopics && (n.Partitions != 0 || n.ReplicationFactor != 0 || len(n.Config) > 0) {
		add("kafka.create_topics", "it says what new topics are like, and none are made", "set kafka.create_topics: true, or leave out kafka.new_topics")
	}
}

// The limits of a record's size. Brokers take no request beyond socket.request.max.bytes, and end the connection.
const (
	minRecord = 1 << 10
	maxRecord = 100 << 20
)

// validateRecords looks at what is true of all records.
func (c *Config) validateRecords(add addMistake) {
	if c.MaxRecordBytes < minRecord || c.MaxRecordBytes > maxRecord {
		add("max_record_bytes", fmt.Sprintf("%s is out of range", &c.MaxRecordBytes), "use 1KiB to 100MiB, and no more than the topics' max.message.bytes")
	}
	if c.Route.Compression != "" && !slices.Contains(sink.Compressions(), c.Route.Compression) {
		add("route.compression", fmt.Sprintf("%s is not a compression", quoted(c.Route.Compression)), "use "+strings.Join(sink.Compressions(), ", "))
	}
}

// recordLimits returns what an entry of tables or messages says of its records, or else what holds for all.
func recordLimits(otherwise sink.Route, compression string, most ByteSize, bad addMistake) (string, int) {
	switch {
	case compression == "":
		compression = otherwise.Compression
	case !slices.Contains(sink.Compressions(), compression):
		bad("compression", fmt.Sprintf("%s is not a compression", quoted(compression)), "use "+strings.Join(sink.Compressions(), ", "))
		compression = ""
	}
	if most != 0 && (most < minRecord || most > maxRecord) {
		bad("max_record_bytes", fmt.Sprintf("%s is out of range", &most), "use 1KiB to 100MiB, and no more than the topic's max.message.bytes")
		most = 0
	}
	return compression, int(most)
}
