package chaos

import (
	"slices"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
)

// StallPartition makes a fake broker answer each produce request to a partition of its topics with
// REQUEST_TIMED_OUT, having written nothing, until release is called. The other partitions are not touched.
// refused counts the requests so far.
func StallPartition(f *kafkaserver.Fake, partition int32) (refused *atomic.Int64, release func()) {
	refused = new(atomic.Int64)
	var released atomic.Bool
	f.Cluster.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		req, ok := r.(*kmsg.ProduceRequest)
		if !ok || released.Load() {
			return nil, nil, false
		}
		hit := slices.ContainsFunc(req.Topics, func(t kmsg.ProduceRequestTopic) bool {
			return slices.ContainsFunc(t.Partitions, func(p kmsg.ProduceRequestTopicPartition) bool { return p.Partition == partition })
		})
		if !hit {
			return nil, nil, false
		}
		f.Cluster.KeepControl()
		refused.Add(1)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.RequestTimedOut.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	return refused, func() { released.Store(true) }
}
