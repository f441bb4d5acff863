package inbox_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger/inbox"
)

func TestStream(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	before := r.notify("k:0", "user:1")
	c := r.connect(r.server, "token="+r.token("user:1", time.Minute))
	for name, want := range map[string]string{"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"} {
		if got := c.header.Get(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if e := c.next("ready"); e.id != fmt.Sprint(before) || e.retry != "2000" {
		t.Errorf("it begins with %+v: what was there before is for the list", e)
	}
	r.notify("k:1", "user:2")
	id := r.notify("k:1", "user:1")
	e := c.next("notification")
	if n := decode[inbox.Notification](t, e.data); e.id != fmt.Sprint(id) || n.ID != id || string(n.Data) != `{"key":"k:1"}` {
		t.Errorf("got %+v, want %d", e, id)
	}
	c.next("heartbeat")
	s := r.Stats()
	if s.Streams != 1 || s.Sent != 1 || s.Opened != 1 {
		t.Errorf("stats %+v", s)
	}
	c.close()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		s := r.Stats()
		return s.Streams == 0 && s.Ended[inbox.EndLeft] == 1, fmt.Sprintf("%+v", s)
	})
}

// What came while nobody was connected comes first, by whichever way the client says what it has.
func TestStream_resume(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	var ids []int64
	for i := range 250 { // some pages
		ids = append(ids, r.notify(fmt.Sprint("k:", i), "user:1"))
	}
	token := "token=" + r.token("user:1", time.Minute)
	last := strconv.FormatInt(ids[0], 10)
	for _, c := range []*client{r.connect(r.server, token, "Last-Event-ID", last), r.connect(r.server, token+"&last_event_id="+last)} {
		for _, want := range ids[1:] {
			if e := c.next("notification"); e.id != fmt.Sprint(want) {
				t.Fatalf("got %s, want %d", e.id, want)
			}
		}
		c.close()
	}
	if e := r.connect(r.server, token, "Last-Event-ID", "rubbish").next("ready"); e.id != fmt.Sprint(ids[249]) {
		t.Errorf("from rubbish it goes on at %s", e.id)
	}
}

// The signal of another process is heard at once; without it the poll finds what is new. A repeated signal adds nothing.
func TestStream_signal(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *inbox.Config) { c.Poll = time.Hour })
	c := r.connect(r.server, "token="+r.token("user:1", time.Minute))
	c.next("ready")
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		var n int
		if err := r.pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN ledger_notifications'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1, "nobody listens"
	})
	for i := range 3 {
		id := r.notify(fmt.Sprint("k:", i), "user:1")
		for range 5 {
			r.exec("SELECT ledger.announce_notification('', $1, 'user:1')", fmt.Sprint("k:", i))
		}
		if e := c.next("notification"); e.id != fmt.Sprint(id) {
			t.Fatalf("got %s, want %d once", e.id, id)
		}
	}
	// The listener's connection breaks, and is made anew.
	r.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query = 'LISTEN ledger_notifications'")
	id := r.notify("k:9", "user:1")
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		r.exec("SELECT ledger.announce_notification('', 'k:9', 'user:1')")
		return r.Stats().Sent == 4, "not heard after the connection broke"
	})
	if e := c.next("notification"); e.id != fmt.Sprint(id) {
		t.Errorf("got %s, want %d", e.id, id)
	}
}

// A row with a lower id that appears later is not missed.
func TestStream_order(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	c := r.connect(r.server, "token="+r.token("user:1", time.Minute))
	c.next("ready")
	tx, err := r.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	var low int64
	if err := tx.QueryRow(t.Context(), "INSERT INTO ledger.notifications (event_key, recipient, type) VALUES ('k:low', 'user:1', 't') RETURNING id").Scan(&low); err != nil {
		t.Fatal(err)
	}
	high := r.notify("k:high", "user:1")
	for range 3 { // time for some polls
		c.next("heartbeat")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{low, high} {
		if e := c.next("notification"); e.id != fmt.Sprint(want) {
			t.Fatalf("got %s, want %d", e.id, want)
		}
	}
}

func TestStream_expiry(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	c := r.connect(r.server, "token="+r.token("user:1", 2*time.Second))
	if e := c.next("expired"); !strings.Contains(e.data, "token_expired") {
		t.Errorf("got %+v", e)
	}
	for range c.events { // to its end
	}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		return r.Stats().Ended[inbox.EndExpired] == 1, fmt.Sprint(r.Stats().Ended)
	})
}

func TestStream_stop(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	c := r.connect(r.server, "token="+r.token("user:1", time.Minute))
	c.next("ready")
	r.stop()
	e := c.next("stopping")
	if ms, err := strconv.Atoi(e.retry); err != nil || ms < 2000 || ms > 6000 {
		t.Errorf("got %+v, want a wait of some seconds", e)
	}
	for range c.events {
	}
	if s := r.Stats(); s.Ended[inbox.EndStopped] != 1 || s.Streams != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestStream_limits(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *inbox.Config) { c.MaxStreams, c.MaxPerRecipient = 3, 2 })
	token := func(n int) string { return "token=" + r.token(fmt.Sprint("user:", n), time.Minute) }
	first := r.connect(r.server, token(1))
	r.connect(r.server, token(1))
	if a := r.request("GET", "/events?"+token(1), ""); a.status != 429 || !strings.Contains(a.body, "too_many_streams_of_recipient") || a.header.Get("Retry-After") == "" {
		t.Errorf("third of one recipient: %d %s", a.status, a.body)
	}
	r.connect(r.server, token(2))
	if a := r.request("GET", "/events?"+token(3), ""); a.status != 503 || !strings.Contains(a.body, "too_many_streams") {
		t.Errorf("fourth of all: %d %s", a.status, a.body)
	}
	first.close()
	testenv.Eventually(t, 10*time.Second, func() (bool, string) { return r.Stats().Streams == 2, "it does not leave" })
	r.connect(r.server, token(3)).next("ready")
	if got := r.Stats().Refused["limit"]; got != 2 {
		t.Errorf("%d refusals counted", got)
	}
}

// A client that takes nothing is dropped, and costs no memory before.
func TestStream_slow(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *inbox.Config) { c.WriteTimeout = 300 * time.Millisecond })
	r.exec("INSERT INTO ledger.notifications (event_key, recipient, type, data) SELECT 'k:' || n, 'user:1', 't', jsonb_build_object('text', repeat('x', 20000)) FROM generate_series(1, 1000) n")
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /events?token=%s&last_event_id=0 HTTP/1.1\r\nHost: x\r\n\r\n", r.token("user:1", time.Minute))
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		s := r.Stats()
		return s.Ended[inbox.EndSlow] == 1 && s.Streams == 0, fmt.Sprintf("%+v", s)
	})
}

// The database goes and comes back; the stream stays.
func TestStream_database(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *inbox.Config) { c.Notice = nil })
	c := r.connect(r.server, "token="+r.token("user:1", time.Minute))
	c.next("ready")
	r.exec("ALTER FUNCTION ledger.list_notifications(text, text, bigint, integer, bigint) RENAME TO away")
	id := r.notify("k:1", "user:1")
	for range 5 {
		c.next("heartbeat")
	}
	r.exec("ALTER FUNCTION ledger.away(text, text, bigint, integer, bigint) RENAME TO list_notifications")
	if e := c.next("notification"); e.id != fmt.Sprint(id) {
		t.Errorf("got %s, want %d", e.id, id)
	}
}
