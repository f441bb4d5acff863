package sink

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Stdout is the Publisher that writes each record as one line of JSON. A topic has one partition, so everything of
// a topic stands in stream order.
//
// A write that fails in the middle of a batch is taken up at the very byte, so a reader sees no line twice and
// none in two. A process that dies in the middle leaves a last line without an end; its records come again.
type Stdout struct {
	closed atomic.Bool

	mu  sync.Mutex // guards what follows: lines of several lanes never mix
	w   io.Writer
	buf []byte
	cut *Batch // the batch of which a part is written; no other may follow before the rest
}

// NewStdout returns a publisher that writes to w.
func NewStdout(w io.Writer) *Stdout { return &Stdout{w: w} }

var (
	errLineCut      = errors.New("a line of another batch is written in part")
	errStdoutClosed = errors.New("the writer is closed")
)

// Open does nothing.
func (o *Stdout) Open(context.Context) error { return nil }

// Partitions is 1.
func (o *Stdout) Partitions(context.Context, string) (int, error) { return 1, nil }

// Close lets no further write begin. The writer is the caller's, and so is one that hangs.
func (o *Stdout) Close(context.Context) error {
	o.closed.Store(true)
	return nil
}

// Send writes the batch, or the rest of it.
func (o *Stdout) Send(_ context.Context, b *Batch) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed.Load():
		return errStdoutClosed
	case o.cut != nil && o.cut != b:
		return errLineCut
	}
	o.buf = o.buf[:0]
	var err error
	for r := range b.Records() {
		if o.buf, err = appendLine(o.buf, b, r); err != nil {
			return err
		}
	}
	n, err := o.w.Write(o.buf[b.written:])
	b.written += n
	if err == nil && b.written < len(o.buf) {
		err = io.ErrShortWrite
	}
	o.cut = nil
	if err != nil && b.written > 0 {
		o.cut = b
	}
	if cap(o.buf) > 4<<20 {
		o.buf = nil
	}
	return err
}

// line is one record. Value and ValueBase64 exclude each other; both absent never happens, for a tombstone has a
// null value.
type line struct {
	Topic     string            `json:"topic"`
	Partition int32             `json:"partition"`
	Key       string            `json:"key"`
	Headers   map[string]string `json:"headers"`
	Timestamp time.Time         `json:"timestamp"`
}

// appendLine appends a record as a line. The value is the record's own bytes where they are JSON without line
// breaks; else they are in base64 under another name.
func appendLine(dst []byte, b *Batch, r Record) ([]byte, error) {
	l := line{Topic: b.Topic, Partition: b.Partition, Key: string(r.Key), Headers: map[string]string{}, Timestamp: r.Time.UTC()}
	for name, value := range r.Headers() {
		l.Headers[string(name)] = string(value)
	}
	head, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	dst = append(dst, head[:len(head)-1]...)
	switch {
	case r.Value == nil:
		dst = append(dst, `,"value":null`...)
	case json.Valid(r.Value) && utf8.Valid(r.Value) && !hasControl(r.Value):
		dst = append(append(dst, `,"value":`...), r.Value...)
	default:
		dst = append(dst, `,"value_base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, r.Value)
		dst = append(dst, '"')
	}
	return append(dst, '}', '\n'), nil
}
