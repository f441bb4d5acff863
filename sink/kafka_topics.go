package sink

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/createtopics"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
)

// inspector is a Publisher that can look at a topic before something comes of its settings.
type inspector interface {
	// inspect returns what is worth knowing about the topic's settings, for records up to most bytes.
	inspect(ctx context.Context, topic string, most int) ([]string, error)
	// create makes a topic as the settings say.
	create(ctx context.Context, topic string) error
}

// createError marks what went wrong in making a topic.
type createError struct{ err error }

func (e *createError) Error() string { return "create topic: " + e.err.Error() }
func (e *createError) Unwrap() error { return e.err }

func (k *Kafka) create(ctx context.Context, topic string) error {
	res, err := request[*createtopics.Response](ctx, k, &createtopics.Request{
		Topics:    []createtopics.RequestTopic{k.cfg.NewTopics.request(topic)},
		TimeoutMs: int32(k.cfg.RequestTimeout.Milliseconds() / 2),
	})
	if err != nil {
		return &createError{err}
	}
	for i := range res.Topics {
		switch code := kafka.Error(res.Topics[i].ErrorCode); code {
		case 0, kafka.TopicAlreadyExists:
		case kafka.InvalidPartitionNumber, kafka.InvalidReplicationFactor, kafka.InvalidConfiguration, kafka.PolicyViolation:
			return &Fault{Kind: FaultMissing, Err: &createError{code}, Hint: "the brokers make no such topic: change kafka.new_topics, or create it yourself"}
		default:
			return &createError{code}
		}
	}
	k.net.renew()
	return nil
}

// topicConfigs are the settings that inspect asks for.
func topicConfigs() []string {
	return []string{"min.insync.replicas", "max.message.bytes", "cleanup.policy", "unclean.leader.election.enable", "retention.ms", "message.timestamp.type"}
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
	var notes []string
	for _, f := range judgeTopic(topic, replicas, settings, most) {
		notes = append(notes, f.Seen)
	}
	return notes, nil
}

// topicSettings returns settings by name; none where the relay has no right to see them, which it does not need.
func (k *Kafka) topicSettings(ctx context.Context, topic string) (map[string]string, error) {
	res, err := request[*describeconfigs.Response](ctx, k, &describeconfigs.Request{
		Resources: []describeconfigs.RequestResource{{ResourceType: resourceTopic, ResourceName: topic, ConfigNames: topicConfigs()}},
	})
	if err != nil {
		return nil, err
	}
	return settingsOf(res)
}

// settingsOf takes the settings of one resource out of the answer.
func settingsOf(res *describeconfigs.Response) (map[string]string, error) {
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

// TopicFinding is something worth knowing about a topic.
type TopicFinding struct {
	Seen    string // a sentence whose subject is the topic
	Command string // what changes it, for Kafka's own tools; empty: there is no one command
}

// shortRetention is how long a topic should keep its records for the resume check to find them: a relay that was down
// for longer repeats what it had not confirmed.
const shortRetention = time.Hour

// judgeTopic says what is worth knowing about a topic. Settings that are not known are not judged.
func judgeTopic(topic string, replicas int, settings map[string]string, most int) (found []TopicFinding) {
	note := func(command, format string, args ...any) {
		found = append(found, TopicFinding{fmt.Sprintf(format, args...), command})
	}
	set := func(setting string) string {
		return "kafka-configs.sh --bootstrap-server <broker> --alter --entity-type topics --entity-name " + topic + " --add-config " + setting
	}
	if replicas == 1 {
		note("", "it has one replica: what is lost with that broker's disk is lost, although it was acknowledged")
	}
	if n, err := strconv.Atoi(settings["min.insync.replicas"]); err == nil && replicas > 1 {
		switch {
		case n < 2:
			note(set("min.insync.replicas=2"), "min.insync.replicas is %d: a record is acknowledged that only one broker has", n)
		case n >= replicas:
			lower := ""
			if replicas > 2 { // of two there is no good number: the topic wants a third replica
				lower = set(fmt.Sprintf("min.insync.replicas=%d", replicas-1))
			}
			note(lower, "min.insync.replicas is %d of %d replicas: nothing is published while one broker is away", n, replicas)
		}
	}
	if settings["unclean.leader.election.enable"] == "true" {
		note(set("unclean.leader.election.enable=false"), "unclean.leader.election.enable is true: a replica that lacks acknowledged records may become leader")
	}
	if n, err := strconv.Atoi(settings["max.message.bytes"]); err == nil && n < most {
		note(set(fmt.Sprintf("max.message.bytes=%d", most)), "max.message.bytes is %d, the relay's own limit is %d: an event between them halts its partition", n, most)
	}
	if slices.Contains(strings.Split(settings["cleanup.policy"], ","), "compact") {
		note(set("cleanup.policy=delete"), "cleanup.policy is compact: after a restart events may be published again where compaction has removed what was published last")
	}
	if ms, err := strconv.ParseInt(settings["retention.ms"], 10, 64); err == nil && ms >= 0 && ms < shortRetention.Milliseconds() {
		note(set("retention.ms=604800000"), "retention.ms is %d: after a restart that comes later than that, events may be published again", ms)
	}
	return found
}

// inspectTopics looks at topics, those whose names are known at once, and tells Config.Notice. It ends with ctx.
func (s *Sink) inspectTopics(ctx context.Context) error {
	in, ok := s.pub.(inspector)
	if s.cfg.Notice == nil {
		return nil
	}
	select {
	case <-s.opened:
	case <-ctx.Done():
		return nil
	}
	look := func(topic string) {
		if !ok {
			return
		}
		notes, err := in.inspect(ctx, topic, s.cfg.largestRecord())
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
		case g := <-s.grew:
			s.cfg.Notice(g.topic, g.String())
		case n := <-s.uncopied:
			s.cfg.Notice(n.topic, n.finding)
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
