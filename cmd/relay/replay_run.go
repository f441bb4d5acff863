package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// replayArgs are what a request of kind replay is about: what outbox.requests holds.
type replayArgs struct {
	cdc.Criteria
	Below uint64 `json:"below_xact,omitzero"` // only events of transactions below it; 0: what is published when it begins
	Rate  int    `json:"rate,omitempty"`      // events per second; 0: defaultReplayRate; less: no limit
	Total int64  `json:"total,omitempty"`     // events as counted when it was asked; only shown
}

// replayProgress is how far a replay has come.
type replayProgress struct {
	Published int64         `json:"published"`
	Refused   int64         `json:"refused,omitempty"`
	Gone      int64         `json:"gone,omitempty"`  // rows that were deleted before their turn
	Total     int64         `json:"total,omitempty"` // of the args
	Below     uint64        `json:"below_xact,omitzero"`
	Mark      *cdc.Mark     `json:"mark,omitempty"` // everything up to it is done
	Refusals  []eventReason `json:"refusals,omitempty"`
}

type eventReason struct {
	EventID string `json:"event_id"`
	Reason  string `json:"reason"`
}

const (
	defaultReplayRate = 1000
	maxReplayRate     = 1_000_000
	// replayChunk is how many events are on their way at once at most. After a crash so many may be published again.
	replayChunk = 500
)

// replayDesk carries out requests to publish events again.
type replayDesk struct {
	stream *cdc.Stream
	sink   *sink.Sink
}

// replay publishes what the request selects. A chunk is on the broker before the next one is read, and before the mark
// behind it is reported: so one chunk at most is published again after a crash, and no event is left out.
func (d *replayDesk) replay(ctx context.Context, r requests.Request, report requests.Report) (any, error) {
	var args replayArgs
	var p replayProgress
	if err := json.Unmarshal(r.Args, &args); err != nil {
		return p, &requests.Failed{Reason: "its args cannot be read: " + err.Error()}
	}
	if err := json.Unmarshal(r.Progress, &p); err != nil {
		return p, &requests.Failed{Reason: "its progress cannot be read: " + err.Error()}
	}
	archive, err := d.stream.OpenArchive(ctx)
	if err != nil {
		return p, replayError(err)
	}
	defer archive.Close(ctx)
	if err := p.bound(ctx, archive, args); err != nil {
		return p, replayError(err)
	}
	if err := report(ctx, p); err != nil {
		return p, err
	}
	var from cdc.Mark
	if p.Mark != nil {
		from = *p.Mark
	}
	events, err := archive.Replay(ctx, args.Criteria, p.Below, from)
	if err != nil {
		return p, replayError(err)
	}
	pace := newPacer(args.Rate)
	for {
		page, ok, err := events.Next(ctx, pace.chunk())
		if err != nil {
			return p, replayError(err)
		}
		if !ok {
			break
		}
		refused, err := d.sink.Replay(ctx, page.Events)
		if err != nil {
			return p, err
		}
		p.add(page, refused)
		if err := report(ctx, p); err != nil {
			return p, err
		}
		if err := pace.wait(ctx, len(page.Events)); err != nil {
			return p, err
		}
	}
	if p.Refused > 0 {
		return p, &requests.Failed{Reason: fmt.Sprintf("%d events cannot be published as they are; the first: event %s: %s", p.Refused, p.Refusals[0].EventID, p.Refusals[0].Reason)}
	}
	return p, nil
}

// bound fixes the end of the replay. Nobody who writes a request may move it beyond what is published.
func (p *replayProgress) bound(ctx context.Context, archive *cdc.Archive, args replayArgs) error {
	safe, err := archive.SafeXID(ctx)
	if err != nil {
		return err
	}
	if p.Below == 0 {
		p.Below = args.Below
	}
	if p.Below == 0 || p.Below > safe {
		p.Below = safe
	}
	p.Total = args.Total
	return nil
}

func (p *replayProgress) add(page cdc.Page, refused []sink.Refusal) {
	p.Published += int64(len(page.Events) - len(refused))
	p.Refused += int64(len(refused))
	p.Gone += int64(page.Gone)
	p.Mark = &page.Mark
	for _, r := range refused {
		if len(p.Refusals) < maxRefusals {
			p.Refusals = append(p.Refusals, eventReason{string(page.Events[r.Index].ID), r.Reason})
		}
	}
}

// replayError sorts out what will not heal: trying again every second would change nothing, and ask the database for
// the same every time.
func replayError(err error) error {
	var criteria *cdc.CriteriaError
	switch e := state.Of(err); {
	case errors.As(err, &criteria), errors.Is(err, cdc.ErrNotVouched), errors.Is(err, cdc.ErrTooSlow), e != nil && e.State.NeedsHuman():
		return &requests.Failed{Reason: err.Error()}
	}
	return err
}

// pacer keeps a replay to a number of events per second.
type pacer struct {
	rate int // 0: no limit
	next time.Time
}

func newPacer(rate int) *pacer {
	switch {
	case rate == 0:
		rate = defaultReplayRate
	case rate < 0:
		rate = 0
	}
	return &pacer{rate: rate, next: time.Now()}
}

// chunk is how many events to publish at once: no more than are due within a quarter of a second, so that they do not
// come in bursts.
func (p *pacer) chunk() int {
	if p.rate == 0 {
		return replayChunk
	}
	return min(max(1, p.rate/4), replayChunk)
}

// wait returns when so many events more may follow. Time that was lost is not made up for.
func (p *pacer) wait(ctx context.Context, events int) error {
	if p.rate == 0 {
		return context.Cause(ctx)
	}
	now := time.Now()
	if p.next.Before(now.Add(-time.Second)) {
		p.next = now.Add(-time.Second)
	}
	p.next = p.next.Add(time.Duration(events) * time.Second / time.Duration(p.rate))
	t := time.NewTimer(time.Until(p.next))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
