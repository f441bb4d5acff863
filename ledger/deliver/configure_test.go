package deliver_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// A worker that starts does not undo what was decided in the ledger: after a restore every channel is set to hold, and
// an effect in doubt then waits for a person, whatever the rules say.
func TestWorker_policyStays(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	r.exec("INSERT INTO ledger.channels (channel, mode, on_uncertain) VALUES ('test', 'guarded', 'hold')")
	r.send.set(func(context.Context, deliver.Delivery) error {
		return ledger.Ambiguous(errors.New("the answer is lost"))
	})
	r.produce(r.published(1, 1))
	r.run(nil)
	r.eventually("a delivery in doubt", func() bool {
		return one[int](r, "SELECT count(*)::int FROM ledger.notification_dispatches WHERE channel = 'test' AND state = 'uncertain'") == 1
	})
	if got := one[string](r, "SELECT on_uncertain FROM ledger.channels WHERE channel = 'test'"); got != "hold" {
		t.Errorf("on_uncertain became %s", got)
	}
}

// A channel whose effects are of another kind than the ledger believes is not used.
func TestWorker_otherMode(t *testing.T) {
	t.Parallel()
	r := setupWithoutKafka(t)
	r.exec("INSERT INTO ledger.channels (channel, mode) VALUES ('test', 'simple')")
	err := r.worker(func(c *deliver.Config) { c.Kafka.Topics = nil }).Run(t.Context(), t.Context())
	if err == nil || !strings.Contains(err.Error(), "relay ledger channels set test --mode guarded") {
		t.Errorf("got %v, want the way out", err)
	}
}
