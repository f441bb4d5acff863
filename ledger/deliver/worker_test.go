package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// The same event twice, and the scheduler again: another outbox row of one event key.
func TestWorker_sameEventTwice(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(42, 3)
	r.produce(r.published(42, 1), r.published(42, 1), r.published(42, 2))
	w := r.run(nil)
	r.eventually("three records", func() bool { return w.Stats().Records[deliver.RecordRegistered] == 3 })
	r.eventually("deliveries", r.settled(6))
	if n, most := r.send.sent(); r.notifications() != 3 || n != 3 || most != 1 {
		t.Errorf("%d notifications, %d effects, %d of one; want 3, 3, 1\n%s", r.notifications(), n, most, r.state())
	}
	if got := one[string](r, "SELECT DISTINCT type || ' ' || (data ->> 'title') || ' ' || (data ->> 'post_id') FROM ledger.notifications"); got != "scheduled-post-published Post 42 42" {
		t.Errorf("notification %q", got)
	}
	s := w.Stats().Registered["database"]
	if s[ledger.Registered] != 3 || s[ledger.Known] != 6 {
		t.Errorf("registered %v: a repetition is counted as one", s)
	}
}

func TestWorker_twoPostsOfOneAuthor(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 2)
	r.post(2, 2)
	r.produce(r.published(1, 1), r.published(2, 1))
	r.run(nil)
	r.eventually("deliveries", r.settled(8))
	if n := r.notifications(); n != 4 {
		t.Errorf("%d notifications, want 4", n)
	}
}

// Two processes of one group, and two groups that read everything at once.
func TestWorker_concurrent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const posts, followers = 12, 5
	for id := range posts {
		r.post(id+1, followers)
		r.produce(r.published(id+1, 1))
	}
	var workers []*running
	for i := range 4 {
		workers = append(workers, r.run(func(c *deliver.Config) {
			c.Name = fmt.Sprint("test", i)
			c.Kafka.Group += []string{"", "-other"}[i/2]
		}))
	}
	r.eventually("all records, by each group", func() bool {
		var n uint64
		for _, w := range workers {
			n += w.Stats().Records[deliver.RecordRegistered]
		}
		return n >= 2*posts
	})
	r.eventually("deliveries", r.settled(posts*followers*2))
	if n, most := r.send.sent(); r.notifications() != posts*followers || n != posts*followers || most != 1 {
		t.Errorf("%d notifications, %d effects, %d of one; want %d, %[4]d, 1", r.notifications(), n, most, posts*followers)
	}
}

func TestWorker_transientFailure(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(42, 1)
	var mu sync.Mutex
	failed := 0
	r.send.set(func(context.Context, deliver.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if failed++; failed < 3 {
			return errors.New("the provider is away")
		}
		return nil
	})
	r.produce(r.published(42, 1))
	w := r.run(nil)
	r.eventually("delivery", r.settled(2))
	if got := one[string](r, "SELECT string_agg(channel || ' ' || state || ' ' || attempts, ', ' ORDER BY channel) FROM ledger.notification_dispatches"); got != "database delivered 1, test delivered 3" {
		t.Errorf("rows: %s", got)
	}
	if n, _ := r.send.sent(); n != 1 || r.notifications() != 1 {
		t.Errorf("%d effects, %d notifications, want 1 and 1", n, r.notifications())
	}
	if s := w.Stats().Attempts["test"]; s[ledger.Failed] != 2 || s[ledger.Delivered] != 1 {
		t.Errorf("attempts %v", s)
	}
}

// What changed between the event and the delivery counts.
func TestWorker_eligibility(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, state, reason string }{
		"permission revoked": {"UPDATE users SET may_read = false", "skipped", "permission revoked"},
		"post deleted":       {"UPDATE posts SET deleted_at = now()", "skipped", "post deleted"},
		"time moved":         {"UPDATE posts SET publish_at = publish_at + interval '1 hour'", "skipped", "publication time moved"},
		"post is gone":       {"DELETE FROM posts", "skipped", "missing"},
		"query fails":        {"ALTER TABLE posts RENAME COLUMN title TO headline", "failed", `check eligibility or write: rule "scheduled-post-published", eligible`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.post(42, 1)
			r.produce(r.published(42, 1))
			r.rules = strings.Replace(r.rules, "backoff: 50ms..1s}\n  test", "backoff: 1h..1h}\n  test", 1)
			// Registered and not yet due: the change comes in between.
			r.rules = strings.Replace(r.rules, "    channels:\n", `    not_before: '{{ if eq .payload.post_id.String "42" }}2999-01-01T00:00:00Z{{ end }}'`+"\n    channels:\n", 1)
			r.run(nil)
			r.eventually("registration", func() bool {
				return one[int](r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'pending'") == 2
			})
			r.exec(c.change)
			r.exec("UPDATE ledger.notification_dispatches SET due_at = now() WHERE channel = 'database'")
			r.eventually("the end", func() bool {
				return one[string](r, "SELECT state FROM ledger.notification_dispatches WHERE channel = 'database'") == c.state
			})
			reason := one[string](r, "SELECT reason FROM ledger.notification_dispatches WHERE channel = 'database'")
			if n, _ := r.send.sent(); !strings.HasPrefix(reason, c.reason) || n != 0 || r.notifications() != 0 {
				t.Errorf("reason %q, %d effects, %d notifications; want %q and none", reason, n, r.notifications(), c.reason)
			}
		})
	}
}

