package chaos

import (
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
)

// HoldProduce makes a fake broker keep its next produce request to itself, as a slow network would, and take it only
// when release is called, whatever has become of the sender by then. held is closed when it has one.
func HoldProduce(f *kafkaserver.Fake) (held <-chan struct{}, release func()) {
	has, free := make(chan struct{}), make(chan struct{})
	var taken atomic.Bool
	f.Cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		if taken.Swap(true) { // a control that answers nothing is asked about the later ones too
			return nil, nil, false
		}
		close(has)
		f.Cluster.SleepControl(func() { <-free }) // others are served meanwhile
		return nil, nil, false
	})
	return has, sync.OnceFunc(func() { close(free) })
}
