package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// echo is how long after the first signal its like is still part of it.
const echo = 200 * time.Millisecond

// errDrainTimeout is the cause of a hard stop that came because draining took too long.
var errDrainTimeout = errors.New("drain timeout passed with records in flight")

// stopRequest is the cause of a stop that a signal asked for.
type stopRequest struct {
	Signal os.Signal
}

func (e *stopRequest) Error() string { return fmt.Sprintf("stop requested by %s", e.Signal) }

// notifyStops turns SIGINT and SIGTERM into two contexts. soft ends with the first signal: take nothing new,
// finish what is in flight. hard ends with the second, or when the drain timeout has passed since the first:
// drop everything. When hard is over, so is soft. A signal after that kills the process, as if nobody listened.
// The same signal again within echo is not a second one: timeout(1), and whoever signals both a process and its
// group, send one stop twice.
// release stops listening and ends both contexts; call it when done.
func notifyStops(ctx context.Context, drain time.Duration) (soft, hard context.Context, release func()) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	return stopsFrom(ctx, drain, ch, func() { signal.Stop(ch) })
}

// stopsFrom is notifyStops with the signals given. silence makes further signals take their default effect.
func stopsFrom(ctx context.Context, drain time.Duration, signals <-chan os.Signal, silence func()) (soft, hard context.Context, release func()) {
	hard, endHard := context.WithCancelCause(ctx)
	soft, endSoft := context.WithCancelCause(hard)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer silence()
		var first *stopRequest
		select {
		case s := <-signals:
			first = &stopRequest{Signal: s}
		case <-hard.Done():
			return
		}
		endSoft(first)

		timer := time.NewTimer(drain)
		defer timer.Stop()
		for began := time.Now(); ; {
			select {
			case s := <-signals:
				if s == first.Signal && time.Since(began) < echo {
					continue
				}
				endHard(&stopRequest{Signal: s})
			case <-timer.C:
				endHard(errDrainTimeout)
			case <-hard.Done():
			}
			return
		}
	}()
	return soft, hard, func() {
		endHard(context.Canceled)
		<-done
	}
}
