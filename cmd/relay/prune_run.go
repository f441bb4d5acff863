package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
)

// The tables of the relay's own that are pruned too, as they are counted.
const (
	requestsTable    = "outbox.requests"
	deadLettersTable = "outbox.dead_letters"
)

// pruning deletes what nothing needs any more, beside the stream of a session. It outlives sessions.
type pruning struct {
	stream *cdc.Stream
	config *Config
	log    *slog.Logger
	warn   *throttle

	lastFull map[string]time.Time // by table; sessions follow one another, so nothing guards it

	mu   sync.Mutex        // guards the field below
	gone map[string]uint64 // by table
}

const (
	// pruneDelay keeps a start, when everything is behind, free of it.
	pruneDelay = 30 * time.Second
	// fullWalks is how often a walk goes on behind the first young rows.
	fullWalks = 24 * time.Hour
	// pruneShare is how long it pauses after each statement, in times of what that one took: the database has more
	// important things to do.
	pruneShare    = 3
	pruneMinPause = 5 * time.Millisecond
)

func newPruning(c *Config, log *slog.Logger) *pruning {
	p := &pruning{config: c, log: log, warn: newThrottle(time.Hour), gone: map[string]uint64{}, lastFull: map[string]time.Time{}}
	for _, r := range c.retentions() {
		p.gone[r.Table] = 0
	}
	if c.Retention.Requests > 0 {
		p.gone[requestsTable] = 0
	}
	if c.Retention.DeadLetters > 0 {
		p.gone[deadLettersTable] = 0
	}
	return p
}

// Gone returns how many rows were deleted, by table: of those that are pruned at all.
func (p *pruning) Gone() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.gone)
}

func (p *pruning) count(table string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone[table] += uint64(n)
}

// run prunes at intervals until ctx ends.
func (p *pruning) run(ctx context.Context) {
	if len(p.Gone()) == 0 {
		return
	}
	timer := time.NewTimer(min(pruneDelay, p.config.Retention.Interval))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		if err := p.once(ctx); err != nil && ctx.Err() == nil {
			p.report(ctx, err)
		}
		timer.Reset(p.config.Retention.Interval)
	}
}

// report tells why nothing is pruned. The database being away is the session's own news.
func (p *pruning) report(ctx context.Context, err error) {
	if e := state.Of(err); e != nil && !e.State.NeedsHuman() {
		return
	}
	if held, ok := p.warn.allow("prune"); ok {
		p.log.WarnContext(ctx, "rows not pruned", logReason, errText(err), logCount, held+1)
	}
}

// once goes through everything once.
func (p *pruning) once(ctx context.Context) error {
	archive, err := p.stream.OpenArchive(ctx)
	if err != nil {
		return err
	}
	defer archive.Close(ctx)
	r := &p.config.Retention
	var errs []error
	for _, table := range p.config.retentions() {
		n, err := p.walk(ctx, archive, table)
		p.tell(ctx, table.Table, n)
		errs = append(errs, err)
	}
	if r.Requests > 0 {
		n, err := archive.PruneRequests(ctx, r.Requests)
		p.count(requestsTable, n)
		p.tell(ctx, requestsTable, n)
		errs = append(errs, err)
	}
	if r.DeadLetters > 0 {
		n, err := archive.PruneLetters(ctx, r.DeadLetters, r.Batch)
		p.count(deadLettersTable, n)
		p.tell(ctx, deadLettersTable, n)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (p *pruning) tell(ctx context.Context, table string, n int64) {
	if n > 0 {
		p.log.InfoContext(ctx, "rows pruned", logTable, table, logCount, n)
	}
}

// walk prunes one table.
func (p *pruning) walk(ctx context.Context, archive *cdc.Archive, table cdc.Retention) (gone int64, err error) {
	walk, err := archive.Pruner(ctx, table, p.config.Retention.Batch)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	full := began.Sub(p.lastFull[table.Table]) >= fullWalks
	for {
		at := time.Now()
		done, more, err := walk.Next(ctx)
		gone += done.Gone
		p.count(table.Table, done.Gone)
		switch {
		case err != nil:
			return gone, err
		case !more:
			p.lastFull[table.Table] = began
			return gone, nil
		case !full && done.Gone == 0 && walk.Young():
			return gone, nil
		}
		if err := pause(ctx, max(pruneMinPause, pruneShare*time.Since(at))); err != nil {
			return gone, err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
