package deliver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// LineWriter is where the channel log writes: an io.Writer that one goroutine at a time uses.
type LineWriter struct {
	w  io.Writer
	mu *sync.Mutex // guards w
}

// NewLineWriter wraps w.
func NewLineWriter(w io.Writer) LineWriter { return LineWriter{w: w, mu: &sync.Mutex{}} }

// logKind writes one JSON line for each delivery: for trying rules out, and for programs that read standard output.
// It is the one place where a recipient is written on purpose.
func logKind(out LineWriter) Kind {
	return Kind{
		Name:   "log",
		Fields: []Field{{Name: "line"}, {Name: "data", Object: true}},
		New:    func(Settings) (Channel, error) { return &logChannel{out}, nil },
	}
}

type logChannel struct{ out LineWriter }

// Send implements Channel. A line that was not written whole may have been read, so an error is an ordinary one only
// because a repeated line carries the same key.
func (c *logChannel) Send(_ context.Context, d Delivery) (string, error) {
	line, err := json.Marshal(struct {
		Key       string          `json:"key"`
		EventKey  string          `json:"event_key"`
		Tenant    string          `json:"tenant,omitempty"`
		EventType string          `json:"event_type"`
		Recipient string          `json:"recipient"`
		Channel   string          `json:"channel"`
		Attempt   int             `json:"attempt"`
		Line      string          `json:"line,omitempty"`
		Data      json.RawMessage `json:"data,omitempty"`
	}{d.ProviderKey, d.Key.EventKey, d.Key.Tenant, d.Event.Type, d.Key.Recipient, d.Key.Channel, d.Attempt, d.Fields["line"], json.RawMessage(d.Fields["data"])})
	if err != nil {
		return "", fmt.Errorf("encode line: %w", err)
	}
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if _, err := c.out.w.Write(append(line, '\n')); err != nil {
		return "", fmt.Errorf("write line: %w", err)
	}
	return "", nil
}
