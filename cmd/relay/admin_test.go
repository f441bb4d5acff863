package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// testSources returns sources that tell fixed numbers and the board's state.
func testSources(board *state.Board) *sources {
	oldest := time.Now().Add(-2 * time.Second)
	return &sources{
		slotName: "relay",
		current:  board.Current,
		stream: func() cdc.Stats {
			return cdc.Stats{
				BacklogLeft: 6, Connected: true, Sessions: 3, Reconnects: map[string]uint64{"stopped": 1, "database_unreachable": 2, "never heard of": 4},
				ReceivedTransactions: 10, ReceivedEvents: 20, ReceivedBytes: 3000, ReceivedLSN: 0x1_00000002, ConfirmedLSN: 0x1_00000001,
				LastConfirm: time.UnixMilli(1_700_000_000_500), PendingEvents: 5, OldestPending: oldest,
			}
		},
		sink: func() sink.Stats {
			return sink.Stats{BacklogEvents: 5, BacklogBytes: 700, Published: map[string]uint64{"a": 7, "b": 8}, Retries: map[string]uint64{"timeout": 2, "leader": 0},
				Lanes: 3, HaltedLanes: 1, Resumed: 9, Undecided: 1}
		},
		slot: func() (slotReading, bool) {
			limit, safe, growth := int64(64<<20), int64(63<<20), float64(1<<20)
			return slotReading{LagBytes: 4096, RetainedBytes: 1 << 20, Active: true, HolderPID: 77, Application: "relay relay",
				WALStatus: "reserved", LimitBytes: &limit, SafeBytes: &safe, Growth: &growth}, true
		},
		pace: func() pace {
			return pace{Over: 5 * time.Second, Received: 12.5, Published: 11, Retries: map[string]uint64{"timeout": 2}, RetriesOver: time.Minute,
				BacklogTotal: 10, BacklogLeft: 6, BacklogRate: 0.5}
		},
		walWarning:  func(*slotReading) string { return "much WAL" },
		deadLetters: func() map[string]int64 { return map[string]int64{"parked": 2, "held": 0} },
		windowBytes: 7000,
	}
}

// testAdmin returns an admin page over fixed numbers.
func testAdmin(board *state.Board) *admin {
	src := testSources(board)
	started := time.Now()
	return &admin{
		current: board.Current,
		report:  func() Report { return src.report("v1.2.3", started, time.Now()) },
		metrics: newMetrics(src, "v1.2.3").handler(),
		hosts:   []string{"relay.internal"},
	}
}

func TestAdmin_Guard(t *testing.T) {
	t.Parallel()
	h := testAdmin(state.NewBoard(nil)).handler()
	tests := []struct {
		name, method, path, host, body string
		want                           int
	}{
		{"OK", "GET", "/healthz", "127.0.0.1:7070", "", 200},
		{"HEAD", "HEAD", "/healthz", "127.0.0.1:7070", "", 200},
		{"localhost", "GET", "/healthz", "LocalHost:7070", "", 200},
		{"IPv6", "GET", "/healthz", "[::1]:7070", "", 200},
		{"IPv6 without port", "GET", "/healthz", "[::1]", "", 200},
		{"address of the network", "GET", "/healthz", "10.1.2.3:7070", "", 200},
		{"configured name", "GET", "/healthz", "relay.internal:7070", "", 200},
		{"rebound name", "GET", "/healthz", "evil.example:7070", "", 403},
		{"rebound name that looks like an address", "GET", "/healthz", "127.0.0.1.evil.example", "", 403},
		{"no host", "GET", "/healthz", "", "", 403},
		{"rebound name on metrics", "GET", "/metrics", "evil.example", "", 403},
		{"POST", "POST", "/healthz", "localhost", "", 405},
		{"DELETE", "DELETE", "/metrics", "localhost", "", 405},
		{"OPTIONS", "OPTIONS", "/status.json", "localhost", "", 405},
		{"body", "GET", "/healthz", "localhost", "x", 413},
		{"unknown", "GET", "/", "localhost", "", 404},
		{"below", "GET", "/healthz/x", "localhost", "", 404},
		{"pprof is off", "GET", "/debug/pprof/", "localhost", "", 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
			r.Host = tt.host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.want {
				t.Errorf("%s %s, Host %q = %d, want %d", tt.method, tt.path, tt.host, w.Code, tt.want)
			}
		})
	}
}

func TestAdmin_Pprof(t *testing.T) {
	t.Parallel()
	a := testAdmin(state.NewBoard(nil))
	a.pprof = true
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", path, nil)
		r.Host = "localhost"
		a.handler().ServeHTTP(w, r)
		if w.Code != 200 {
			t.Errorf("GET %s = %d", path, w.Code)
		}
	}
}

