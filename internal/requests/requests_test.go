package requests_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/internal/testenv"
)

// memory keeps requests of one kind in memory.
type memory struct {
	mu    sync.Mutex
	list  []requests.Request
	state map[int64]string
	looks int
}

func (m *memory) Open(context.Context) (out []requests.Request, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	for _, r := range m.list {
		if s := m.state[r.ID]; s == "pending" || s == "running" {
			return []requests.Request{r}, nil
		}
	}
	return nil, nil
}

func (m *memory) Report(_ context.Context, id int64, _ any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state[id] == "pending" {
		m.state[id] = "running"
	}
	return nil
}

func (m *memory) Finish(_ context.Context, id int64, _ any, failure string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state[id] = "done"; failure != "" {
		m.state[id] = failure
	}
	return nil
}

func (m *memory) set(id int64, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state[id] = state
}

func (m *memory) states() map[int64]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[int64]string{}
	for id, s := range m.state {
		out[id] = s
	}
	return out
}

// TestDesk_CalledOff ends the runner of a request that somebody has called off, leaves the request as it is, and goes on
// with the next one. One that fails with an error is begun again, and one that ends by itself is not disturbed.
func TestDesk_CalledOff(t *testing.T) {
	t.Parallel()
	store := &memory{state: map[int64]string{}}
	for id := int64(1); id <= 3; id++ {
		store.list = append(store.list, requests.Request{ID: id, Kind: "k"})
		store.state[id] = "pending"
	}
	began := make(chan int64, 10)
	causes := make(chan error, 10)
	tries := 0
	run := func(ctx context.Context, r requests.Request, report requests.Report) (any, error) {
		began <- r.ID
		switch r.ID {
		case 1:
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, context.Cause(ctx)
		case 2:
			if tries++; tries < 3 {
				return nil, errors.New("the broker is away")
			}
			return nil, report(ctx, nil)
		}
		return nil, &requests.Failed{Reason: "cannot be done"}
	}
	desk := &requests.Desk{Store: store, Interval: time.Millisecond, Runners: map[string]requests.Runner{"k": run}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- desk.Run(ctx) }()
	if id := <-began; id != 1 {
		t.Fatalf("request %d is the first", id)
	}
	store.mu.Lock()
	looks := store.looks
	store.mu.Unlock()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) { // while it is open nobody calls it off
		store.mu.Lock()
		defer store.mu.Unlock()
		return store.looks > looks+5, "the desk does not look"
	})
	select {
	case err := <-causes:
		t.Fatalf("the first was ended: %v", err)
	default:
	}
	store.set(1, "called off")
	select {
	case err := <-causes:
		if !errors.Is(err, requests.ErrCalledOff) {
			t.Errorf("cause is %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nobody ends the first")
	}
	want := map[int64]string{1: "called off", 2: "done", 3: "cannot be done"}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		diff := cmp.Diff(want, store.states())
		return diff == "", diff
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v", err)
	}
	if tries != 3 {
		t.Errorf("%d tries of the second, want 3", tries)
	}
}
