package deliver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// Processes are killed while they register and deliver. What an effect's provider saw twice, it saw under one key.
func TestWorker_killed(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.exec("CREATE TABLE effects (key text)")
	// A lease of two seconds, so that a dead process is soon followed; resend, so that nothing waits for a person.
	r.rules = strings.Replace(r.rules, "channels:\n  database: {backoff: 50ms..1s}\n  test: {", "channels:\n  database: {backoff: 50ms..1s, lease: 2s, max_attempts: 100}\n  test: {lease: 2s, max_attempts: 100, ", 1)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(r.rules), 0o600); err != nil {
		t.Fatal(err)
	}
	const posts, followers = 8, 150
	for id := range posts {
		r.post(id+1, followers)
		r.produce(r.published(id+1, 1))
	}
	const all = posts * followers
	for i := range 4 {
		p := r.child(t, path)
		// Each is killed when it has made some progress.
		aim := (i + 1) * all / 8
		r.eventually("progress", func() bool {
			return one[int](r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'delivered'") >= aim
		})
		if err := p.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		p.WaitFor(10 * time.Second)
	}
	p := r.child(t, path)
	defer p.WaitFor(10 * time.Second)
	defer func() { _ = p.Signal(syscall.SIGKILL) }()
	r.eventually("everything", r.settled(2*all))
	if got := r.notifications(); got != all {
		t.Errorf("%d notifications, want %d", got, all)
	}
	if got := one[int](r, "SELECT count(DISTINCT key) FROM effects"); got != all {
		t.Errorf("%d effects by key, want %d", got, all)
	}
	if got := one[int](r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state <> 'delivered'"); got != 0 {
		t.Errorf("%d not delivered\n%s", got, r.state())
	}
	t.Logf("effects made more than once, under one key: %d of %d", one[int](r, "SELECT count(*) - count(DISTINCT key) FROM effects"), all)
}

