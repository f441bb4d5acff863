package sink

import (
	"sync"

	"github.com/outboxrelay/relay/internal/state"
)

// Board is where a Sink says what is wrong; *state.Board is one.
type Board interface {
	Raise(name string, s state.Status)
	Clear(name string)
}

// problems remembers what one session has raised, so that nothing of it outlives the session.
type problems struct {
	board Board

	// mu guards the fields below and is held while the board is told, so that nothing is raised after the end.
	mu     sync.Mutex
	raised map[string]struct{}
	over   bool
}

func (p *problems) raise(name string, s state.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.raised[name] = struct{}{}
		p.board.Raise(name, s)
	}
}

func (p *problems) clear(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.raised, name)
	p.board.Clear(name)
}

// close clears what is still raised; nothing is raised any more.
func (p *problems) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for name := range p.raised {
		p.board.Clear(name)
	}
	clear(p.raised)
}