// A row that is not there is waited for while the event is young.
func TestWorker_missing(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(42, 1)
	rec := with(r.published(42, 1), "occurred_at", time.Now().UTC().Format(time.RFC3339Nano))
	r.exec("ALTER TABLE users RENAME TO hidden; CREATE VIEW users AS SELECT id, may_read FROM hidden WHERE false")
	r.rules = strings.Replace(r.rules, "FOR SHARE OF p, u", "", 1)
	r.produce(rec)
	r.run(nil)
	r.eventually("a failed attempt", func() bool {
		return one[bool](r, "SELECT coalesce(bool_or(state = 'failed' AND reason ~ 'business row is missing'), false) FROM ledger.notification_dispatches WHERE channel = 'database'")
	})
	r.exec("CREATE OR REPLACE VIEW users AS SELECT id, may_read FROM hidden")
	r.eventually("the delivery", r.settled(2))
	if r.notifications() != 1 {
		t.Errorf("%d notifications, want 1\n%s", r.notifications(), r.state())
	}
}

// A topic that is read again from its beginning adds nothing.
func TestWorker_replay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for id := range 5 {
		r.post(id+1, 4)
		r.produce(r.published(id+1, 1))
	}
	w := r.run(nil)
	r.eventually("deliveries", r.settled(40))
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	again := r.run(func(c *deliver.Config) { c.Kafka.Group += "-again" })
	r.eventually("all records again", func() bool { return again.Stats().Records[deliver.RecordRegistered] == 5 })
	if n, most := r.send.sent(); n != 20 || most != 1 || r.notifications() != 20 {
		t.Errorf("%d effects, %d of one, %d notifications", n, most, r.notifications())
	}
	if s := again.Stats().Registered["test"]; s[ledger.Registered] != 0 || s[ledger.Known] != 20 {
		t.Errorf("registered %v", s)
	}
}

// A row that never comes is a reason to skip, and not to be dead, on a channel of few attempts too.
func TestWorker_missingForGood(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(42, 1)
	r.exec("CREATE TABLE heirs AS SELECT 'user:1' AS recipient")
	r.rules = strings.Replace(r.rules, "database: {backoff: 50ms..1s}", "database: {backoff: 10ms..20ms, max_attempts: 3}", 1)
	at := strings.Index(r.rules, "    recipients: |")
	end := strings.Index(r.rules, "    # Whether this recipient")
	r.rules = r.rules[:at] + "    recipients: SELECT recipient FROM heirs\n" + r.rules[end:]
	r.exec("DELETE FROM posts")
	r.produce(with(r.published(42, 1), "occurred_at", time.Now().UTC().Format(time.RFC3339Nano)))
	r.run(func(c *deliver.Config) { c.Grace = 8 * time.Second })
	r.eventually("the end", r.settled(2))
	if got := one[string](r, "SELECT state || ' ' || reason || ' ' || attempts FROM ledger.notification_dispatches WHERE channel = 'database'"); !strings.HasPrefix(got, "skipped missing ") {
		t.Errorf("row: %s", got)
	}
}

// asking is a channel whose provider can be asked.
type asking struct{ *sender }

// Probe implements deliver.Prober: the provider knows what it was sent.
func (a asking) Probe(_ context.Context, r ledger.Reservation) (ledger.Verdict, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keys[r.ProviderKey] > 0 {
		return ledger.VerdictDelivered, nil
	}
	return ledger.VerdictNotSent, nil
}

// What became of an effect whose answer was lost is asked for, and only what did not happen is done again.
func TestWorker_probe(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 4)
	r.rules = strings.Replace(r.rules, "test: {after: database, on_uncertain: resend,", "test: {kind: asking, after: database, on_uncertain: probe,", 1)
	lost := map[string]bool{}
	var mu sync.Mutex
	r.send.set(func(_ context.Context, d deliver.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if lost[d.ProviderKey] {
			return nil
		}
		lost[d.ProviderKey] = true
		if d.Key.Recipient < "user:3" { // sent, and the answer is lost
			r.send.mu.Lock()
			r.send.keys[d.ProviderKey]++
			r.send.mu.Unlock()
		}
		return ledger.Ambiguous(errors.New("the answer is lost"))
	})
	r.produce(r.published(1, 1))
	r.run(nil)
	r.eventually("deliveries", r.settled(8))
	if n, most := r.send.sent(); n != 4 || most != 1 {
		t.Errorf("%d effects, %d of one; want 4 and 1\n%s", n, most, r.state())
	}
}

// What waits for another delivery is made as soon as that is, and not when the ledger would look again.
func TestWorker_followers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 2)
	r.rules = strings.Replace(r.rules, "    channels:\n", "    not_before: 2999-01-01T00:00:00Z\n    channels:\n", 1)
	r.produce(r.published(1, 1))
	r.run(nil)
	r.eventually("registration", func() bool {
		return one[int](r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'pending'") == 4
	})
	r.exec("UPDATE ledger.notification_dispatches SET due_at = clock_timestamp() WHERE channel = 'database'")
	r.eventually("both channels", r.settled(4))
	if n, most := r.send.sent(); n != 2 || most != 1 || r.notifications() != 2 {
		t.Errorf("%d effects, %d of one, %d notifications", n, most, r.notifications())
	}
}
