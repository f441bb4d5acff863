package sink

import (
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestKafka_OutlivesExpiration has an owner send for longer than the coordinator remembers a transactional id that is
// not used. Because the owner uses it, its successor gets the same producer and a higher epoch, and the owner, should it
// have been paused only, is refused. The second half shows what would be otherwise.
func TestKafka_OutlivesExpiration(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a transactional id to expire")
	}
	broker := testenv.DedicatedKafka(t, kafkaserver.Config{Settings: map[string]string{
		"transactional.id.expiration.ms":                             "2000",
		"transaction.remove.expired.transaction.cleanup.interval.ms": "200",
	}})
	send := func(id string, every time.Duration) (owner, successor *Kafka, topic string) {
		topic = testenv.NewTopic(t, broker.Brokers(), 1, nil)
		cfg := testKafkaConfig(broker.Brokers())
		cfg.FenceEvery = every
		owner = openKafka(t, cfg, id, topic)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for began := time.Now(); time.Since(began) < 6*time.Second; <-tick.C {
			if err := owner.Send(t.Context(), one(t, topic, "old")); err != nil {
				t.Fatal(err)
			}
		}
		cfg.FenceEvery = time.Hour
		successor = openKafka(t, cfg, id, topic)
		if err := successor.Send(t.Context(), one(t, topic, "new")); err != nil {
			t.Fatal(err)
		}
		return owner, successor, topic
	}

	owner, successor, topic := send("used", 500*time.Millisecond)
	if owner.producer != successor.producer || owner.epoch >= successor.epoch {
		t.Errorf("the successor is producer %d epoch %d, the owner %d epoch %d", successor.producer, successor.epoch, owner.producer, owner.epoch)
	}
	owner.cfg.FenceEvery = time.Hour // it wakes in the middle of a batch
	if err := owner.Send(t.Context(), one(t, topic, "late")); verdictOf(err, false).ends != ErrFenced {
		t.Errorf("the owner of before is answered %v, want it refused", err)
	}

	owner, successor, _ = send("unused", time.Hour)
	if owner.producer == successor.producer {
		t.Error("the coordinator still knows an id that was not used, so nothing was tested")
	}
}
