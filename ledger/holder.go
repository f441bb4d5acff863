package ledger

import (
	"context"
	"sync"
	"time"
)

// holder keeps a reservation while it is worked on: it renews the lease at half of what is left, as long as the
// channel's cap on holding allows, and ends its context when the right to act ends.
type holder struct {
	l      *Ledger
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() // ends the goroutine and waits for it; may be called again

	// mu guards r, whose deadline each renewal moves.
	mu sync.Mutex
	r  Reservation
}

// hold starts to keep r. The caller calls stop.
func (l *Ledger) hold(ctx context.Context, r Reservation) *holder {
	h := &holder{l: l, r: r}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	keeping, quit := context.WithCancel(h.ctx)
	var running sync.WaitGroup
	running.Go(func() { h.keep(keeping) })
	h.stop = sync.OnceFunc(func() {
		quit() // a renewal that is on its way, too: the effect's end must not wait for its answer
		running.Wait()
	})
	return h
}

// close gives up: the context ends too.
func (h *holder) close() {
	h.stop()
	h.cancel(nil)
}

func (h *holder) reservation() Reservation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.r
}

// leastRenewal is how close before the deadline a renewal still makes sense.
const leastRenewal = 5 * time.Millisecond

func (h *holder) keep(ctx context.Context) {
	renewing := true
	for {
		left := time.Until(h.reservation().Deadline)
		if left <= 0 {
			h.cancel(ErrLeaseOver)
			return
		}
		wait := left
		if renewing && left/2 > leastRenewal {
			wait = left / 2
		}
		if pauseFor(ctx, wait) != nil {
			return
		}
		if !renewing || wait == left {
			continue
		}
		switch h.renew(ctx) {
		case Renewed, "": // unanswered: try again at half of what is left then
		case HoldCap:
			renewing = false
		case LeaseOver:
			h.cancel(ErrLeaseOver)
			return
		default:
			h.cancel(ErrFenced)
			return
		}
	}
}

// renew asks once. An answer that comes after the deadline is of no use.
func (h *holder) renew(ctx context.Context) Outcome {
	r := h.reservation()
	ctx, cancel := context.WithDeadline(ctx, r.Deadline)
	defer cancel()
	renewed, outcome, err := h.l.Renew(ctx, r, 0)
	if err != nil {
		return ""
	}
	if outcome == Renewed {
		h.mu.Lock()
		h.r = renewed
		h.mu.Unlock()
	}
	return outcome
}
