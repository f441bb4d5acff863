package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// errStopGrace is the cause of the end of an effect's context when Run could not wait for it any longer.
var errStopGrace = errors.New("ledger: stopped while the effect ran")

// Run carries on with whatever is due on the channels of handlers: registered rows, retries, rows of workers that
// crashed. It works on Config.Workers of them at a time, asks Probe about uncertain ones, and blocks until ctx ends
// or the database refuses for good. Any number of processes may run it on the same channels.
//
// When ctx ends, it claims nothing more, gives back what has not begun, lets effects that have begun go on for
// Config.StopGrace, and returns nil after the last one. While the database cannot be reached it tries again, with
// Config.Observe told.
//
// Errors: ErrHorizon; the driver's, wrapped, when trying again cannot help: a channel without settings, a missing
// right or function.
func (l *Ledger) Run(ctx context.Context, handlers map[string]Handler) error {
	w := &runner{l: l, handlers: handlers, soft: ctx, slots: make(chan struct{}, l.cfg.Workers)}
	for _, channel := range slices.Sorted(maps.Keys(handlers)) {
		if handlers[channel].Effect == nil {
			return fmt.Errorf("channel %q: %w", channel, errNoEffect)
		}
		w.channels = append(w.channels, channel)
		if handlers[channel].Probe != nil {
			w.probed = append(w.probed, channel)
		}
	}
	if l.cfg.Replay > 0 {
		if err := l.Check(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	hard, stopHard := context.WithCancelCause(context.WithoutCancel(ctx))
	w.hard = hard
	var watching sync.WaitGroup
	watching.Go(func() { stopAfter(ctx, hard, l.cfg.StopGrace, stopHard) })
	err := w.loop()
	w.working.Wait()
	stopHard(nil)
	watching.Wait()
	return err
}

// stopAfter ends hard when grace has passed since soft ended.
func stopAfter(soft, hard context.Context, grace time.Duration, stop context.CancelCauseFunc) {
	select {
	case <-soft.Done():
	case <-hard.Done():
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-timer.C:
		stop(errStopGrace)
	case <-hard.Done():
	}
}

type runner struct {
	l        *Ledger
	handlers map[string]Handler
	channels []string // all, and those that can be asked about uncertain rows
	probed   []string

	soft, hard context.Context
	slots      chan struct{} // holds a token for each reservation that is worked on
	working    sync.WaitGroup
}

// maxOutage is the longest pause between two tries to reach the database.
const maxOutage = 5 * time.Second

func (w *runner) loop() error {
	for failures := 0; w.soft.Err() == nil; {
		full, err := w.turn()
		switch {
		case w.soft.Err() != nil:
		case err != nil && !isTransient(err):
			return err
		case err != nil:
			w.l.observe(Observation{Err: err})
			_ = pause(w.soft, failures+4, maxOutage) // its error is the loop's condition
			failures++
		case !full:
			failures = 0
			_ = pauseFor(w.soft, w.l.cfg.Poll)
		default:
			failures = 0
		}
	}
	return nil
}

// turn claims as many rows as there are free slots and starts on them. full: there may be more.
func (w *runner) turn() (full bool, err error) {
	free := w.acquire()
	defer func() { w.release(free) }()
	if free == 0 {
		return false, nil
	}
	// Not under soft: a claim whose answer is lost keeps its rows from everybody until their leases end.
	due, err := w.l.ClaimDue(w.hard, w.channels, free)
	if err != nil {
		return false, err
	}
	for _, r := range due {
		free--
		w.start(func() {
			_, _ = w.l.attempt(w.soft, w.hard, r, w.handlers[r.Key.Channel]) // Observe has been told
		})
	}
	if free == 0 || len(w.probed) == 0 {
		return free == 0, nil
	}
	uncertain, err := w.l.ClaimUncertain(w.hard, w.probed, free, 0)
	if err != nil {
		return false, err
	}
	for _, r := range uncertain {
		free--
		w.start(func() { w.l.probe(w.hard, r, w.handlers[r.Key.Channel]) })
	}
	return free == 0, nil
}

// start runs work, which gives its slot back.
func (w *runner) start(work func()) {
	w.working.Go(func() {
		defer w.release(1)
		work()
	})
}

// acquire waits for a slot and takes all that are free. 0: soft has ended.
func (w *runner) acquire() int {
	select {
	case w.slots <- struct{}{}:
	case <-w.soft.Done():
		return 0
	}
	n := 1
	for {
		select {
		case w.slots <- struct{}{}:
			n++
		default:
			return n
		}
	}
}

func (w *runner) release(n int) {
	for range n {
		<-w.slots
	}
}

// probe asks the provider about an uncertain row and settles it if that is known.
func (l *Ledger) probe(ctx context.Context, r Reservation, h Handler) {
	began := time.Now()
	bounded, cancel := context.WithDeadlineCause(ctx, r.Deadline, ErrLeaseOver)
	defer cancel()
	o := Observation{Reservation: r, Outcome: Uncertain}
	var verdict Verdict
	if verdict, o.Err = h.probe(bounded, r); o.Err == nil && verdict != VerdictUnknown {
		o.Err = l.persist(ctx, func(ctx context.Context) (err error) {
			o.Outcome, err = l.Resolve(ctx, r, verdict, l.cfg.Worker, "probe")
			return err
		})
	}
	if _, ok := errors.AsType[*PanicError](o.Err); ok {
		l.countPanic()
	}
	o.Held = time.Since(began)
	l.observe(o)
}
