package outbox_test

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// wire counts the messages after which a client waits for the server: Sync and Query.
type wire struct {
	net.Conn
	mu      sync.Mutex
	on      bool
	pending []byte
	waits   int
}

func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	if w.on {
		w.pending = append(w.pending, b...)
		for len(w.pending) >= 5 {
			n := 1 + int(binary.BigEndian.Uint32(w.pending[1:]))
			if len(w.pending) < n {
				break
			}
			if w.pending[0] == 'S' || w.pending[0] == 'Q' {
				w.waits++
			}
			w.pending = w.pending[n:]
		}
	}
	w.mu.Unlock()
	return w.Conn.Write(b)
}

// roundTrips returns how many there were since the last call; the first begins the count.
func (w *wire) roundTrips() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.waits
	w.waits, w.on = 0, true
	return n
}

func TestWrite_oneRoundTrip(t *testing.T) {
	t.Parallel()
	url := newOutbox(t)
	for _, mode := range execModes {
		t.Run(mode.String(), func(t *testing.T) {
			cfg, err := pgx.ParseConfig(url)
			if err != nil {
				t.Fatal(err)
			}
			var w *wire
			dial := cfg.DialFunc
			cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				w = &wire{Conn: c}
				return w, err
			}
			cfg.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			tx := begin(t, conn)
			defer tx.Rollback(t.Context())

			first, later := 1, 1
			switch mode {
			case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
				first = 2
			case pgx.QueryExecModeDescribeExec:
				first, later = 2, 2
			}
			w.roundTrips()
			for i, n := range []int{1, 0, 1, 2000} {
				events := make([]outbox.Event, n)
				for i := range events {
					events[i] = placed()
				}
				if _, err := outbox.Write(t.Context(), tx, events...); err != nil {
					t.Fatal(err)
				}
				want := later
				if i == 0 {
					want = first
				} else if n == 0 {
					want = 0
				}
				if got := w.roundTrips(); got != want {
					t.Errorf("call %d with %d events: %d round trips, want %d", i, n, got, want)
				}
			}
		})
	}
}
