package sink_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/sink"
)

// Other clients of the cluster come in as the relay does, by both of kafka-go's ways to make requests.
func TestKafkaDialer(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}, Options: []kfake.Opt{
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{ca.server(loopback())}}),
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "ann", "right"),
	}})
	cfg := kafkaConfig(f.Brokers())
	cfg.TLS = &tls.Config{RootCAs: ca.pool}
	for password, good := range map[string]bool{"right": true, "wrong": false} {
		cfg.SASL = &sink.SASL{Mechanism: "SCRAM-SHA-256", Credentials: func() (string, string, error) { return "ann", password, nil }}
		dial := sink.KafkaDialer(cfg)

		conn, err := (&kafka.Dialer{DialFunc: dial, Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", f.Brokers()[0])
		if (err == nil) != good {
			t.Fatalf("%s password: %v", password, err)
		}
		if good {
			partitions, err := conn.ReadPartitions("t")
			if err != nil || len(partitions) != 3 {
				t.Errorf("%d partitions, %v; want 3", len(partitions), err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}

		transport := &kafka.Transport{Dial: dial, MetadataTopics: []string{"t"}}
		client := &kafka.Client{Addr: kafka.TCP(f.Brokers()...), Transport: transport, Timeout: 5 * time.Second}
		found, err := client.Metadata(t.Context(), &kafka.MetadataRequest{Topics: []string{"t"}})
		if (err == nil) != good || good && len(found.Topics[0].Partitions) != 3 {
			t.Errorf("%s password: %+v, %v", password, found, err)
		}
		transport.CloseIdleConnections()
	}
}
