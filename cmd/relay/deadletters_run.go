package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// letterDesk carries out requests about dead letters.
type letterDesk struct {
	sink    *sink.Sink
	letters *relaystate.Letters
}

// letterArgs say which letters a request is about.
type letterArgs struct {
	IDs   []int64 `json:"ids,omitempty"`
	Topic *string `json:"topic,omitempty"`
	Key   []byte  `json:"key,omitempty"`      // in base64
	To    string  `json:"to_topic,omitempty"` // where they go instead
	Event string  `json:"event_id,omitempty"` // for park
	Upto  int64   `json:"upto,omitempty"`     // no letter with a greater ID
}

// letterProgress is what becomes of a request.
type letterProgress struct {
	Begun     bool           `json:"begun"`     // a relay has been at it
	Published int            `json:"published"` // as far as is known: what a crash left uncounted is missing
	Discarded int            `json:"discarded,omitempty"`
	Refused   int            `json:"refused"`
	Last      int64          `json:"last_id"` // letters up to it are dealt with
	Refusals  []letterReason `json:"refusals,omitempty"`
	Note      string         `json:"note,omitempty"`
	// Keys are those that are being released. Their first letter may be dealt with already, so after a crash nothing
	// else would lead to the others.
	Keys []letterKey `json:"keys,omitempty"`
}

// letterKey is a held key.
type letterKey struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"` // -1: the key decides
	Key       []byte `json:"key"`
}

func (k letterKey) hold() sink.Hold {
	return sink.Hold{Topic: k.Topic, Partition: k.Partition, Key: k.Key}
}

type letterReason struct {
	ID     int64  `json:"id"`
	Reason string `json:"reason"`
}

// maxRefusals bounds how many are told one by one.
const maxRefusals = 20

const (
	letterPage  = 500
	letterBytes = 1 << 20
)

func (p *letterProgress) add(o sink.Outcome) {
	p.Published += o.Published
	p.Refused += len(o.Refused)
	for _, r := range o.Refused {
		if len(p.Refusals) < maxRefusals {
			p.Refusals = append(p.Refusals, letterReason{r.ID, r.Reason})
		}
	}
}

// begin reads the request.
func begin(r requests.Request) (args letterArgs, p letterProgress, err error) {
	if err := json.Unmarshal(r.Args, &args); err != nil {
		return args, p, &requests.Failed{Reason: "its args cannot be read: " + err.Error()}
	}
	if err := json.Unmarshal(r.Progress, &p); err != nil {
		return args, p, &requests.Failed{Reason: "its progress cannot be read: " + err.Error()}
	}
	if r.Kind != "park" && len(args.IDs) == 0 && args.Topic == nil && args.Key == nil {
		return args, p, &requests.Failed{Reason: "its args name no letters"}
	}
	return args, p, nil
}

// each hands the selected open letters to do, page by page.
func (d *letterDesk) each(ctx context.Context, args letterArgs, p *letterProgress, report requests.Report, do func([]*sink.Letter) error) error {
	for {
		letters, err := d.letters.Open(ctx, sink.Selection{IDs: args.IDs, Topic: args.Topic, Key: args.Key, After: p.Last}, letterPage, letterBytes)
		if err != nil {
			return err
		}
		for i, l := range letters {
			if args.Upto > 0 && l.ID > args.Upto {
				letters = letters[:i]
				break
			}
		}
		if len(letters) == 0 {
			return nil
		}
		if err := do(letters); err != nil {
			return err
		}
		p.Last = letters[len(letters)-1].ID
		if err := report(ctx, *p); err != nil {
			return err
		}
	}
}

