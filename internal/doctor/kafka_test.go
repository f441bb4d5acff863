package doctor_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/sink"
)

const topicCheck = "topic outbox.event.Order"

// Settings of a topic, each made wrong and set right by what is printed.
func TestTopicSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	for _, f := range []struct{ name, value, says string }{
		{"min.insync.replicas", "1", "only one broker has"},
		{"min.insync.replicas", "3", "while one broker is away"},
		{"max.message.bytes", "100000", "max.message.bytes is 100000"},
		{"cleanup.policy", "compact", "compaction"},
		{"retention.ms", "60000", "retention.ms is 60000"},
		{"unclean.leader.election.enable", "true", "may become leader"},
	} {
		r.alterTopic(r.topic, f.name, f.value)
		c := worst(r.examine(), "Kafka", topicCheck)
		if c.Status != doctor.Warn || !strings.Contains(c.Seen, f.says) {
			t.Fatalf("%s = %s: %+v", f.name, f.value, c)
		}
		r.follow(c)
		if c := worst(r.examine(), "Kafka", topicCheck); c.Status != doctor.OK {
			t.Errorf("%s set right: %+v", f.name, c)
		}
	}

	r.doc.Sink.Routes[0].EventTime, r.doc.Sink.Routes[0].Columns = "at", []string{"at"}
	r.alterTopic(r.topic, "message.timestamp.type", "LogAppendTime")
	c := worst(r.examine(), "Kafka", topicCheck)
	if c.Status != doctor.Warn || !strings.Contains(c.Seen, "LogAppendTime") {
		t.Fatalf("got %+v", c)
	}
	r.follow(c)
	if c := worst(r.examine(), "Kafka", topicCheck); c.Status != doctor.OK {
		t.Errorf("set right: %+v", c)
	}

	// A row that the relay takes and the topic does not.
	r.alterTopic(r.topic, "max.message.bytes", "100000")
	r.exec(`SELECT outbox.publish('key', 'Order', '42', 'Placed', payload_bytes => decode(repeat('ab', 200000), 'hex'))`)
	c = worst(r.examine(), "Kafka", "record size of outbox.events")
	if c.Status != doctor.Warn || !strings.Contains(c.Seen, "195.3 KiB") {
		t.Fatalf("got %+v", c)
	}
	r.follow(c)
	if c := worst(r.examine(), "Kafka", "record size of outbox.events"); c.Status == doctor.Warn {
		t.Errorf("set right: %+v", c)
	}
}

func TestTopicMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	r.exec(`SELECT outbox.publish('key', 'Invoice', '1', 'Sent', '{}')`)
	c := worst(r.examine(), "Kafka", "topic outbox.event.Invoice")
	if c.Status != doctor.Fail || !strings.Contains(c.Seen, "does not exist") {
		t.Fatalf("got %+v", c)
	}
	r.doc.Sink.CreateTopics = true
	if c := worst(r.examine(), "Kafka", "topic outbox.event.Invoice"); c.Status != doctor.OK {
		t.Errorf("with create_topics: %+v", c)
	}
	r.doc.Sink.CreateTopics = false
	r.admin(func(ctx context.Context, c *kadm.Client) error {
		topics, err := c.ListTopics(ctx)
		if topics.Has("outbox.event.Invoice") {
			t.Error("doctor made the topic")
		}
		return err
	})
	r.follow(c)
	if c := worst(r.examine(), "Kafka", "topic outbox.event.Invoice"); c.Status == doctor.Fail {
		t.Errorf("made: %+v", c)
	}
}

