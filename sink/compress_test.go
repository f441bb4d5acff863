package sink_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestCompression writes and reads back with each compression, batches that gain nothing among them.
func TestCompression(t *testing.T) {
	brokers := testenv.Kafka(t)
	for _, name := range sink.Compressions() {
		t.Run(name, func(t *testing.T) {
			m := newStream(t, brokers, testenv.NewTopic(t, brokers, 2, nil))
			m.event = func(n int) outbox.Committed {
				e := event(n, fmt.Sprint("key", n%5), fmt.Sprint(n))
				switch n % 3 {
				case 0:
					e.Headers = fmt.Appendf(nil, `{"text": %q}`, strings.Repeat("x", n%2000))
				case 1:
					e.Headers = fmt.Appendf(nil, `{"text": %q}`, noise(n%2000+2))
				}
				return to(m.topic, e)
			}
			session := func(from, until int) (published int) {
				kcfg := kafkaConfig(brokers)
				kcfg.Compression = name
				cfg := testConfig(m.topic)
				cfg.ResumeLSN = m.event(from).Position.LSN
				s := startAs(t, cfg, sink.NewKafka(kcfg, m.source), m.source)
				for c := range slices.Chunk(m.events(from, until), 100) {
					s.accept(c...)
				}
				s.drain()
				if st := s.Stats(); st.Undecided != 0 {
					t.Errorf("got %+v", st)
				}
				return int(s.Stats().Published[m.topic])
			}
			session(0, 2000)
			if n := session(1000, 2500); n != 500 {
				t.Errorf("%d events were published, want the last 500: the others are there", n)
			}
			m.wantOnce(t, 2500)
		})
	}
}
