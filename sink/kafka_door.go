package sink

import (
	"context"
	"net"
	"time"
)

// KafkaDialer returns what opens connections to the brokers that cfg describes, encrypted and authenticated, for other
// clients of the same cluster. cfg must be valid.
func KafkaDialer(cfg KafkaConfig) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := newDoor(cfg)
	dialer := net.Dialer{Timeout: cfg.RequestTimeout / 2, KeepAlive: 15 * time.Second}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		bounded, cancel := context.WithTimeout(ctx, cfg.RequestTimeout)
		defer cancel()
		passed, err := d.pass(bounded, c, address)
		if err != nil {
			c.Close()
			return nil, err
		}
		return passed, nil
	}
}