// The topics of a table made for Debezium, by its own column, and of a column that names the topic.
func TestMappedTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	r.exec(`CREATE TABLE public.outboxevent (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)`,
		`INSERT INTO public.outboxevent SELECT outbox.uuid_v7(), v, '1', 't', '{}' FROM unnest(array['Order', 'Bill', 'Bill']) v`,
		`GRANT SELECT ON public.outboxevent TO {role}`, `ALTER PUBLICATION relay SET TABLE public.outboxevent`)
	r.cfg.Tables = []cdc.Mapping{{Table: cdc.Table{Schema: "public", Name: "outboxevent"}, Columns: cdc.DebeziumColumns(), Extra: []string{"aggregatetype"}}}
	r.doc.Sink.Routes = []sink.Route{{Topic: "outbox.event.{aggregatetype}", Columns: []string{"aggregatetype"}}}
	rep := r.examine()
	if c := worst(rep, "Kafka", topicCheck); c.Status != doctor.OK {
		t.Errorf("got %+v", c)
	}
	if c := worst(rep, "Kafka", "topic outbox.event.Bill"); c.Status != doctor.Fail {
		t.Errorf("got %+v", c)
	}
	if rep.Fail != 1 {
		t.Errorf("%s", strings.Join(wrong(rep), "\n"))
	}
	r.doc.Sink.Routes = []sink.Route{{RouteBy: "aggregatetype", Regex: "(?<v>.*)", Replacement: "outbox.event.$1s", Columns: []string{"aggregatetype"}}}
	if c := worst(r.examine(), "Kafka", "topic outbox.event.Orders"); c.Status != doctor.Fail {
		t.Errorf("got %+v", c)
	}
}

func TestOneReplica(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	r.admin(func(ctx context.Context, c *kadm.Client) error {
		_, err := c.CreateTopic(ctx, 1, 1, nil, "outbox.event.Single")
		return err
	})
	r.exec(`SELECT outbox.publish('key', 'Single', '1', 'Sent', '{}')`)
	if c := worst(r.examine(), "Kafka", "topic outbox.event.Single"); c.Status != doctor.Warn || !strings.Contains(c.Seen, "one replica") || c.Fix == "" {
		t.Errorf("got %+v", c)
	}
}

// A broker that is not there, among others and alone.
func TestBrokers(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	k := *r.doc.Kafka
	k.Brokers = append(slices.Clone(k.Brokers), closed)
	r.doc.Kafka = &k
	rep := r.examine()
	if c := worst(rep, "Kafka", "bootstrap broker"); c.Status != doctor.Warn || !strings.Contains(c.Seen, closed) {
		t.Errorf("one of several: %+v", c)
	}
	if rep.Fail > 0 {
		t.Errorf("%s", strings.Join(wrong(rep), "\n"))
	}
	k.Brokers = []string{closed}
	rep = r.examine()
	if c := worst(rep, "Kafka", "bootstrap broker"); c.Status != doctor.Fail || c.Fix == "" {
		t.Errorf("the only one: %+v", c)
	}
	if c := rep.Find("Kafka", "topics"); len(c) != 1 || c[0].Status != doctor.Skip {
		t.Errorf("topics: %+v", c)
	}

	// One that the cluster names, and that cannot be reached: its partitions cannot be written.
	k.Brokers = r.kafka.Brokers()[:1]
	r.kafka.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.Cluster.KeepControl()
		if len(req.(*kmsg.MetadataRequest).Topics) > 0 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		host, port := "127.0.0.1", int32(ln.Addr().(*net.TCPAddr).Port)
		res.Brokers = append(res.Brokers, kmsg.MetadataResponseBroker{NodeID: 7, Host: host, Port: port})
		return res, nil, true
	})
	if c := worst(r.examine(), "Kafka", "broker"); c.Status != doctor.Fail || !strings.Contains(c.Seen, "node 7") || !strings.Contains(c.Fix, "advertised.listeners") {
		t.Errorf("advertised: %+v", c)
	}
}

