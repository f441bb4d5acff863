// Package requests carries out what people ask of a running relay: rows of outbox.requests. Only the owner of the slot
// publishes, so whoever wants something published inserts a row, and the relay that streams does the work.
//
// # Guarantee
//
// A request that was begun is brought to its end, by the next relay if this one dies: it is then begun again with the
// progress that was last reported. So a Runner reports what is done only when it is done, and may find some of it done
// already. One that somebody calls off, by giving its row the state failed, is left where it is within two looks.
// Requests of one kind are carried out one after the other in the order in which they were made; those of
// different kinds do not wait for one another, for one may be what another waits for.
package requests

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Request is something that somebody has asked for.
type Request struct {
	ID       int64
	Kind     string
	Args     json.RawMessage // a JSON object, by the kind
	Progress json.RawMessage // a JSON object: what was last reported; {} at the beginning
	Actor    string
	Reason   string
}

// Report commits how far a request has come. progress becomes a JSON object.
type Report func(ctx context.Context, progress any) error

// Runner carries out the requests of one kind. It returns the last progress, and nil when the request is done, or a
// *Failed when it cannot be done. After any other error it is begun again, by this relay or by the next.
type Runner func(ctx context.Context, r Request, report Report) (progress any, err error)

// ErrCalledOff is the cause with which the context of a Runner ends when somebody has given its request another state.
var ErrCalledOff = errors.New("requests: the request was called off")

// Failed ends a request that cannot be done. Its text is for people.
type Failed struct{ Reason string }

func (e *Failed) Error() string { return e.Reason }

// Store keeps requests. Each write changes nothing once another relay has taken the slot. internal/relaystate
// implements it.
type Store interface {
	// Open returns the first open request of each kind.
	Open(ctx context.Context) ([]Request, error)
	// Report notes that a request is running, and how far it has come.
	Report(ctx context.Context, id int64, progress any) error
	// Finish notes that a request is done or, where failure is not empty, has failed.
	Finish(ctx context.Context, id int64, progress any, failure string) error
}

// Desk takes requests in for one session.
type Desk struct {
	Store    Store
	Runners  map[string]Runner // by kind; others are left for a relay that knows them
	Interval time.Duration     // between two looks
	// Fatal reports whether an error of the store, or of a runner, ends the session. Nil: none does.
	Fatal func(error) bool
}

// Run looks for requests and carries them out until ctx ends, whose cause it returns, or an error is fatal. All runners
// have ended when it returns.
func (d *Desk) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var runners sync.WaitGroup
	defer runners.Wait()
	defer cancel(nil)
	finished := make(chan string, len(d.Runners))
	busy := map[string]underWay{}
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case kind := <-finished:
			busy[kind].callOff(nil)
			delete(busy, kind)
			continue
		case <-tick.C:
			tick.Reset(d.Interval)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		open, err := d.Store.Open(ctx)
		if err != nil {
			if d.fatal(err) {
				return err
			}
			continue
		}
		first := map[string]int64{}
		for _, r := range open {
			first[r.Kind] = r.ID
			run, known := d.Runners[r.Kind]
			if _, occupied := busy[r.Kind]; !known || occupied {
				continue
			}
			theirs, callOff := context.WithCancelCause(ctx)
			busy[r.Kind] = underWay{r.ID, callOff}
			runners.Go(func() {
				defer func() { finished <- r.Kind }()
				if err := d.carryOut(ctx, theirs, r, run); err != nil && d.fatal(err) {
					cancel(err)
				}
			})
		}
		for kind, u := range busy {
			// Not open any more, or others are waiting and it is not before them.
			if id, found := first[kind]; !found || id > u.id {
				u.callOff(ErrCalledOff)
			}
		}
	}
}

// underWay is a request that is being carried out.
type underWay struct {
	id      int64
	callOff context.CancelCauseFunc
}

func (d *Desk) fatal(err error) bool { return d.Fatal != nil && d.Fatal(err) }

// carryOut does one request. theirs is the context of the runner.
func (d *Desk) carryOut(ctx, theirs context.Context, r Request, run Runner) error {
	report := func(ctx context.Context, progress any) error { return d.Store.Report(ctx, r.ID, progress) }
	if err := report(ctx, r.Progress); err != nil {
		return err
	}
	progress, err := run(theirs, r, report)
	failure := ""
	var failed *Failed
	switch {
	case errors.Is(context.Cause(theirs), ErrCalledOff):
		return nil // it has its state, and nothing is added
	case errors.As(err, &failed):
		failure = failed.Reason
	case err != nil:
		return err
	}
	return d.Store.Finish(ctx, r.ID, progress, failure)
}
