package sink

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
)

// inspector is a Publisher that can look at a topic before something comes of its settings.
type inspector interface {
	// inspect returns what is worth knowing about the topic's settings, for records up to most bytes.
	inspect(ctx context.Context, topic string, most int) ([]string, error)
	// create makes a topic with the brokers' defaults.
	create(ctx context.Context, topic string) error
}

// createError marks what went wrong in making a topic.
type createError struct{ err error }

func (e *createError) Error() string { return "create topic: " + e.err.Error() }
func (e *createError) Unwrap() error { return e.err }

func (k *Kafka) create(ctx context.Context, topic string) error {
	res, err := request[*createtopics.Response](ctx, k, &createtopics.Request{
		Topics:    []createtopics.RequestTopic{{Name: topic, NumPartitions: -1, ReplicationFactor: -1}},
		TimeoutMs: int32(k.cfg.RequestTimeout.Milliseconds() / 2),
	})
	if err != nil {
		return &createError{err}
	}
	for i := range res.Topics {
		if code := kafka.Error(res.Topics[i].ErrorCode); code != 0 && code != kafka.TopicAlreadyExists {
			return &createError{code}
		}
	}
	k.net.renew()
	return nil
}

// topicConfigs are the settings that inspect asks for.
func topicConfigs() []string {
	return []string{"min.insync.replicas", "max.message.bytes", "cleanup.policy", "unclean.leader.election.enable"}
}

func (k *Kafka) inspect(ctx context.Context, topic string, most int) ([]string, error) {
	k.net.follow(topic)
	t, err := k.topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	replicas := len(t.Partitions[0].ReplicaNodes)
	for i := range t.Partitions {
		replicas = min(replicas, len(t.Partitions[i].ReplicaNodes))
	}
	settings, err := k.topicSettings(ctx, topic)
	if err != nil {
		return nil, err
	}
	return judgeTopic(replicas, settings, most), nil
}

// topicSettings returns settings by name; none where the relay has no right to see them, which it does not need.
func (k *Kafka) topicSettings(ctx context.Context, topic string) (map[string]string, error) {
	const resourceTopic = 2
	res, err := request[*describeconfigs.Response](ctx, k, &describeconfigs.Request{
		Resources: []describeconfigs.RequestResource{{ResourceType: resourceTopic, ResourceName: topic, ConfigNames: topicConfigs()}},
	})
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for i := range res.Resources {
		r := &res.Resources[i]
		switch code := kafka.Error(r.ErrorCode); code {
		case 0:
		case kafka.TopicAuthorizationFailed, kafka.ClusterAuthorizationFailed:
			return nil, nil
		default:
			return nil, code
		}
		for j := range r.ConfigEntries {
			settings[r.ConfigEntries[j].ConfigName] = r.ConfigEntries[j].ConfigValue
		}
	}
	return settings, nil
}

// judgeTopic says what is worth knowing about a topic. Settings that are not known are not judged.
func judgeTopic(replicas int, settings map[string]string, most int) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if replicas == 1 {
		note("it has one replica: what is lost with that broker's disk is lost, although it was acknowledged")
	}
	if n, err := strconv.Atoi(settings["min.insync.replicas"]); err == nil && replicas > 1 {
		switch {
		case n < 2:
			note("min.insync.replicas is %d: a record is acknowledged that only one broker has", n)
		case n >= replicas:
			note("min.insync.replicas is %d of %d replicas: nothing is published while one broker is away", n, replicas)
		}
	}
	if settings["unclean.leader.election.enable"] == "true" {
		note("unclean.leader.election.enable is true: a replica that lacks acknowledged records may become leader")
	}
	if n, err := strconv.Atoi(settings["max.message.bytes"]); err == nil && n < most {
		note("max.message.bytes is %d, the relay's own limit is %d: an event between them halts its partition", n, most)
	}
	if slices.Contains(strings.Split(settings["cleanup.policy"], ","), "compact") {
		note("cleanup.policy is compact: after a restart events may be published again where compaction has removed what was published last")
	}
	return notes
}

// inspectTopics looks at topics, those whose names are known at once, and tells Config.Notice. It ends with ctx.
func (s *Sink) inspectTopics(ctx context.Context) error {
	in, ok := s.pub.(inspector)
	if !ok || s.cfg.Notice == nil {
		return nil
	}
	select {
	case <-s.opened:
	case <-ctx.Done():
		return nil
	}
	look := func(topic string) {
		notes, err := in.inspect(ctx, topic, s.cfg.MaxRecordBytes)
		if verdictOf(err, false).class == missing {
			notes = []string{"it does not exist"}
		}
		for _, n := range notes {
			s.cfg.Notice(topic, n)
		}
	}
	for _, topic := range s.cfg.namedTopics() {
		look(topic)
	}
	for {
		select {
		case topic := <-s.found:
			look(topic)
		case <-ctx.Done():
			return nil
		}
	}
}

// namedTopics returns the topics that the settings name.
func (c Config) namedTopics() (names []string) {
	routes := c.Routes
	if len(routes) == 0 {
		routes = []Route{{Topic: c.Route, Topics: c.Topics}}
	}
	for _, r := range routes {
		if r.Topic != "" && !strings.ContainsAny(r.Topic, "{}") {
			names = append(names, r.Topic)
		}
		names = append(names, r.Topics...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
