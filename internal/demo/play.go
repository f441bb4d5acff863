package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ErrStalled is returned by Run when something was committed and nothing arrived for Config.Patience. The summary
// beside it says what is missing.
var ErrStalled = errors.New("demo: events do not arrive")

// ErrStopped is returned by Run when soft ended before anything was written, and nothing else went wrong.
var ErrStopped = errors.New("demo: stopped while it was starting")

// Run plays the demo. When soft ends, nothing more is written, and what was committed is awaited and checked; when
// hard ends, Run drops everything. Whenever it returns, or panics, its servers are gone.
//
// The summary is the zero value when nothing could be checked. What the check found is not an error of Run: see
// Summary.Err.
func Run(soft, hard context.Context, cfg Config) (_ Summary, err error) {
	started := time.Now()
	if cfg.Patience == 0 {
		cfg.Patience = 30 * time.Second
	}
	if err := cfg.validate(); err != nil {
		return Summary{}, fmt.Errorf("check the demo's settings: %w", err)
	}
	p := &play{cfg: cfg, tally: newTally(started)}
	defer func() {
		if closeErr := p.stage.close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	if err := p.stage.setUp(soft, cfg.PostgresMajor, p.step); err != nil {
		if soft.Err() != nil && hard.Err() == nil {
			err = ErrStopped
		}
		return Summary{}, err
	}
	return p.run(soft, hard)
}

// play is one performance.
type play struct {
	cfg   Config
	stage stage
	tally *tally
}

func (p *play) step(name string, elapsed time.Duration) {
	if p.cfg.Listener.Step != nil {
		p.cfg.Listener.Step(name, elapsed)
	}
}

func (p *play) run(soft, hard context.Context) (Summary, error) {
	ctx, cancel := context.WithCancelCause(hard)
	c := &crew{cancel: cancel}
	defer c.dismiss()
	target := p.stage.target

	// The relay comes first: what was written before its slot is made is not its business.
	relaying, stopRelay := context.WithCancel(ctx)
	defer stopRelay()
	relayEnded := c.run(ctx, "relay", func(ctx context.Context) error {
		err := p.cfg.Relay(relaying, ctx, target)
		if err == nil && relaying.Err() == nil {
			err = errors.New("ended without being told to")
		}
		return err
	})
	writing, stopWriting := context.WithCancelCause(ctx)
	defer stopWriting(nil)
	defer context.AfterFunc(soft, func() { stopWriting(context.Cause(soft)) })()
	if _, err := during("starting the relay", p.step, func() (struct{}, error) {
		return struct{}{}, p.awaitReady(ctx, writing)
	}); err != nil {
		if soft.Err() != nil && ctx.Err() == nil {
			err = ErrStopped
		}
		return Summary{}, err
	}
	if p.cfg.Listener.Ready != nil {
		p.cfg.Listener.Ready(target)
	}

	finishing, finish := context.WithCancel(ctx)
	defer finish()
	readerEnded := c.run(ctx, "consumer", func(ctx context.Context) error {
		return read(ctx, finishing, target, p.tally)
	})
	written := p.startWriters(ctx, writing, c)

	// Each end is the next one's condition; in this order nothing can be published or read too late.
	err := p.watch(ctx, written)
	if err == nil {
		p.tally.wrote()
		err = p.watch(ctx, p.tally.settled)
	}
	if err == nil {
		stopRelay()
		err = p.watch(ctx, relayEnded)
	}
	if err == nil {
		finish()
		err = p.watch(ctx, readerEnded)
	}
	if errors.Is(err, ErrStalled) {
		stopWriting(err) // the truth must not grow while it is compared
		select {
		case <-written:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil { // who has ended may have failed
		return Summary{}, context.Cause(ctx)
	}
	truth, truthErr := readTruth(ctx, target.PostgresURL)
	if truthErr != nil {
		return Summary{}, errors.Join(err, truthErr)
	}
	s := p.tally.judge(truth)
	s.PostgresVersion = target.PostgresVersion
	return s, err
}

// startWriters starts the writers and returns a channel that is closed when all of them have ended.
func (p *play) startWriters(ctx, writing context.Context, c *crew) <-chan struct{} {
	pace := newPace(p.cfg.Events, p.cfg.Rate)
	var ended sync.WaitGroup
	for range writers {
		ended.Add(1)
		c.run(ctx, "writer", func(ctx context.Context) error {
			defer ended.Done()
			return write(ctx, writing, p.stage.target.PostgresURL, pace, p.tally)
		})
	}
	return c.run(ctx, "writers", func(context.Context) error {
		ended.Wait()
		return nil
	})
}

// watch tells of the progress until a thing has happened.
func (p *play) watch(ctx context.Context, happened <-chan struct{}) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-happened:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		progress := p.tally.progress()
		if p.cfg.Listener.Progress != nil {
			p.cfg.Listener.Progress(progress)
		}
		if silence := p.tally.silence(); silence > p.cfg.Patience {
			return fmt.Errorf("%w: %d are missing, and none came for %v", ErrStalled, progress.InFlight, silence.Round(time.Second))
		}
	}
}

// awaitReady waits until the relay says that it streams.
func (p *play) awaitReady(ctx, writing context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	said := "nothing"
	for {
		ready, answer := askReady(ctx, p.stage.target.AdminAddress)
		if ready {
			return nil
		}
		if answer != "" {
			said = answer
		}
		select {
		case <-tick.C:
		case <-writing.Done(): // told to stop, or somebody failed
			return context.Cause(writing)
		case <-ctx.Done():
			if writing.Err() != nil {
				return context.Cause(writing)
			}
			return fmt.Errorf("wait for the relay: not ready after %v, it says %s", p.cfg.Patience, said)
		}
	}
}

// askReady asks a relay for its readiness. The answer is empty when there was none.
func askReady(ctx context.Context, address string) (ready bool, answer string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return false, err.Error()
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return false, "" // it does not listen yet
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err != nil {
		return false, ""
	}
	return res.StatusCode == http.StatusOK, strings.Join(strings.Fields(string(body)), " ")
}
