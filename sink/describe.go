package sink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/outboxrelay/relay/internal/state"
)

// Survey looks at a Kafka cluster the way a relay will use it, and changes nothing: it produces nothing, takes no
// producer identity, so that it never fences a relay that runs, and makes no topic, not even one of Kafka's own. Each
// method opens connections of its own and closes them. Safe for concurrent use.
//
// Its errors are *state.Error with the state that a relay would be in.
type Survey struct {
	cfg  KafkaConfig
	id   string // transactional
	door door
}

// NewSurvey returns a survey for the relay of a source. cfg must be valid.
func NewSurvey(cfg KafkaConfig, source string) *Survey {
	return &Survey{cfg: cfg, id: "relay-" + source, door: newDoor(cfg)}
}

// TransactionalID is the id that the relay takes.
func (v *Survey) TransactionalID() string { return v.id }

// Broker is what one broker says of itself.
type Broker struct {
	Address string
	Release string   // the Kafka that it is at least, as its requests show; empty: older than all that are told apart
	Lacks   []string // requests that it does not answer in a version that the relay speaks
	Old     bool     // older than Kafka 2.5
}

// Broker connects to one broker, encrypted and authenticated as the settings say.
func (v *Survey) Broker(ctx context.Context, address string) (Broker, error) {
	c, err := v.dial(ctx, address)
	if err != nil {
		return Broker{}, surveyError("connect to broker "+address, err)
	}
	defer c.Close()
	b := Broker{Address: address}
	for _, key := range v.cfg.usedRequests() {
		r, ok := c.offered[key]
		if !ok || r.MinVersion > key.MaxVersion() || r.MaxVersion < key.MinVersion() {
			b.Lacks = append(b.Lacks, key.String())
		}
	}
	b.Release, b.Old = releaseOf(c.offered)
	return b, nil
}

// usedRequests are those that a relay makes with these settings.
func (c KafkaConfig) usedRequests() []protocol.ApiKey {
	used := []protocol.ApiKey{protocol.Produce, protocol.Fetch, protocol.ListOffsets, protocol.Metadata, protocol.ApiVersions}
	if !c.NotIdempotent {
		used = append(used, protocol.InitProducerId)
	}
	if !c.NotIdempotent && !c.NoFencing {
		used = append(used, protocol.FindCoordinator, protocol.AddPartitionsToTxn, protocol.EndTxn)
	}
	return used
}

// Requests that kafka-go does not know.
const (
	describeCluster      protocol.ApiKey = 60
	describeTransactions protocol.ApiKey = 65
)

// releaseOf tells Kafka's releases apart by what came with them: brokers do not say which one they are.
func releaseOf(offered map[protocol.ApiKey]apiversions.ApiKeyResponse) (name string, old bool) {
	has := func(key protocol.ApiKey) bool { _, ok := offered[key]; return ok }
	switch {
	case offered[protocol.Fetch].MinVersion >= 4: // 4.0 took the older ones out
		return "4.0", false
	case has(describeTransactions):
		return "3.0", false
	case has(describeCluster):
		return "2.8", false
	case offered[protocol.InitProducerId].MaxVersion >= 3:
		return "2.5", false
	}
	return "", true
}

// Cluster is who belongs to a cluster.
type Cluster struct {
	Controller int32
	Brokers    []Node
}

// Node is a broker as the others know it.
type Node struct {
	ID      int32
	Address string
}

// Cluster asks the broker at address who else there is.
func (v *Survey) Cluster(ctx context.Context, address string) (Cluster, error) {
	c, err := v.dial(ctx, address)
	if err != nil {
		return Cluster{}, surveyError("connect to broker "+address, err)
	}
	defer c.Close()
	m, err := ask[*metadata.Response](c, &metadata.Request{TopicNames: []string{}})
	if err != nil {
		return Cluster{}, surveyError("ask broker "+address+" for the cluster", err)
	}
	out := Cluster{Controller: m.ControllerID}
	for _, b := range m.Brokers {
		out.Brokers = append(out.Brokers, Node{b.NodeID, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))})
	}
	return out, nil
}

// surveyConn is a connection on which requests are made one by one.
type surveyConn struct {
	*protocol.Conn
	offered map[protocol.ApiKey]apiversions.ApiKeyResponse
	stop    func() bool
}

func (c *surveyConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// dial connects and learns which versions the broker speaks. All that is done on the connection ends with ctx, and after
// the request timeout.
func (v *Survey) dial(ctx context.Context, address string) (*surveyConn, error) {
	deadline := time.Now().Add(v.cfg.RequestTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	dctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	tcp, err := (&net.Dialer{}).DialContext(dctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	passed, err := v.door.pass(dctx, tcp, address)
	if err != nil {
		tcp.Close()
		return nil, err
	}
	c := &surveyConn{Conn: protocol.NewConn(passed, v.cfg.ClientID), offered: map[protocol.ApiKey]apiversions.ApiKeyResponse{}}
	c.stop = context.AfterFunc(ctx, func() { tcp.Close() })
	if err := c.SetDeadline(deadline); err != nil {
		c.Close()
		return nil, err
	}
	res, err := ask[*apiversions.Response](c, &apiversions.Request{})
	if err == nil && res.ErrorCode != 0 {
		err = kafka.Error(res.ErrorCode)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	versions := map[protocol.ApiKey]int16{}
	for _, r := range res.ApiKeys {
		key := protocol.ApiKey(r.ApiKey)
		c.offered[key] = r
		versions[key] = key.SelectVersion(r.MinVersion, r.MaxVersion)
	}
	c.SetVersions(versions)
	return c, nil
}

// ask makes one request.
func ask[R protocol.Message](c *surveyConn, req protocol.Message) (R, error) {
	var none R
	res, err := c.RoundTrip(req)
	if err != nil {
		return none, err
	}
	r, ok := res.(R)
	if !ok {
		return none, fmt.Errorf("the broker answered a %T with a %T", req, res)
	}
	return r, nil
}

// surveyError words an error as a lane that meets it does.
func surveyError(doing string, err error) error {
	v := verdictOf(err, false)
	e := &state.Error{State: state.BrokerUnreachable, Reason: doing + ": " + describe(err), Hint: hintUnreachable(v.reason)}
	switch {
	case v.class == denied:
		e.State, e.Hint = state.BrokerDenied, hintDenied(err)
	case v.class == missing:
		e.State, e.Hint = state.TopicMissing, "create the topic, or let the relay do it: kafka.create_topics: true"
	case errors.As(err, new(*hangUpError)):
		e.Hint = "check the user name and the password, then the brokers"
	}
	return e
}
