package main

import (
	"github.com/outboxrelay/relay/internal/relaystate"
	"github.com/outboxrelay/relay/internal/requests"
	"github.com/outboxrelay/relay/sink"
)

// requestKinds says who carries out which kind of request for a session.
func (o *opener) requestKinds(out *sink.Sink, letters *relaystate.Letters) map[string]requests.Runner {
	d := &letterDesk{sink: out, letters: letters}
	return map[string]requests.Runner{
		"requeue": d.requeue,
		"discard": d.discard,
		"park":    d.park,
		"replay":  (&replayDesk{stream: o.stream, sink: out}).replay,
	}
}