func TestAdmin_Readyz(t *testing.T) {
	t.Parallel()
	for _, s := range state.All {
		board := state.NewBoard(nil)
		since := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
		board.Set(state.Status{State: s, Reason: "seen", Hint: "do", Since: since})
		h := testAdmin(board).handler()
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("GET", path, nil)
			r.Host = "localhost"
			h.ServeHTTP(w, r)
			return w
		}
		want := 503
		if s == state.Streaming || s == state.Backlog || s == state.Standby {
			want = 200
		}
		w := get("/readyz")
		if w.Code != want {
			t.Errorf("%s: /readyz = %d, want %d", s, w.Code, want)
		}
		var got state.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if s != state.Starting && got.Since != since { // starting is where a board begins
			t.Errorf("%s: since = %v", s, got.Since)
		}
		if got.State != s || got.Reason != "seen" || got.Hint != "do" {
			t.Errorf("%s: /readyz says %+v", s, got)
		}
		if w := get("/healthz"); w.Code != 200 {
			t.Errorf("%s: /healthz = %d, want 200 whatever the state", s, w.Code)
		}
	}
}

// serve starts a real listener and returns its address and a func that stops it and returns what serveAdmin did.
func serve(t *testing.T, h http.Handler) (addr string, stop func() error) {
	t.Helper()
	ln, err := listenAdmin(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveAdmin(ctx, ln, h) }()
	t.Cleanup(cancel)
	return ln.Addr().String(), func() error {
		cancel()
		return <-ended
	}
}

func TestServeAdmin(t *testing.T) {
	t.Parallel()
	t.Run("finishes what runs", func(t *testing.T) {
		t.Parallel()
		entered, leave := make(chan struct{}), make(chan struct{})
		addr, stop := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(entered)
			<-leave
			fmt.Fprint(w, "done")
		}))
		got := make(chan string, 1)
		go func() {
			resp, err := http.Get("http://" + addr)
			if err != nil {
				got <- err.Error()
				return
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			got <- string(b)
		}()
		<-entered
		ended := make(chan error, 1)
		go func() { ended <- stop() }()
		// The listener is closed first; once nobody can connect the shutdown is under way.
		for {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				break
			}
			conn.Close()
		}
		close(leave)
		if s := <-got; s != "done" {
			t.Errorf("the request that ran got %q", s)
		}
		if err := <-ended; err != nil {
			t.Errorf("serveAdmin = %v", err)
		}
	})
	t.Run("does not wait for ever", func(t *testing.T) {
		t.Parallel()
		entered := make(chan struct{})
		addr, stop := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(entered)
			<-r.Context().Done()
		}))
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		<-entered
		begun := time.Now()
		if err := stop(); err != nil {
			t.Errorf("serveAdmin = %v", err)
		}
		if d := time.Since(begun); d < adminCloseTimeout {
			t.Errorf("it left after %v, before the close timeout", d)
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("the connection was left open: %v", err)
		}
	})
	t.Run("slow header is cut off", func(t *testing.T) {
		t.Parallel()
		addr, stop := serve(t, http.NotFoundHandler())
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(2 * adminHeaderTimeout)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: loc")
		if _, err := io.Copy(io.Discard, bufio.NewReader(conn)); err != nil {
			t.Errorf("the connection was not closed: %v", err)
		}
		if err := stop(); err != nil {
			t.Errorf("serveAdmin = %v", err)
		}
	})
	t.Run("address in use", func(t *testing.T) {
		t.Parallel()
		addr, _ := serve(t, http.NotFoundHandler())
		if _, err := listenAdmin(t.Context(), addr); err == nil || hintOf(err) == "" {
			t.Errorf("listenAdmin = %v, hint %q", err, hintOf(err))
		}
	})
}

