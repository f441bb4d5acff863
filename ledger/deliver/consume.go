package deliver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// consume reads the topics as a member of the group until ctx ends.
//
// A generation of the group is a time in which nobody else has the member's partitions. Each partition is read by a
// goroutine that belongs to the generation and ends with it; an offset is committed under the generation's number, so
// a member that was left behind can move nobody's. What is read and not registered when a generation ends is read again
// by whoever has the partition then, and that adds nothing.
func (w *Worker) consume(ctx context.Context) error {
	var balance spread
	group, err := w.cfg.Kafka.group(&balance)
	if err != nil {
		return err
	}
	client, closeClient := w.cfg.Kafka.client()
	defer closeClient()
	defer group.Close()
	for {
		gen, err := group.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, kafka.RebalanceInProgress): // as it should be when members come or go
			continue
		case err != nil: // kafka-go tries again by itself
			w.notice(fmt.Errorf("join group %q: %w", w.cfg.Kafka.Group, err))
			continue
		}
		w.count.rebalance()
		w.generation(ctx, gen, &balance, source{client, closeClient})
	}
}

// generation starts what reads, and returns at once: kafka-go waits for the end before it joins again.
func (w *Worker) generation(ctx context.Context, gen *kafka.Generation, balance *spread, from source) {
	for topic, assigned := range gen.Assignments {
		for _, a := range assigned {
			gen.Start(func(life context.Context) { w.partition(ctx, life, gen, from, topic, a) })
		}
	}
	gen.Start(func(life context.Context) { w.watch(life, balance, from.client) })
}

// source is what partitions are read with.
type source struct {
	client *kafka.Client
	renew  func() // drops connections, and with them what is known of leaders
}

// joined is a context that ends with the generation or with the worker.
func joined(ctx, life context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(life, cancel)
	return ctx, func() { stop(); cancel() }
}

// partition reads one partition until its generation or the worker ends. Its return ends the generation, so it never
// returns for an error.
func (w *Worker) partition(ctx, life context.Context, gen *kafka.Generation, from source, topic string, a kafka.PartitionAssignment) {
	ctx, cancel := joined(ctx, life)
	defer cancel()
	p := partition{topic, a.ID}
	defer w.count.revoked(p)
	f := &fetcher{client: from.client, p: p, next: a.Offset}
	done := &marker{w: w, gen: gen, p: p}
	var committing sync.WaitGroup
	defer committing.Wait()
	defer done.commit() // before anybody else is told that the partition is free
	ticking, stopTicking := context.WithCancel(ctx)
	defer stopTicking()
	committing.Go(func() { done.run(ticking) })

	for failures := 0; ctx.Err() == nil; {
		batch, err := f.fetch(ctx)
		if err != nil {
			if ctx.Err() == nil {
				failures++
				err = fmt.Errorf("read partition %d of topic %q: %w", p.id, p.topic, err)
				w.count.stalled(p, err.Error())
				w.notice(err)
				from.renew()
				_ = pause(ctx, backoff(failures))
			}
			continue
		}
		failures = 0
		w.count.stalled(p, "")
		w.count.skipped(batch.gap)
		w.count.behind(p, batch.end-f.next)
		for i := range batch.records {
			if !w.handle(ctx, &batch.records[i]) {
				return
			}
			done.mark(batch.records[i].Offset + 1)
			w.count.behind(p, batch.end-batch.records[i].Offset-1)
		}
		if batch.moved {
			done.mark(f.next) // behind the markers of transactions, which are no records
			w.count.behind(p, batch.end-f.next)
		}
	}
}

// handle registers a record's deliveries, for as long as it takes. false: the generation or the worker ended.
//
// It holds up what is behind it on the partition, for order is kept by waiting: only a database that is away or a rule
// that does not fit the schema lets it, never a recipient or a channel.
func (w *Worker) handle(ctx context.Context, r *Record) bool {
	p := partition{r.Topic, r.Partition}
	for failures := 0; ; failures++ {
		outcome, err := w.reg.record(ctx, r)
		if err == nil {
			w.count.stalled(p, "")
			w.count.record(outcome)
			if outcome != RecordIgnored {
				w.registered()
			}
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		w.count.stalled(p, safeText(err))
		w.notice(fmt.Errorf("register record at offset %d of partition %d of topic %q: %w", r.Offset, r.Partition, r.Topic, safe(err)))
		if pause(ctx, backoff(failures+2)) != nil {
			return false
		}
	}
}

// marker commits how far a partition has been registered.
type marker struct {
	w   *Worker
	gen *kafka.Generation
	p   partition

	// mu guards the fields below.
	mu        sync.Mutex
	next      int64 // the offset to commit; 0: none yet
	committed int64
}

// commitEvery is how often offsets are committed. What a crash leaves uncommitted is read again.
const commitEvery = time.Second

func (m *marker) mark(next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = next
}

func (m *marker) run(ctx context.Context) {
	for pause(ctx, commitEvery) == nil {
		m.commit()
	}
}

func (m *marker) commit() {
	m.mu.Lock()
	next := m.next
	due := next > m.committed
	m.mu.Unlock()
	if !due {
		return
	}
	if err := m.gen.CommitOffsets(map[string]map[int]int64{m.p.topic: {m.p.id: next}}); err != nil {
		// Reading again costs a look at the ledger. A generation that is over is nothing to tell.
		if !errors.Is(err, kafka.IllegalGeneration) && !errors.Is(err, kafka.UnknownMemberId) && !errors.Is(err, kafka.RebalanceInProgress) {
			m.w.notice(fmt.Errorf("commit offset of partition %d of topic %q: %w", m.p.id, m.p.topic, err))
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.committed = max(m.committed, next)
}

// watchEvery is how often the group's leader looks for new partitions.
const watchEvery = 10 * time.Second

// watch ends the generation, by returning, when there are partitions that nobody was given. Only the leader's return
// makes the group share out anew.
func (w *Worker) watch(life context.Context, balance *spread, client *kafka.Client) {
	w.count.member(true)
	defer w.count.member(false)
	for {
		if pause(life, watchEvery) != nil {
			return
		}
		ctx, cancel := context.WithTimeout(life, w.cfg.Kafka.Timeout)
		found, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: w.cfg.Kafka.Topics})
		cancel()
		if err != nil {
			continue // whoever reads tells of it
		}
		now := map[string]int{}
		for _, t := range found.Topics {
			if t.Error == nil {
				now[t.Name] = len(t.Partitions)
			}
		}
		if balance.outdated(now) {
			return
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
