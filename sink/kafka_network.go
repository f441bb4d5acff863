package sink

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// How often the view of the cluster may be renewed: at once, then at growing intervals while errors go on, so that
// one broker that is down does not cost the others their connections ten times a second.
const (
	renewFirst = 100 * time.Millisecond
	renewMost  = time.Second
	renewQuiet = 5 * time.Second // without an error for so long, the interval starts anew
)

const metadataTTL = 5 * time.Second

// network is the connections to the cluster. kafka-go's Transport reads its list of topics only when it makes a
// pool of connections, and refreshes its metadata only by time; so a new topic and a leader that moved both mean
// a new Transport, while requests under way end on the old one.
type network struct {
	cfg     KafkaConfig
	addr    net.Addr
	sockets sockets

	mu       sync.Mutex // guards the fields below
	current  *transport
	topics   []string
	renewed  time.Time
	interval time.Duration
	closed   bool
}

// transport is one Transport and who uses it. A request that begins on a Transport after its connections were
// closed would bring them back for ever, so the last user closes them.
type transport struct {
	kafka.Transport
	users   int
	retired bool
}

var errNetworkClosed = errors.New("the connections to Kafka are closed")

func newNetwork(cfg KafkaConfig) *network {
	n := &network{cfg: cfg, addr: kafka.TCP(cfg.Brokers...)}
	n.sockets.door = newDoor(cfg)
	n.sockets.dialer = net.Dialer{Timeout: cfg.RequestTimeout / 2, KeepAlive: 15 * time.Second}
	n.current = n.newTransport()
	return n
}

// newTransport is the one place where connections are configured. Call it with mu held.
func (n *network) newTransport() *transport {
	topics := n.topics
	if len(topics) == 0 {
		topics = []string{} // no topics; nil would be all
	}
	return &transport{Transport: kafka.Transport{
		Dial:           n.sockets.dial,
		DialTimeout:    n.cfg.RequestTimeout / 2,
		IdleTimeout:    5 * time.Minute,
		MetadataTTL:    metadataTTL,
		MetadataTopics: topics,
		ClientID:       n.cfg.ClientID,
	}}
}

func (n *network) roundTrip(ctx context.Context, req protocol.Message) (protocol.Message, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, errNetworkClosed
	}
	t := n.current
	t.users++
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		t.users--
		if t.retired && t.users == 0 {
			t.CloseIdleConnections()
		}
	}()
	return t.RoundTrip(ctx, n.addr, req)
}

// follow adds a topic to those whose metadata is kept.
func (n *network) follow(topic string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, found := slices.BinarySearch(n.topics, topic); !found {
		n.topics = slices.Insert(slices.Clone(n.topics), i, topic)
		n.replace()
	}
}

// renew has the metadata read again, unless that was done just now.
func (n *network) renew() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	switch since := now.Sub(n.renewed); {
	case since >= renewQuiet:
		n.interval = renewFirst
	case since < n.interval:
		return
	default:
		n.interval = min(2*n.interval, renewMost)
	}
	n.renewed = now
	n.replace()
}

// replace puts a new Transport in the old one's place. Call it with mu held.
func (n *network) replace() {
	if n.closed {
		return
	}
	n.retire()
	n.current = n.newTransport()
}

func (n *network) retire() {
	n.current.retired = true
	n.current.CloseIdleConnections()
}

func (n *network) close(ctx context.Context) error {
	n.mu.Lock()
	if !n.closed {
		n.closed = true
		n.retire()
	}
	n.mu.Unlock()
	return n.sockets.close(ctx)
}
