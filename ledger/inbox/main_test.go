package inbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger/inbox"
	"github.com/outboxrelay/relay/migrations"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// rig is a database with the ledger and an inbox that serves it.
type rig struct {
	t    *testing.T
	url  string
	pool *pgxpool.Pool
	keys []inbox.Key

	*server
}

// server is an inbox at work.
type server struct {
	*inbox.Inbox
	base string
	stop func() // and wait; may be called again
}

func setup(t *testing.T, change func(*inbox.Config)) *rig {
	t.Helper()
	db := testenv.NewDatabase(t)
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.Up(t.Context(), cfg, migrations.Ledger()); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, url: db.URL, keys: []inbox.Key{{ID: "new", Secret: []byte(strings.Repeat("n", 32))}, {ID: "old", Secret: []byte(strings.Repeat("o", 32))}}}
	r.pool = newPool(t, db.URL)
	r.server = r.serve(change)
	return r
}

func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pc, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pc.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), pc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (r *rig) serve(change func(*inbox.Config)) *server {
	r.t.Helper()
	cfg := inbox.DefaultConfig()
	cfg.Keys = func() ([]inbox.Key, error) { return r.keys, nil }
	cfg.Origins = []string{"https://app.example"}
	cfg.Heartbeat, cfg.Poll = 200*time.Millisecond, 100*time.Millisecond
	cfg.Notice = func(err error) { fmt.Fprintln(os.Stderr, r.t.Name()+": notice:", err) }
	if change != nil {
		change(&cfg)
	}
	b, err := inbox.New(cfg, r.pool)
	if err != nil {
		r.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, ln) }()
	s := &server{Inbox: b, base: "http://" + ln.Addr().String()}
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				r.t.Errorf("inbox: %v", err)
			}
		case <-time.After(20 * time.Second):
			r.t.Error("the inbox does not end")
		}
	})
	r.t.Cleanup(s.stop)
	return s
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(context.WithoutCancel(r.t.Context()), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// notify writes a notification and returns its id.
func (r *rig) notify(key, recipient string) (id int64) {
	r.t.Helper()
	err := r.pool.QueryRow(r.t.Context(), `INSERT INTO ledger.notifications (event_key, recipient, type, data) VALUES ($1::text, $2, 'order-shipped', jsonb_build_object('key', $1::text))
RETURNING id`, key, recipient).Scan(&id)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// token is one for a recipient that lives for a while.
func (r *rig) token(recipient string, ttl time.Duration) string {
	r.t.Helper()
	text, err := inbox.Sign(r.keys[0], inbox.Identity{Recipient: recipient, Expires: time.Now().Add(ttl)})
	if err != nil {
		r.t.Fatal(err)
	}
	return text
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (r *rig) request(method, path string, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.base+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// event is one of a stream.
type event struct{ name, id, data, retry string }

// client reads a stream.
type client struct {
	t      *testing.T
	header http.Header
	events chan event // closed at the stream's end
	close  func()
}

// connect opens a stream.
func (r *rig) connect(s *server, query string, header ...string) *client {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/events?"+query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("stream: status %d %s", resp.StatusCode, text)
	}
	c := &client{t: r.t, header: resp.Header, events: make(chan event, 10000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(c.events)
		defer resp.Body.Close()
		var e event
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "retry":
				e.retry = value
			case "":
				if e != (event{}) {
					c.events <- e
					e = event{}
				}
			}
		}
	}()
	c.close = func() { cancel(); <-ended }
	r.t.Cleanup(c.close)
	return c
}

// next returns the next event of a name; others are passed over.
func (c *client) next(name string) event {
	c.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case e, ok := <-c.events:
			if !ok {
				c.t.Fatalf("the stream ended before %q", name)
			}
			if e.name == name {
				return e
			}
		case <-deadline:
			c.t.Fatalf("no event %q", name)
		}
	}
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

var errNoKeys = errors.New("no keys")
