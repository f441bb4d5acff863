package ledger_test

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/outboxrelay/relay/ledger"
)

// errProvider is an effect's error that says nothing happened.
var errProvider = errors.New("provider: 503")

// provider counts effects, all that arrive and those that its key check lets through.
type provider struct {
	// mu guards the fields below.
	mu    sync.Mutex
	sends map[string]int // by provider key
	fail  int            // so many sends fail first
}

func newProvider() *provider { return &provider{sends: map[string]int{}} }

func (p *provider) send(_ context.Context, r ledger.Reservation) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail > 0 {
		p.fail--
		return "", errProvider
	}
	p.sends[r.ProviderKey]++
	return "ref-" + r.ProviderKey[:min(8, len(r.ProviderKey))], nil
}

func (p *provider) handler() ledger.Handler { return ledger.Handler{Effect: p.send} }

// arrived is the number of effects, repetitions included.
func (p *provider) arrived() int {
	n := 0
	for _, sends := range p.all() {
		n += sends
	}
	return n
}

func (p *provider) all() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.sends)
}
