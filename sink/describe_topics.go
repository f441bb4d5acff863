package sink

import (
	"context"
	"slices"
	"strconv"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describeconfigs"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/outboxrelay/relay/outbox"
)

// TopicNames lists the topics that the routes name without a value of an event.
func (c Config) TopicNames() []string { return c.namedTopics() }

// LargestRecord returns the largest record that any route tries.
func (c Config) LargestRecord() int { return c.largestRecord() }

// TopicOf returns the topic that an event goes to, by its route and the names that its parts have; reason says why there
// is none.
func (c Config) TopicOf(e *outbox.Committed) (topic, reason string) {
	routes, err := c.routings()
	if err != nil {
		return "", err.Error()
	}
	name, reason, _ := routes[e.Route].topic(nil, e)
	if reason == "" {
		reason = checkTopic(string(name))
	}
	for _, r := range c.Routes {
		if reason == "" && r.DeadLetterTopic == string(name) {
			reason = "the topic is for copies of dead letters"
		}
	}
	return string(name), reason
}

// TopicInputs names the fields and further columns whose values make the topic.
func (r Route) TopicInputs() (names []string) {
	rt, err := newRouting(r)
	if err != nil {
		return nil
	}
	if rt.rewrite != nil {
		return []string{rt.by.name}
	}
	for _, p := range rt.parts {
		if p.isValue() && !slices.Contains(names, p.ref.name) {
			names = append(names, p.ref.name)
		}
	}
	return names
}

// Topic is what the cluster says of a topic.
type Topic struct {
	Name            string
	Exists          bool
	Err             error // why nothing more is known; nil also where the topic does not exist
	Partitions      int
	Replicas        int               // of the partition with the fewest
	Leaderless      int               // partitions without a leader
	MinInsync       int               // 0: not known
	MaxMessageBytes int               // 0: not known
	Settings        map[string]string // nil: the principal may not see them
	Findings        []TopicFinding
	RightsKnown     bool // the broker told
	Write, Read     bool // rights
}

// Topics looks at topics, for records up to most bytes, by way of the broker at address.
func (v *Survey) Topics(ctx context.Context, address string, names []string, most int) ([]Topic, error) {
	c, err := v.dial(ctx, address)
	if err != nil {
		return nil, surveyError("connect to broker "+address, err)
	}
	defer c.Close()
	m, err := ask[*metadata.Response](c, &metadata.Request{TopicNames: names, IncludeTopicAuthorizedOperations: true})
	if err != nil {
		return nil, surveyError("ask for topics", err)
	}
	var out []Topic
	for i := range m.Topics {
		t := describeTopic(&m.Topics[i])
		if t.Exists {
			settings, err := resourceSettings(c, resourceTopic, t.Name, topicConfigs())
			if err != nil {
				t.Err = surveyError("read settings", err)
			}
			t.judge(settings, most)
		}
		out = append(out, t)
	}
	return out, nil
}

// Bits of the operations that a principal may do, and what stands there when the broker does not tell.
const (
	mayRead       = 1 << 3
	mayWrite      = 1 << 4
	rightsUnknown = -1 << 31
)

func describeTopic(m *metadata.ResponseTopic) Topic {
	t := Topic{Name: m.Name, Partitions: len(m.Partitions)}
	switch code := kafka.Error(m.ErrorCode); code {
	case 0, kafka.LeaderNotAvailable:
		t.Exists = len(m.Partitions) > 0
	case kafka.UnknownTopicOrPartition:
	default:
		t.Err = surveyError("find topic", code)
	}
	for i, p := range m.Partitions {
		if i == 0 || len(p.ReplicaNodes) < t.Replicas {
			t.Replicas = len(p.ReplicaNodes)
		}
		if p.LeaderID < 0 {
			t.Leaderless++
		}
	}
	if ops := m.TopicAuthorizedOperations; ops != rightsUnknown && ops != 0 {
		t.RightsKnown, t.Write, t.Read = true, ops&mayWrite != 0, ops&mayRead != 0
	}
	return t
}

func (t *Topic) judge(settings map[string]string, most int) {
	t.Settings = settings
	t.MinInsync, _ = strconv.Atoi(settings["min.insync.replicas"]) // 0 where it is not known
	t.MaxMessageBytes, _ = strconv.Atoi(settings["max.message.bytes"])
	t.Findings = judgeTopic(t.Name, t.Replicas, settings, most)
}

// Types of resources that have settings.
const (
	resourceTopic  int8 = 2
	resourceBroker int8 = 4
)

// resourceSettings is topicSettings over one connection: nil where the principal may not see them.
func resourceSettings(c *surveyConn, kind int8, name string, keys []string) (map[string]string, error) {
	res, err := ask[*describeconfigs.Response](c, &describeconfigs.Request{
		Resources: []describeconfigs.RequestResource{{ResourceType: kind, ResourceName: name, ConfigNames: keys}},
	})
	if err != nil {
		return nil, err
	}
	return settingsOf(res)
}
