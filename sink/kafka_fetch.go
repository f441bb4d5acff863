package sink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// kafkaLog is the partitionLog of Kafka.
type kafkaLog struct {
	kafka *Kafka
	key   partitionKey
}

// readBackError marks what went wrong in reading a topic, which takes a right that producing does not.
type readBackError struct{ err error }

func (e *readBackError) Error() string { return "read back: " + e.err.Error() }
func (e *readBackError) Unwrap() error { return e.err }

// Timestamps that ask ListOffsets for the ends of the log.
const (
	atEnd   = -1
	atStart = -2
)

func (l *kafkaLog) bounds(ctx context.Context) (start, end int64, err error) {
	// The end first: the start only rises, and one beyond the end says that nothing is left.
	if end, err = l.offset(ctx, atEnd); err != nil {
		return 0, 0, err
	}
	start, err = l.offset(ctx, atStart)
	return start, end, err
}

func (l *kafkaLog) offset(ctx context.Context, at int64) (int64, error) {
	res, err := request[*listoffsets.Response](ctx, l.kafka, &listRequest{key: l.key, at: at, clientID: l.kafka.cfg.ClientID})
	if err != nil {
		return 0, &readBackError{l.kafka.explain(ctx, l.key.topic, err)}
	}
	if len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1 {
		return 0, errors.New("the broker's answer does not mention the partition")
	}
	p := &res.Topics[0].Partitions[0]
	if p.ErrorCode != 0 {
		return 0, &readBackError{l.kafka.failed(kafka.Error(p.ErrorCode))}
	}
	return p.Offset, nil
}

func (l *kafkaLog) read(ctx context.Context, offset int64, most int, buf []byte) ([]byte, error) {
	res, err := request[*fetchResponse](ctx, l.kafka, &fetchRequest{
		clientID: l.kafka.cfg.ClientID, buf: buf,
		Request: fetch.Request{
			ReplicaID: -1, MinBytes: 1, MaxWaitTime: 100, MaxBytes: int32(most), SessionEpoch: -1,
			Topics: []fetch.RequestTopic{{
				Topic: l.key.topic,
				Partitions: []fetch.RequestPartition{{
					Partition: l.key.index, CurrentLeaderEpoch: -1, FetchOffset: offset, LogStartOffset: -1, PartitionMaxBytes: int32(most),
				}},
			}},
		},
	})
	switch {
	case err != nil:
		return nil, &readBackError{l.kafka.explain(ctx, l.key.topic, err)}
	case res.code == kafka.OffsetOutOfRange:
		return nil, errOutOfRange
	case res.code != 0:
		return nil, &readBackError{l.kafka.failed(res.code)}
	}
	return res.records, nil
}

// listRequest asks for one end of one partition. kafka-go's own request would be split and would lose the error
// that says why there is no answer.
type listRequest struct {
	key      partitionKey
	at       int64
	clientID string
	version  int16
}

func (r *listRequest) ApiKey() protocol.ApiKey { return protocol.ListOffsets }

func (r *listRequest) Broker(c protocol.Cluster) (protocol.Broker, error) {
	return (&fetch.Request{Topics: []fetch.RequestTopic{{
		Topic: r.key.topic, Partitions: []fetch.RequestPartition{{Partition: r.key.index}},
	}}}).Broker(c)
}

// Required notes the version that the broker speaks.
func (r *listRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.ListOffsets]
	return true
}

func (r *listRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	err := protocol.WriteRequest(rw, r.version, 0, r.clientID, &listoffsets.Request{
		ReplicaID: -1,
		Topics: []listoffsets.RequestTopic{{
			Topic:      r.key.topic,
			Partitions: []listoffsets.RequestPartition{{Partition: r.key.index, CurrentLeaderEpoch: -1, Timestamp: r.at}},
		}},
	})
	if err != nil {
		return nil, err
	}
	_, res, err := protocol.ReadResponse(rw, protocol.ListOffsets, r.version)
	return res, err
}

// fetchRequest fetches one partition and leaves its record batches as they are: kafka-go would decompress all of
// them at once, and what others have written to the topic may be of any size then.
type fetchRequest struct {
	fetch.Request
	clientID string
	version  int16
	buf      []byte // for the answer, if it fits
}

// Versions of Fetch whose answer is understood. Kafka has had 11 since 2.3.
const (
	fetchLeast = 7
	fetchMost  = 11
)

// Required notes the version that the broker speaks.
func (r *fetchRequest) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = min(versions[protocol.Fetch], fetchMost)
	return true
}

func (r *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if r.version < fetchLeast {
		return nil, fmt.Errorf("the broker speaks version %d of Fetch, the relay %d and more", r.version, fetchLeast)
	}
	if err := protocol.WriteRequest(rw, r.version, 0, r.clientID, &r.Request); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, unexpected(err)
	}
	// A broker answers with at least one batch, which max.message.bytes bounds, and not with much more than asked.
	n := binary.BigEndian.Uint32(size[:])
	if n > maxAnswer {
		return nil, fmt.Errorf("the broker's answer has %d bytes, more than %d", n, maxAnswer)
	}
	raw := r.buf
	if uint32(cap(raw)) < n {
		raw = make([]byte, n)
	}
	raw = raw[:n]
	if _, err := io.ReadFull(rw, raw); err != nil {
		return nil, unexpected(err)
	}
	return parseFetch(raw, r.version)
}

const maxAnswer = 128 << 20

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fetchResponse is what one partition answered.
type fetchResponse struct {
	code    kafka.Error
	records []byte
}

// ApiKey makes it a protocol.Message.
func (*fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch }

// parseFetch reads the answer for one partition, versions 7 to 11.
func parseFetch(raw []byte, version int16) (*fetchResponse, error) {
	p := parser{rest: raw}
	p.skip(4 + 4) // correlation id, throttle time
	res := &fetchResponse{code: kafka.Error(p.int16())}
	p.skip(4) // session
	if topics := p.int32(); topics == 0 || p.bad {
		if res.code == 0 || p.bad {
			return nil, errors.New("the broker's answer does not mention the partition")
		}
		return res, nil
	}
	p.skip(int(p.int16())) // topic
	p.skip(4 + 4)          // number of partitions, partition
	if code := kafka.Error(p.int16()); code != 0 {
		res.code = code
	}
	p.skip(3 * 8) // high watermark, last stable offset, start of the log
	if aborted := p.int32(); aborted > 0 {
		p.skip(int(aborted) * 16)
	}
	if version >= 11 {
		p.skip(4) // preferred read replica
	}
	res.records = p.take(int(max(p.int32(), 0)))
	if p.bad {
		return nil, errors.New("the broker's answer ends early")
	}
	return res, nil
}
