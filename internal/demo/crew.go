package demo

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
)

// crew is a set of goroutines that end together: the first error or crash ends the context that they share.
type crew struct {
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	// mu guards crashed.
	mu      sync.Mutex
	crashed *crash
}

// crash is a panic of a member.
type crash struct {
	member string
	value  any
	stack  []byte
}

func (c *crash) Error() string { return fmt.Sprintf("%s crashed: %v\n%s", c.member, c.value, c.stack) }

// run starts a member. The channel is closed when it has ended.
func (c *crew) run(ctx context.Context, member string, do func(context.Context) error) (ended <-chan struct{}) {
	done := make(chan struct{})
	c.wg.Go(func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				cr := &crash{member, v, debug.Stack()}
				c.mu.Lock()
				c.crashed = cr
				c.mu.Unlock()
				c.cancel(cr)
			}
		}()
		if err := do(ctx); err != nil {
			c.cancel(fmt.Errorf("%s: %w", member, err))
		}
	})
	return done
}

// dismiss ends all members, waits for them, and crashes as one of them did, if one did.
func (c *crew) dismiss() {
	c.cancel(context.Canceled)
	c.wg.Wait()
	c.mu.Lock()
	cr := c.crashed
	c.mu.Unlock()
	if cr != nil {
		panic(cr)
	}
}
