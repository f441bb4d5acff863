package sink_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/sink"
)

// TestResume_Empty looks for what was published in a partition whose log begins where it ends, and not at 0: everything
// in it was deleted. Nothing is found, so everything is published, and that is a decision. It is so with a marker of our
// own at the end and without, and when a replay goes in front of the check.
func TestResume_Empty(t *testing.T) {
	brokers := testenv.Kafka(t)
	for _, tt := range []struct {
		name           string
		fencing, first bool
	}{{"with a marker", true, false}, {"without", false, false}, {"replay first", true, true}, {"replay first without", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			m := newStream(t, brokers, testenv.NewTopic(t, brokers, 1, nil))
			m.session(t, 0, 100)
			deleteRecords(t, brokers, m.topic, -1)
			admin(t, brokers, func(ctx context.Context, c *kadm.Client) error {
				from, err := c.ListStartOffsets(ctx, m.topic)
				if err != nil {
					return err
				}
				until, err := c.ListEndOffsets(ctx, m.topic)
				if err != nil {
					return err
				}
				if a, b := from[m.topic][0].Offset, until[m.topic][0].Offset; a != b || a < 100 {
					t.Fatalf("the log goes from %d to %d", a, b)
				}
				return nil
			})
			cfg := testConfig(m.topic)
			cfg.ResumeLSN = m.event(50).Position.LSN
			k := kafkaConfig(brokers)
			k.NoFencing = !tt.fencing
			s := startAs(t, cfg, sink.NewKafka(k, m.source), m.source)
			if tt.first {
				if refused, err := s.Replay(t.Context(), []outbox.Committed{m.event(10)}); err != nil || len(refused) > 0 {
					t.Fatalf("replay: %v, %v", refused, err)
				}
			}
			s.accept(m.events(50, 120)...)
			s.awaitAcked(70)
			s.drain()
			if st := s.Stats(); st.Resumed != 0 || st.Undecided != 0 {
				t.Errorf("%d events found, %d checks undecided", st.Resumed, st.Undecided)
			}
			var want []string
			if tt.first {
				want = append(want, "10 replay")
			}
			for _, e := range m.events(50, 120) {
				want = append(want, string(e.Payload))
			}
			if diff := cmp.Diff(want, replayed(testenv.Consume(t, brokers, m.topic))); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}
