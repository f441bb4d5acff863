package sink

import (
	"context"

	"github.com/outboxrelay/relay/outbox"
)

// settledPage is how many letters are read at a time.
const settledPage = 1000

// settled walks, beside the stream, through the events that have a letter and may come again: both are in the order
// of positions, so a page of them is enough.
type settled struct {
	page []Settled
	last outbox.Position // of the page
	full bool            // there may be more behind it
}

// loadSettled reads the first page, and the keys that are held. It returns nil when no letter can come again, which
// is nearly always: then the stream pays nothing.
func (s *Sink) loadSettled(ctx context.Context) error {
	if s.cfg.DeadLetters == nil {
		return nil
	}
	r := newRetrier(s, "sink/load", "read dead letters")
	return r.table(ctx, func() error {
		held, err := s.cfg.DeadLetters.Holds(ctx, maxHolds)
		if err != nil {
			return err
		}
		for _, h := range held {
			source, from, err := outbox.ParsePosition(h.From)
			if err != nil || source != s.rec.source {
				from = outbox.Position{} // of another history: everything waits
			}
			s.holds.add(newHoldKey(h.Topic, h.Partition, h.Key), from)
		}
		w := &settled{}
		if err := w.load(ctx, s.cfg.DeadLetters); err != nil {
			return err
		}
		if len(w.page) > 0 {
			s.settled = w
		}
		return nil
	})
}

// load reads the next page.
func (w *settled) load(ctx context.Context, d DeadLetters) error {
	page, err := d.Settled(ctx, w.last, settledPage)
	if err != nil {
		return err
	}
	w.page, w.full = page, len(page) == settledPage
	if len(page) > 0 {
		w.last = page[len(page)-1].Position
	}
	return nil
}

// skip reports whether the event has a letter, and settles it then.
func (s *Sink) skip(ctx context.Context, seq uint64, e *outbox.Committed) (bool, error) {
	w := s.settled
	for {
		for len(w.page) > 0 && w.page[0].Position.Compare(e.Position) < 0 {
			w.page = w.page[1:]
		}
		if len(w.page) > 0 {
			break
		}
		if !w.full {
			s.settled = nil
			return false, nil
		}
		s.flush()
		if err := s.accept.table(ctx, func() error { return w.load(ctx, s.cfg.DeadLetters) }); err != nil {
			return false, err
		}
	}
	x := &w.page[0]
	if x.Position != e.Position || x.EventID != LetterID(e.ID) || x.Source != s.sourceOf(e) {
		return false, nil
	}
	w.page = w.page[1:]
	s.done([]uint64{seq})
	return true, nil
}