// The credentials' errors are those of relay run, and hold no password.
func TestBrokerDenied(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	fake, err := kafkaserver.StartFake(kafkaserver.FakeConfig{Options: []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "relay", "right")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	k := *r.doc.Kafka
	password := "wrong-and-secret"
	k.Brokers, k.SASL = fake.Brokers(), &sink.SASL{Mechanism: "SCRAM-SHA-256", Credentials: func() (string, string, error) { return "relay", password, nil }}
	r.doc.Kafka = &k
	rep := r.examine()
	c := worst(rep, "Kafka", "bootstrap broker")
	if c.Status != doctor.Fail || !strings.Contains(c.Fix, "password") {
		t.Errorf("got %+v", c)
	}
	for _, line := range wrong(rep) {
		if strings.Contains(line, password) {
			t.Errorf("the password is shown: %s", line)
		}
	}
	password = "right"
	if c := worst(r.examine(), "Kafka", "broker"); c.Status != doctor.OK || !strings.Contains(c.Seen, "SCRAM-SHA-256") {
		t.Errorf("got %+v", c)
	}
}

// A right on the transactional id that is missing is found, without InitProducerId or any other request that changes
// something.
func TestProducerRight(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	var mu sync.Mutex // guards asked
	var asked []string
	r.kafka.Cluster.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.Cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, kmsg.NameForKey(req.Key()))
		if d, ok := req.(*kmsg.DescribeTransactionsRequest); ok {
			res := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
			for _, id := range d.TransactionalIDs {
				if !strings.HasPrefix(id, "relay-") || len(id) != len("relay-")+16 {
					t.Errorf("asked about transactional id %q", id)
				}
				x := kmsg.NewDescribeTransactionsResponseTransactionState()
				x.TransactionalID, x.ErrorCode = id, kerr.TransactionalIDAuthorizationFailed.Code
				res.TransactionStates = append(res.TransactionStates, x)
			}
			return res, nil, true
		}
		return nil, nil, false
	})
	c := worst(r.examine(), "Kafka", "transactional id")
	if c.Status != doctor.Fail || !strings.Contains(c.Fix, "TransactionalId relay-*") || len(c.Run) != 1 {
		t.Errorf("got %+v", c)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, harmful := range []string{"InitProducerID", "Produce", "AddPartitionsToTxn", "EndTxn", "CreateTopics"} {
		if slices.Contains(asked, harmful) {
			t.Errorf("doctor asked for %s: %q", harmful, asked)
		}
	}
	if !slices.Contains(asked, "DescribeTransactions") || !slices.Contains(asked, "ApiVersions") {
		t.Errorf("asked only for %q", asked)
	}
}

// A real cluster that is too small for its own topic of transactions. Looking does not make that topic; where it was
// made, its coordinator is found.
func TestTransactionTopic(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	use := func(settings map[string]string) *kafkaserver.Broker {
		b := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: settings})
		k := *r.doc.Kafka
		k.Brokers, k.RequestTimeout = b.Brokers(), 10*time.Second
		r.doc.Kafka = &k
		return b
	}
	b := use(map[string]string{"transaction.state.log.replication.factor": "3"})
	c := worst(r.examine(), "Kafka", "transaction coordinator")
	if c.Status != doctor.Fail || !strings.Contains(c.Seen, "wants 3 replicas; the cluster has 1 broker") || !strings.Contains(c.Fix, "replication.factor=1") {
		t.Errorf("got %+v", c)
	}
	hasTopic := func(b *kafkaserver.Broker) bool {
		client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		topics, err := kadm.NewClient(client).ListTopicsWithInternal(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return topics.Has("__transaction_state")
	}
	if hasTopic(b) {
		t.Error("doctor had the topic made")
	}

	b = use(nil)
	c = worst(r.examine(), "Kafka", "transaction coordinator")
	if c.Status != doctor.OK || !strings.Contains(c.Seen, "first relay") || hasTopic(b) {
		t.Errorf("got %+v, topic made: %t", c, hasTopic(b))
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Brokers()...), kgo.TransactionalID("somebody"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, _, err := client.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		c := worst(r.examine(), "Kafka", "transaction coordinator")
		return c.Status == doctor.OK && strings.Contains(c.Seen, b.Brokers()[0]), c.Seen
	})
	if c := worst(r.examine(), "Kafka", "transactional id"); c.Status != doctor.OK || !strings.Contains(c.Seen, "may be described") {
		t.Errorf("got %+v", c)
	}
}
