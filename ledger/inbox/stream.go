package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// stream is one client's connection.
type stream struct {
	inbox  *Inbox
	to     address
	look   chan struct{} // there may be something
	w      http.ResponseWriter
	rc     *http.ResponseController
	cursor int64 // what is above it was not sent
}

// poke makes the stream look into its list. It does not block.
func (s *stream) poke() {
	select {
	case s.look <- struct{}{}:
	default: // it will look anyway
	}
}

// page is how many notifications a stream reads at a time.
const page = 100

// comeBack is how long a client is told to wait before it connects again; after a stop, up to comeBackSpread longer, so
// that not all come at once.
const (
	comeBack       = 2 * time.Second
	comeBackSpread = 4 * time.Second
)

// events is GET /events.
func (b *Inbox) events(w http.ResponseWriter, r *http.Request, who Identity) error {
	s := &stream{inbox: b, to: address{who.Tenant, who.Recipient}, look: make(chan struct{}, 1), w: w, rc: http.NewResponseController(w)}
	if err := b.hub.join(s); err != nil {
		return err
	}
	defer b.hub.leave(s)
	// After joining: see the package's documentation.
	bound, err := b.feed.bound(r.Context())
	if err != nil {
		return b.unavailable(err)
	}
	s.cursor = bound
	if last, ok := lastEventID(r); ok {
		s.cursor = last
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	b.count.opened()
	b.count.ended(s.run(r.Context(), who.Expires))
	return nil
}

// lastEventID is where a client goes on. EventSource sends a header by itself; one that was made anew can put it in the
// query. What is no id is none: the client then lists what it missed.
func lastEventID(r *http.Request) (int64, bool) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		text = r.URL.Query().Get("last_event_id")
	}
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id >= 0
}

// run sends until something ends the stream.
func (s *stream) run(ctx context.Context, expires time.Time) EndReason {
	if err := s.write(fmt.Sprintf("retry: %d\nid: %d\nevent: ready\ndata: {}\n\n", comeBack.Milliseconds(), s.cursor)); err != nil {
		return ended(err)
	}
	expiry := time.NewTimer(time.Until(expires))
	defer expiry.Stop()
	beat := time.NewTicker(s.inbox.cfg.Heartbeat)
	defer beat.Stop()
	again := time.NewTimer(0) // and after trouble
	defer again.Stop()
	for {
		var err error
		select {
		case <-s.look:
			err = s.sendNew(ctx)
		case <-again.C:
			err = s.sendNew(ctx)
		case <-beat.C:
			err = s.write("event: heartbeat\ndata: {}\n\n") // an event, for scripts are not told of comments
		case <-expiry.C:
			return s.farewell(EndExpired, "event: expired\ndata: {\"error\": \"token_expired\", \"message\": \"connect again with a new token\"}\n\n")
		case <-s.inbox.ended:
			wait := comeBack + rand.N(comeBackSpread)
			return s.farewell(EndStopped, fmt.Sprintf("retry: %d\nevent: stopping\ndata: {\"retry_ms\": %[1]d}\n\n", wait.Milliseconds()))
		case <-ctx.Done():
			return EndLeft
		}
		if q, ok := errors.AsType[*queryError](err); ok {
			if ctx.Err() == nil {
				s.inbox.notice(fmt.Errorf("list notifications: %w", q.err))
			}
			again.Reset(time.Second)
		} else if err != nil {
			return ended(err)
		}
	}
}

// queryError is an error of the database: the stream lives on.
type queryError struct{ err error }

func (e *queryError) Error() string { return e.err.Error() }

// sendNew sends what the list has above the cursor.
func (s *stream) sendNew(ctx context.Context) error {
	upTo := s.inbox.feed.settled.Load()
	for {
		list, err := s.inbox.list(ctx, s.to, &s.cursor, page, &upTo)
		if err != nil {
			return &queryError{err}
		}
		var text strings.Builder
		for _, n := range list {
			data, err := json.Marshal(n)
			if err != nil {
				return fmt.Errorf("encode notification: %w", err)
			}
			fmt.Fprintf(&text, "id: %d\nevent: notification\ndata: %s\n\n", n.ID, data)
		}
		if len(list) > 0 {
			if err := s.write(text.String()); err != nil {
				return err
			}
			s.cursor = list[len(list)-1].ID
			s.inbox.count.sent(len(list))
		}
		if len(list) < page {
			return nil
		}
	}
}

// write sends text at once.
func (s *stream) write(text string) error {
	if err := s.rc.SetWriteDeadline(time.Now().Add(s.inbox.cfg.WriteTimeout)); err != nil {
		return err
	}
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

func (s *stream) farewell(why EndReason, text string) EndReason {
	if err := s.write(text); err != nil {
		return ended(err)
	}
	return why
}

// ended says what the error of a write means.
func ended(err error) EndReason {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return EndSlow
	}
	return EndLeft
}