// Members come and go while events flow.
func TestWorker_rebalance(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const posts = 30
	for id := range posts {
		r.post(id+1, 2)
	}
	first := r.run(func(c *deliver.Config) { c.Name = "first" })
	for id := range posts / 3 {
		r.produce(r.published(id+1, 1))
	}
	r.eventually("some", func() bool { return r.notifications() > 0 })
	second := r.run(func(c *deliver.Config) { c.Name = "second" })
	for id := posts / 3; id < 2*posts/3; id++ {
		r.produce(r.published(id+1, 1))
	}
	r.eventually("the second to have partitions", func() bool { return second.Stats().Partitions > 0 && first.Stats().Partitions > 0 })
	if a, b := first.Stats().Partitions, second.Stats().Partitions; a+b != 3 {
		t.Errorf("partitions %d and %d, want 3 in all", a, b)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	for id := 2 * posts / 3; id < posts; id++ {
		r.produce(r.published(id+1, 1))
	}
	r.eventually("the rest", r.settled(posts*4))
	if n, most := r.send.sent(); n != posts*2 || most != 1 || r.notifications() != posts*2 {
		t.Errorf("%d effects, %d of one, %d notifications", n, most, r.notifications())
	}
	r.eventually("all offsets", func() bool { return r.committed("g-"+r.topic) == posts })
}

// While the ledger does not take an event, its offset is not committed.
func TestWorker_offsetsFollowTheLedger(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	r.post(2, 1)
	r.produce(r.published(1, 1))
	w := r.run(nil)
	r.eventually("the first offset", func() bool { return r.committed("g-"+r.topic) == 1 })
	r.exec("ALTER FUNCTION ledger.register_batch RENAME TO hidden")
	r.produce(r.published(2, 1))
	r.eventually("the trouble is told", func() bool { return strings.Contains(w.Stats().Stalled, "register_batch") })
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if got := r.committed("g-" + r.topic); got != 1 {
		t.Errorf("offsets committed up to %d, want 1: the second event is not in the ledger", got)
	}
	r.exec("ALTER FUNCTION ledger.hidden RENAME TO register_batch")
	w = r.run(nil)
	r.eventually("both", r.settled(4))
	r.eventually("the second offset", func() bool { return r.committed("g-"+r.topic) == 2 && w.Stats().Stalled == "" })
}

// A recipient that is slow holds up no other, one channel no other, and no partition.
func TestWorker_slow(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const posts = 20
	for id := range posts {
		r.post(id+1, 5)
	}
	free := make(chan struct{})
	defer sync.OnceFunc(func() { close(free) })()
	r.send.set(func(ctx context.Context, d deliver.Delivery) error {
		if d.Key.Recipient == "user:3" {
			select {
			case <-free:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	// What waits for the slow one would fill all that two goroutines claim ahead.
	r.rules = strings.Replace(r.rules, "test: {", "test: {concurrency: 2, ", 1)
	w := r.run(nil)
	for id := range posts {
		r.produce(r.published(id+1, 1))
	}
	r.eventually("the others", func() bool {
		n, _ := r.send.sent()
		return n == posts*4 && r.notifications() == posts*5 && w.Stats().Records[deliver.RecordRegistered] == posts
	})
	r.eventually("all offsets", func() bool { return r.committed("g-"+r.topic) == posts })
}

// Deliveries to one recipient begin one after the other, in the order of their events.
func TestWorker_order(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const posts = 30
	for id := range posts {
		r.post(id+1, 3)
	}
	r.rules = strings.Replace(r.rules, "test: {after: database, ", "test: {", 1) // blocked rows are tried again at times of their own
	for id := range posts {
		rec := r.published(id+1, 1)
		rec.Key = []byte("one") // one partition
		r.produce(rec)
	}
	r.run(nil)
	r.eventually("all", r.settled(posts*6))
	r.send.mu.Lock()
	defer r.send.mu.Unlock()
	next := map[string]int{}
	for _, sent := range r.send.order {
		key, to, _ := strings.Cut(sent, " ")
		next[to]++
		if want := fmt.Sprint("scheduled-post-published:", next[to]); key != want {
			t.Fatalf("%s got %s as number %d", to, key, next[to])
		}
	}
}

// A worker that is told to stop gives back what has not begun, and waits for what has.
func TestWorker_stop(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 20)
	began, free := make(chan struct{}, 100), make(chan struct{})
	r.send.set(func(ctx context.Context, _ deliver.Delivery) error {
		began <- struct{}{}
		<-free
		return nil
	})
	r.rules = strings.Replace(r.rules, "test: {", "test: {concurrency: 2, ", 1)
	r.produce(r.published(1, 1))
	w := r.run(nil)
	<-began
	<-began
	r.eventually("more are held", func() bool { return w.Stats().Held["test"] > 2 })
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	r.eventually("what had not begun is given back", func() bool {
		return one[int](r, "SELECT count(*) FROM ledger.notification_dispatches WHERE channel = 'test' AND state = 'reserved'") <= 2
	})
	close(free)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if n, _ := r.send.sent(); n != 2 {
		t.Errorf("%d effects, want the 2 that had begun", n)
	}
	if got := one[string](r, "SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM ledger.notification_dispatches WHERE channel = 'test' GROUP BY state) x"); got != "delivered 2, pending 18" {
		t.Errorf("rows: %s", got)
	}
}

// Connections to the database end in the middle of everything.
func TestWorker_connectionsCut(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.rules = strings.Replace(r.rules, "database: {", "database: {lease: 2s, max_attempts: 100, ", 1)
	r.rules = strings.Replace(r.rules, "test: {", "test: {lease: 2s, max_attempts: 100, ", 1)
	const posts, followers = 10, 30
	for id := range posts {
		r.post(id+1, followers)
		r.produce(r.published(id+1, 1))
	}
	r.run(nil)
	cut := newPool(t, r.url)
	for i := range 6 {
		aim := (i + 1) * posts * followers / 8
		testenv.Eventually(t, 60*time.Second, func() (bool, string) {
			var n int // the cut may hit the question
			err := cut.QueryRow(t.Context(), "SELECT count(*) FROM ledger.notifications").Scan(&n)
			return err == nil && n >= aim, fmt.Sprint(n, " notifications, want ", aim, ": ", err)
		})
		if _, err := cut.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		var left, n int
		err := cut.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE state <> 'delivered'), count(*) FROM ledger.notification_dispatches").Scan(&left, &n)
		return err == nil && left == 0 && n == 2*posts*followers, fmt.Sprint(left, " of ", n, " are not delivered: ", err)
	})
	var n int
	if err := cut.QueryRow(t.Context(), "SELECT count(*) FROM ledger.notifications").Scan(&n); err != nil || n != posts*followers {
		t.Errorf("%d notifications, want %d: %v", n, posts*followers, err)
	}
	// An effect whose stamp or end could not be recorded may come twice on a channel that resends, under one key.
	r.send.mu.Lock()
	defer r.send.mu.Unlock()
	if len(r.send.keys) != posts*followers {
		t.Errorf("effects of %d deliveries, want %d", len(r.send.keys), posts*followers)
	}
}

// Behind a transaction's marker, which is no record, reading goes on, and the offset says so.
func TestWorker_markers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	r.post(2, 1)
	c, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.TransactionalID(r.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	transact := func(id int) {
		t.Helper()
		if err := c.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := c.ProduceSync(t.Context(), r.published(id, 1)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := c.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
			t.Fatal(err)
		}
	}
	transact(1)
	r.run(nil)
	r.eventually("the offset behind the marker", func() bool { return r.committed("g-"+r.topic) == 2 })
	transact(2)
	r.eventually("the second", r.settled(4))
	r.eventually("the offset behind the second marker", func() bool { return r.committed("g-"+r.topic) == 4 })
}

// What the topic lost before it was read is counted, and the rest is read.
func TestWorker_lostRecords(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c := r.client()
	defer c.Close()
	admin := kadm.NewClient(c)
	for id := range 4 {
		r.post(id+1, 1)
		rec := r.published(id+1, 1)
		rec.Key = []byte("one")
		r.produce(rec)
	}
	ends, err := admin.ListEndOffsets(t.Context(), r.topic)
	if err != nil {
		t.Fatal(err)
	}
	cut, start := kadm.Offsets{}, kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) {
		start.Add(kadm.Offset{Topic: o.Topic, Partition: o.Partition, At: 0})
		if o.Offset == 4 {
			cut.Add(kadm.Offset{Topic: o.Topic, Partition: o.Partition, At: 3})
		}
	})
	if err := admin.CommitAllOffsets(t.Context(), "g-"+r.topic, start); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.DeleteRecords(t.Context(), cut); err != nil {
		t.Fatal(err)
	}
	w := r.run(nil)
	r.eventually("the last one", r.settled(2))
	if s := w.Stats(); s.Skipped != 3 || s.Records[deliver.RecordRegistered] != 1 {
		t.Errorf("%d skipped, records %v; want 3 and 1", s.Skipped, s.Records)
	}
}

// Partitions that are added while the worker runs are read.
func TestWorker_newPartitions(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.post(1, 1)
	r.post(2, 1)
	r.produce(r.published(1, 1))
	w := r.run(nil)
	r.eventually("the first", r.settled(2))
	c, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := kadm.NewClient(c).UpdatePartitions(t.Context(), 5, r.topic); err != nil {
		t.Fatal(err)
	}
	r.eventually("all partitions", func() bool { return w.Stats().Partitions == 5 })
	rec := r.published(2, 1)
	rec.Partition = 4
	if err := c.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r.eventually("the second", r.settled(4))
}
