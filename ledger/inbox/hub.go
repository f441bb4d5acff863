package inbox

import "sync"

// address is whose stream it is.
type address struct{ tenant, recipient string }

// hub knows the streams that are open here.
type hub struct {
	most, mostEach int

	// mu guards the fields below.
	mu      sync.Mutex
	streams map[address]map[*stream]struct{}
	n       int
}

func newHub(most, mostEach int) *hub {
	return &hub{most: most, mostEach: mostEach, streams: map[address]map[*stream]struct{}{}}
}

// join registers a stream. Errors: *refusal.
func (h *hub) join(s *stream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.n >= h.most:
		return errFull
	case len(h.streams[s.to]) >= h.mostEach:
		return errTooMany
	}
	if h.streams[s.to] == nil {
		h.streams[s.to] = map[*stream]struct{}{}
	}
	h.streams[s.to][s] = struct{}{}
	h.n++
	return nil
}

func (h *hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams[s.to], s)
	if len(h.streams[s.to]) == 0 {
		delete(h.streams, s.to)
	}
	h.n--
}

func (h *hub) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// poke has the streams of one address look into their list, pokeAll all of them.
func (h *hub) poke(a address) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams[a] {
		s.poke()
	}
}

func (h *hub) pokeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, list := range h.streams {
		for s := range list {
			s.poke()
		}
	}
}