// requeue publishes letters again. One that holds its key takes those that wait behind it along.
func (d *letterDesk) requeue(ctx context.Context, r requests.Request, report requests.Report) (any, error) {
	args, p, err := begin(r)
	if err != nil {
		return p, err
	}
	again := p.Begun // after a crash: the last letters may be dealt with already
	p.Begun = true
	release := func() error { return d.release(ctx, r, args.To, true, &p, report) }
	if err := release(); err != nil {
		return p, err
	}
	released := map[string]bool{}
	err = d.each(ctx, args, &p, report, func(letters []*sink.Letter) error {
		var plain []*sink.Letter
		for _, l := range letters {
			switch name := holdName(l); {
			case !l.Holds:
				plain = append(plain, l)
			case !released[name]:
				released[name] = true
				p.Keys = append(p.Keys, letterKey{l.Topic, l.Partition, l.Key})
			}
		}
		if len(plain) > 0 {
			out, err := d.sink.Requeue(ctx, plain, args.To, r.Actor, r.Reason)
			p.add(out)
			if err != nil {
				return err
			}
		}
		return release()
	})
	if err == nil && p.Refused > 0 {
		err = &requests.Failed{Reason: fmt.Sprintf("letters that cannot be published as they are, and stay parked: %d; the first is letter %d: %s", p.Refused, p.Refusals[0].ID, p.Refusals[0].Reason)}
	}
	if err == nil && p.Published == 0 && !again {
		err = &requests.Failed{Reason: "no letter that waits was found"}
	}
	return p, err
}

// discard gives letters up. Where that was what others waited for, these go on.
func (d *letterDesk) discard(ctx context.Context, r requests.Request, report requests.Report) (any, error) {
	args, p, err := begin(r)
	if err != nil {
		return p, err
	}
	again := p.Begun
	p.Begun = true
	release := func() error { return d.release(ctx, r, "", false, &p, report) }
	if err := release(); err != nil {
		return p, err
	}
	err = d.each(ctx, args, &p, report, func(letters []*sink.Letter) error {
		var changes []sink.Change
		held := map[string]bool{}
		for _, l := range letters {
			changes = append(changes, sink.Change{ID: l.ID, State: sink.Discarded, Actor: r.Actor, Note: r.Reason})
			if name := holdName(l); l.Holds && !held[name] {
				held[name] = true
				p.Keys = append(p.Keys, letterKey{l.Topic, l.Partition, l.Key})
			}
		}
		if err := report(ctx, p); err != nil {
			return err
		}
		if err := d.letters.Change(ctx, changes); err != nil {
			return err
		}
		p.Discarded += len(changes)
		return nil
	})
	if err == nil {
		err = release()
	}
	if err == nil && p.Discarded == 0 && !again {
		err = &requests.Failed{Reason: "no letter that waits was found"}
	}
	return p, err
}

// release lets the keys that the progress names go on, and forgets them.
func (d *letterDesk) release(ctx context.Context, r requests.Request, topic string, parked bool, p *letterProgress, report requests.Report) error {
	if err := report(ctx, *p); err != nil {
		return err
	}
	for len(p.Keys) > 0 {
		out, err := d.sink.Release(ctx, p.Keys[0].hold(), topic, parked, r.Actor, r.Reason)
		p.add(out)
		if err != nil {
			return err
		}
		p.Keys = p.Keys[1:]
	}
	return report(ctx, *p)
}

const (
	parkPatience = 15 * time.Second
	parkInterval = 200 * time.Millisecond
)

// park makes a dead letter of the event that the relay is halted at.
func (d *letterDesk) park(ctx context.Context, r requests.Request, _ requests.Report) (any, error) {
	args, p, err := begin(r)
	if err != nil {
		return p, err
	}
	tick := time.NewTicker(parkInterval)
	defer tick.Stop()
	for began := time.Now(); ; {
		err := d.sink.ParkHalted(ctx, args.Event, r.Actor, r.Reason)
		if !errors.Is(err, sink.ErrNotHalted) {
			p.Note = "parked"
			return p, err
		}
		known, err := d.letters.Known(ctx, args.Event)
		switch {
		case err != nil && !heals(err):
			return p, err
		case known:
			p.Note = "it was parked already"
			return p, nil
		case time.Since(began) > parkPatience: // one that has just started may not be halted again yet
			return p, &requests.Failed{Reason: "the relay is not halted at this event"}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}

func heals(err error) bool {
	e := state.Of(err)
	return e != nil && !e.State.NeedsHuman()
}

// holdName names the key that a letter holds.
func holdName(l *sink.Letter) string { return fmt.Sprintf("%q %d %q", l.Topic, l.Partition, l.Key) }
