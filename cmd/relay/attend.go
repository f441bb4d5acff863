package main

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/sink"
)

const (
	requestInterval = time.Second
	countInterval   = 5 * time.Second
)

// attended is the sink of a session whose requests are carried out while it runs, whose dead letters are counted,
// and beside which rows are pruned.
type attended struct {
	cdc.Sink
	letters *relaystate.Letters
	desk    *requests.Desk
	counts  *letterCounts
	prune   func(context.Context)

	mu      sync.Mutex // guards the field below
	endDesk context.CancelFunc
	drained bool
}

// letters returns where a session keeps its dead letters.
func (o *opener) letters(s cdc.Session) *relaystate.Letters {
	p := o.config.plan(func(string, string, string) {}) // the configuration is checked
	var origins []relaystate.Origin
	for _, m := range p.tables {
		origins = append(origins, relaystate.Origin{Source: m.Table.String(), Prefix: m.IDPrefix})
	}
	return relaystate.NewLetters(relaystate.Session{
		Slot: o.config.Postgres.Slot, Owner: s.Owner, Source: s.Source, Incarnation: s.Incarnation, Resume: s.ResumeLSN, Origins: origins,
	}, o.config.Postgres.ConnConfig)
}

// attend puts the desk for requests beside a sink.
func (o *opener) attend(around cdc.Sink, out *sink.Sink, letters *relaystate.Letters) *attended {
	return &attended{Sink: around, letters: letters, counts: o.counts, prune: o.pruning.run, desk: &requests.Desk{
		Store: letters.Requests(), Interval: requestInterval, Runners: o.requestKinds(out, letters),
		Fatal: func(err error) bool { return errors.Is(err, sink.ErrNotOwner) },
	}}
}

// Run implements cdc.Sink. The desk ends before the sink does, or with it.
func (a *attended) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked, endDesk := context.WithCancel(ctx)
	a.mu.Lock()
	a.endDesk = endDesk
	if a.drained {
		endDesk()
	}
	a.mu.Unlock()
	var beside sync.WaitGroup
	beside.Go(func() {
		if err := a.desk.Run(asked); errors.Is(err, sink.ErrNotOwner) {
			cancel(err)
		}
	})
	beside.Go(func() { a.counts.follow(asked, a.letters) })
	beside.Go(func() { a.prune(asked) })
	err := a.Sink.Run(ctx)
	endDesk()
	beside.Wait()
	a.letters.Close(ctx)
	return err
}

// Drain implements cdc.Sink: nothing new is begun, and what a request has begun goes on with the next session.
func (a *attended) Drain() {
	a.mu.Lock()
	a.drained = true
	if a.endDesk != nil {
		a.endDesk()
	}
	a.mu.Unlock()
	a.Sink.Drain()
}

// letterCounts is how many dead letters there are, by state, as last counted. Ready as its zero value.
type letterCounts struct {
	last atomic.Pointer[map[string]int64]
}

// Last returns the counts, nil when they are not known.
func (c *letterCounts) Last() map[string]int64 {
	if m := c.last.Load(); m != nil {
		return maps.Clone(*m)
	}
	return nil
}

// follow counts until ctx ends.
func (c *letterCounts) follow(ctx context.Context, letters *relaystate.Letters) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			tick.Reset(countInterval)
		case <-ctx.Done():
			return
		}
		if m, err := letters.Counts(ctx); err == nil {
			c.last.Store(&m)
		}
	}
}