func TestStatus(t *testing.T) {
	t.Parallel()
	board := state.NewBoard(nil)
	board.Set(state.Status{State: state.TopicMissing, Reason: "topic \"x\x1b[2J\" is missing", Hint: "create it", Since: time.Now().Add(-time.Minute)})
	addr, _ := serve(t, testAdmin(board).handler())
	status := func(args ...string) (code int, stdout, stderr string) {
		var o, e bytes.Buffer
		code = testProcess(nil, &o, &e).execute(t.Context(), append([]string{"status", "--admin-listen", addr}, args...))
		return code, o.String(), e.String()
	}
	t.Run("person", func(t *testing.T) {
		code, stdout, stderr := status()
		if code != exitOK || stderr != "" {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
		for _, want := range []string{
			"state         topic_missing for 1m0s, since 20", `reason        topic "x?[2J" is missing`, "hint          create it", "warning       much WAL",
			"slot          relay, held by this relay", "confirmed     1/1, rose ", " days ago; received 1/2", "publish lag   2.", "slot lag      4.0 KiB not confirmed",
			"WAL retained  1.0 MiB, reserved; growing 1.0 MiB/s; limit 64.0 MiB, 63.0 MiB\n              left; there in about 63 s\n",
			"before stream 6 events left, 4 published; 0.5/s, about 12 s to go", "events/s      12.5 in, 11.0 out, over the last 5 s",
			"backlog       5 events received", "in flight     5 events, 700 B of the window's 6.8 KiB (10 %)", "lanes         3, 1 halted",
			"retries       timeout 2 in the last minute", "duplicates    possible; undecided checks after a restart: 1\n", "dead letters  parked 2\n",
			"received      20 events in 10 transactions, 2.9 KiB", "published     15 events, 2 retries, 9 found in Kafka", "version       v1.2.3, up ",
		} {
			if !strings.Contains(stdout, want) {
				t.Errorf("status lacks %q:\n%s", want, stdout)
			}
		}
		if strings.Contains(stdout, "\x1b") {
			t.Error("a control character reached the terminal")
		}
		for line := range strings.Lines(stdout) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("a line of %d columns: %s", n, line)
			}
		}
	})
	t.Run("json", func(t *testing.T) {
		code, stdout, _ := status("--json")
		var got Report
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitOK {
			t.Fatalf("exit code %d, %v", code, err)
		}
		want := Report{
			Status: board.Current(), Version: "v1.2.3",
			Slot: SlotReport{Name: "relay", Held: true, Sessions: 3, ReceivedLSN: "1/2", ConfirmedLSN: "1/1",
				ConfirmedAt: ptr(time.UnixMilli(1_700_000_000_500)), LagBytes: ptr[int64](4096), RetainedBytes: ptr[int64](1 << 20),
				Active: ptr(true), ActivePID: ptr[int32](77), ActiveApplication: "relay relay", WALStatus: "reserved",
				LimitBytes: ptr[int64](64 << 20), SafeWALBytes: ptr[int64](63 << 20), GrowthPerSecond: ptr[float64](1 << 20), LimitSeconds: ptr(63.0),
				Warning: "much WAL"},
			Received:  ReceivedReport{Transactions: 10, Events: 20, Bytes: 3000},
			Published: PublishedReport{Events: 15, Retries: 2},
			Backlog:   BacklogReport{Events: 5, Bytes: 700},
			Before:    &BeforeReport{Left: 6, Done: 4, EventsPerSecond: ptr(0.5), SecondsLeft: ptr(12.0)},
			Publishing: PublishingReport{InFlightEvents: 5, InFlightBytes: 700, WindowBytes: 7000, Lanes: 3, HaltedLanes: 1,
				RetriesLastMinute: map[string]uint64{"timeout": 2}, ResumedEvents: 9, UndecidedChecks: 1},
			Rates:       &RatesReport{OverSeconds: 5, ReceivedPerSecond: 12.5, PublishedPerSecond: 11},
			DeadLetters: map[string]int64{"parked": 2, "held": 0},
		}
		if got.StartedAt.IsZero() || got.Backlog.PublishLagSeconds < 2 {
			t.Errorf("started at %v, publish lag %v", got.StartedAt, got.Backlog.PublishLagSeconds)
		}
		got.StartedAt, got.Backlog.PublishLagSeconds = time.Time{}, 0
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("ready", func(t *testing.T) {
		if code, _, stderr := status("--ready"); code != exitFailed || !strings.Contains(stderr, "not ready: topic_missing") {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
		board.Set(state.Status{State: state.Standby})
		if code, _, stderr := status("--ready"); code != exitOK || stderr != "" {
			t.Errorf("standby: exit code %d, stderr %q", code, stderr)
		}
	})
}

func ptr[T any](v T) *T { return &v }

func TestStatus_NoRelay(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	other, _ := serve(t, http.NotFoundHandler())
	for addr, want := range map[string]string{nobody: "no relay answers at " + nobody, other: "what answers at " + other + " is not a relay"} {
		var stdout, stderr bytes.Buffer
		code := testProcess(nil, &stdout, &stderr).execute(t.Context(), []string{"status", "--admin-listen", addr})
		if code != exitFailed || !strings.Contains(stderr.String(), want) || !strings.Contains(stderr.String(), "\nhint: ") || stdout.Len() > 0 {
			t.Errorf("exit code %d, stdout %q, stderr %q, want %q", code, stdout.String(), stderr.String(), want)
		}
	}
}

func TestDialAddress(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "0.0.0.0:1": "127.0.0.1:1", "[::]:1": "[::1]:1", "localhost:1": "localhost:1", "10.0.0.1:1": "10.0.0.1:1",
	} {
		if got := dialAddress(listen); got != want {
			t.Errorf("dialAddress(%q) = %q, want %q", listen, got, want)
		}
	}
}
