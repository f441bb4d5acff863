package sinktest_test

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"sync"
	"testing"

	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/sinktest"
)

// far is an other side in memory.
type far struct {
	mu      sync.Mutex // guards the fields below
	logs    map[int32][]sinktest.Record
	last    map[int32]*sink.Batch
	epoch   int
	losing  bool
	down    bool
	stalled chan struct{} // nil: it answers
}

const (
	partitions = 4
	poison     = "never"
)

func newFar() *far { return &far{logs: map[int32][]sinktest.Record{}, last: map[int32]*sink.Batch{}} }

func (f *far) read() (out []sinktest.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range int32(partitions) {
		out = append(out, f.logs[p]...)
	}
	return out
}

func (f *far) stall() (resume func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := make(chan struct{})
	f.stalled = c
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stalled = nil
		close(c)
	}
}

func (f *far) set(what *bool, to bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*what = to
}

// memory is a publisher as it should be. Faults makes it one that is not.
type memory struct {
	far    *far
	wrong  string
	epoch  int
	closed chan struct{}
	once   sync.Once
}

var (
	errDown = errors.New("down")
	errLost = errors.New("the answer is lost")
	errShut = errors.New("closed")
)

func (m *memory) Open(context.Context) error {
	m.far.mu.Lock()
	defer m.far.mu.Unlock()
	m.far.epoch++
	m.epoch = m.far.epoch
	if m.wrong == "leaks" {
		go func() { select {} }()
	}
	return nil
}

func (m *memory) Partitions(_ context.Context, topic string) (int, error) {
	if topic == "missing" {
		return 0, &sink.Fault{Kind: sink.FaultMissing, Err: errors.New("no such topic")}
	}
	return partitions, nil
}

func (m *memory) Send(ctx context.Context, b *sink.Batch) error {
	m.far.mu.Lock()
	stalled := m.far.stalled
	m.far.mu.Unlock()
	if stalled != nil {
		switch m.wrong {
		case "ignores its context":
			select {
			case <-stalled:
			case <-m.closed:
			}
		case "ignores Close":
			select {
			case <-stalled:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		default:
			select {
			case <-stalled:
			case <-m.closed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	m.far.mu.Lock()
	defer m.far.mu.Unlock()
	select {
	case <-m.closed:
		if m.wrong != "sends after Close" {
			return errShut
		}
	default:
	}
	switch {
	case m.far.down:
		return errDown
	case m.epoch != m.far.epoch && m.wrong != "does not fence":
		return &sink.Fault{Kind: sink.FaultReplaced, Err: errors.New("another owner")}
	}
	return m.append(b)
}

// append puts the batch into its log. Call it with the far side's mu held.
func (m *memory) append(b *sink.Batch) error {
	var records []sinktest.Record
	for r := range b.Records() {
		out := sinktest.Record{Partition: b.Partition, Key: string(r.Key), Value: slices.Clone(r.Value)}
		if r.Value != nil && out.Value == nil || m.wrong == "makes null empty" {
			out.Value = append([]byte{}, r.Value...)
		}
		for name, value := range r.Headers() {
			if h := (sinktest.Header{Name: string(name), Value: string(value)}); h.Value != "" || m.wrong != "drops empty headers" {
				out.Headers = append(out.Headers, h)
			}
		}
		if string(r.Value) == poison && m.wrong != "takes poison" {
			if m.wrong == "calls poison an outage" {
				return errDown
			}
			return &sink.Fault{Kind: sink.FaultPoison, Err: errors.New("the value is never taken")}
		}
		records = append(records, out)
	}
	f, p := m.far, b.Partition
	switch m.wrong {
	case "reorders":
		slices.Reverse(records)
	case "spreads keys":
		h := fnv.New32()
		_, _ = h.Write(records[0].Value)
		p = int32(h.Sum32() % partitions)
		for i := range records {
			records[i].Partition = p
		}
	case "answers first":
		go func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.logs[p] = append(f.logs[p], records...)
		}()
		return nil
	case "loses the first":
		records = records[1:]
	}
	if f.last[p] != b || m.wrong == "repeats" {
		f.logs[p] = append(f.logs[p], records...)
	}
	if f.last[p] = b; !f.losing {
		f.last[p] = nil // taken; the batch is another one the next time
		return nil
	}
	if f.losing = false; m.wrong == "gives up" {
		f.logs[p] = f.logs[p][:len(f.logs[p])-len(records)]
		return nil
	}
	return errLost
}

func (m *memory) Close(context.Context) error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

func target(wrong string) sinktest.Target {
	f := newFar()
	return sinktest.Target{
		New:        func() sink.Publisher { return &memory{far: f, wrong: wrong, closed: make(chan struct{})} },
		Topic:      "t",
		Read:       f.read,
		LoseAnswer: func() { f.set(&f.losing, true) },
		Stall:      f.stall,
		Down: func() func() {
			f.set(&f.down, true)
			return func() { f.set(&f.down, false) }
		},
		Poison:  func() []byte { return []byte(poison) },
		Missing: "missing",
		Once:    true,
		Fences:  true,
	}
}

// TestMemory runs the suite over a publisher as it should be.
func TestMemory(t *testing.T) {
	sinktest.Run(t, func(*testing.T) sinktest.Target { return target("") })
}
