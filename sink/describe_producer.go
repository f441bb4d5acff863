package sink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/findcoordinator"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// Producer is what there is to know of a relay's producer identity without taking it.
type Producer struct {
	// RightErr is the broker's refusal of the transactional id. RightKnown is false where the broker cannot be asked
	// without side effects: Kafka before 3.0.
	RightErr   error
	RightKnown bool

	// TopicSeen says that Kafka's topic for transactions is there and visible. Where it is not visible, or not made
	// yet, the coordinator was not asked for: that would make the topic.
	TopicSeen   bool
	TopicHidden bool
	Replicas    int // of that topic: those that it has, or will be made with; 0: not known
	// CoordinatorErr is why there is no coordinator; nil also where nobody was asked.
	CoordinatorErr error
	Coordinator    string // address
}

const transactionTopic = "__transaction_state"

// Producer looks at the relay's transactional id and at Kafka's own topic for it, through the broker of that node.
func (v *Survey) Producer(ctx context.Context, node Node) (p Producer, err error) {
	c, err := v.dial(ctx, node.Address)
	if err != nil {
		return p, surveyError("connect to broker "+node.Address, err)
	}
	defer c.Close()
	if _, ok := c.offered[describeTransactions]; ok {
		code, err := describeTransaction(c, v.cfg.ClientID, v.id)
		switch {
		case err != nil:
			return p, surveyError("describe transactional id", err)
		case code == kafka.TransactionalIDAuthorizationFailed:
			p.RightErr = surveyError(fmt.Sprintf("describe transactional id %q", v.id), code)
		}
		// Every other answer, that this broker is not the coordinator among them, comes after the right was looked at.
		p.RightKnown = true
	}
	m, err := ask[*metadata.Response](c, &metadata.Request{TopicNames: []string{transactionTopic}})
	if err != nil {
		return p, surveyError("find topic "+transactionTopic, err)
	}
	for i := range m.Topics {
		switch t := describeTopic(&m.Topics[i]); {
		case t.Exists:
			p.TopicSeen, p.Replicas = true, t.Replicas
		case t.Err != nil:
			p.TopicHidden = true
		}
	}
	if p.TopicHidden || p.RightErr != nil {
		return p, nil
	}
	if !p.TopicSeen {
		settings, err := resourceSettings(c, resourceBroker, strconv.Itoa(int(node.ID)), []string{"transaction.state.log.replication.factor"})
		if err != nil {
			return p, surveyError("read the broker's settings", err)
		}
		p.Replicas, _ = strconv.Atoi(settings["transaction.state.log.replication.factor"]) // 0 where it is not known
		return p, nil
	}
	res, err := ask[*findcoordinator.Response](c, &findcoordinator.Request{Key: v.id, KeyType: 1})
	switch {
	case err != nil:
		return p, surveyError("find the transaction coordinator", err)
	case res.ErrorCode != 0:
		p.CoordinatorErr = surveyError("find the transaction coordinator", kafka.Error(res.ErrorCode))
	default:
		p.Coordinator = fmt.Sprintf("%s:%d", res.Host, res.Port)
	}
	return p, nil
}

// describeTransaction asks a broker about a transactional id, in version 0 of DescribeTransactions, which kafka-go lacks.
// Unlike InitProducerId it changes nothing, and unlike FindCoordinator it makes no topic.
func describeTransaction(c *surveyConn, clientID, id string) (kafka.Error, error) {
	req := []byte{0, 0, 0, 0} // length
	req = binary.BigEndian.AppendUint16(req, uint16(describeTransactions))
	req = binary.BigEndian.AppendUint16(req, 0) // version
	const correlation = 65
	req = binary.BigEndian.AppendUint32(req, correlation)
	req = binary.BigEndian.AppendUint16(req, uint16(len(clientID)))
	req = append(req, clientID...)
	req = append(req, 0)                               // no tagged fields in the header
	req = append(req, 2)                               // one element, counted from 1
	req = binary.AppendUvarint(req, uint64(len(id)+1)) // its length, counted from 1
	req = append(append(req, id...), 0)                // and no tagged fields
	binary.BigEndian.PutUint32(req[:4], uint32(len(req)-4))
	if _, err := c.Write(req); err != nil {
		return 0, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return 0, unexpected(err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 1<<20 {
		return 0, fmt.Errorf("the broker's answer has %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(c, body); err != nil {
		return 0, unexpected(err)
	}
	// Correlation id, tagged fields, throttle time, number of elements, error code.
	const before = 4 + 1 + 4 + 1
	if len(body) < before+2 || binary.BigEndian.Uint32(body) != correlation || body[before-1] != 2 {
		return 0, errors.New("the broker's answer about the transactional id is not one")
	}
	return kafka.Error(int16(binary.BigEndian.Uint16(body[before:]))), nil
}
