package sink

import (
	"io"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/initproducerid"
)

// plainIdentity asks any broker for a producer id that nobody else has. kafka-go's own request would look for a
// transaction coordinator first.
type plainIdentity struct {
	clientID string
	version  int16
}

func (*plainIdentity) ApiKey() protocol.ApiKey { return protocol.InitProducerId }

// Required notes the version that the broker speaks.
func (r *plainIdentity) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[protocol.InitProducerId]
	return true
}

func (r *plainIdentity) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	err := protocol.WriteRequest(rw, r.version, 0, r.clientID, &initproducerid.Request{
		TransactionTimeoutMs: int32(transactionTimeout.Milliseconds()), ProducerID: -1, ProducerEpoch: -1,
	})
	if err != nil {
		return nil, err
	}
	_, res, err := protocol.ReadResponse(rw, protocol.InitProducerId, r.version)
	return res, err
}
