package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// lockedBuffer is written by a command and read by its test.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestStatusWatch watches a relay that goes away and comes back as another process.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	port, err := procs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := procs.Address(port)
	board := state.NewBoard(nil)
	board.Set(state.Status{State: state.Streaming})
	var mu sync.Mutex
	events, started := uint64(100), time.Now()
	serveAt := func() (stop func()) {
		t.Helper()
		ln, err := listenAdmin(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		a := testAdmin(board)
		a.report = func() Report {
			mu.Lock()
			defer mu.Unlock()
			events += 50
			return Report{Status: board.Current(), StartedAt: started, Received: ReceivedReport{Events: events}, Published: PublishedReport{Events: events},
				Slot: SlotReport{WALStatus: "reserved", RetainedBytes: ptr[int64](4096), Warning: "much\x1bWAL"}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serveAdmin(ctx, ln, a.handler()) }()
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	stop := serveAt()
	watch := func(args ...string) (out *lockedBuffer, end func()) {
		out = &lockedBuffer{}
		ctx, cancel := context.WithCancel(t.Context())
		code := make(chan int, 1)
		go func() {
			code <- testProcess(nil, out, out).execute(ctx, append([]string{"status", "--watch", "--interval=200ms", "--admin-listen=" + addr}, args...))
		}()
		return out, func() {
			t.Helper()
			cancel()
			if c := <-code; c != exitOK {
				t.Errorf("watch %v ends with exit code %d: %s", args, c, out)
			}
		}
	}
	await := func(out *lockedBuffer, wants ...string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() (bool, string) {
			for _, want := range wants {
				if !strings.Contains(out.String(), want) {
					return false, fmt.Sprintf("lacks %q: %s", want, out)
				}
			}
			return true, ""
		})
	}
	text, endText := watch()
	lines, endLines := watch("--json")
	await(text, "Z streaming; ", "/s in, ", "; backlog 0; publish lag 0.000 s; WAL retained 4.0 KiB, reserved; no limit; warning: much?WAL\n")
	await(lines, `"state":"streaming"`, `"rates":{"over_seconds":0.`)
	stop()
	await(text, "Z unreachable; no relay answers at "+addr)
	await(lines, `{"error":"no relay answers at `)
	mu.Lock()
	events, started = 0, started.Add(time.Minute)
	mu.Unlock()
	stop = serveAt()
	await(text, "Z streaming; restarted; backlog")
	endText()
	endLines()
	stop()
	for line := range strings.Lines(text.String()) {
		if _, err := time.Parse(time.RFC3339, strings.Fields(line)[0]); err != nil || strings.Contains(line, "\x1b") || strings.Contains(line, " -") {
			t.Errorf("line %q", line)
		}
	}
	for line := range strings.Lines(lines.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("line %q", line)
		}
	}
}

// TestStatusWatch_Frame looks at what goes to a terminal.
func TestStatusWatch_Frame(t *testing.T) {
	t.Parallel()
	board := state.NewBoard(nil)
	src := testSources(board)
	r := src.report("v1", time.Now(), time.Now())
	c := defaultConfig()
	w := &statusWatch{loader: &loader{config: c}, interval: 2 * time.Second}
	frame := w.frame(glance{at: time.Now(), report: &r})
	if !strings.HasPrefix(frame, toTop+"relay at 127.0.0.1:7070  ") || !strings.HasSuffix(frame, clearBelow) {
		t.Errorf("frame %q", frame)
	}
	if n, cleared := strings.Count(frame, "\n"), strings.Count(frame, clearLine+"\n"); n != cleared || n > 24 {
		t.Errorf("%d lines, %d of them cleared; a terminal has 24: %s", n, cleared, frame)
	}
	frame = w.frame(glance{at: time.Now(), err: errors.New("refused"), gone: time.Minute, database: &DatabaseReport{Error: "no way"}})
	for _, want := range []string{"state         unreachable for 1m0s", "reason        refused", "This is what the database says", "cannot be reached"} {
		if !strings.Contains(frame, want) {
			t.Errorf("lacks %q: %s", want, frame)
		}
	}
}

func TestStatusWatch_Refused(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--ready and --watch":         {"--watch", "--ready"},
		"--interval 1ms is too short": {"--watch", "--interval=1ms"},
	} {
		var out bytes.Buffer
		if code := testProcess(nil, &out, &out).execute(t.Context(), append([]string{"status"}, args...)); code != exitUsage || !strings.Contains(out.String(), want) {
			t.Errorf("%v: exit code %d: %s", args, code, out.String())
		}
	}
}

// TestStatus_Database: where no relay answers, the database says what it knows.
func TestStatus_Database(t *testing.T) {
	t.Parallel()
	port, err := procs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	db := testenv.NewDatabase(t)
	status := func(url string, args ...string) (stdout, stderr string) {
		t.Helper()
		var o, e bytes.Buffer
		code := testProcess([]string{"RELAY_POSTGRES_URL=" + url, "RELAY_POSTGRES_SLOT=" + db.Name}, &o, &e).execute(t.Context(),
			append([]string{"status", "--admin-listen=" + procs.Address(port)}, args...))
		if code != exitFailed || !strings.Contains(e.String(), "no relay answers") {
			t.Errorf("exit code %d, stderr %q", code, e.String())
		}
		return o.String(), e.String()
	}
	expect := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("lacks %q:\n%s", want, out)
			}
		}
	}
	out, _ := status(db.URL)
	expect(out, "error         ", `relation "outbox.relay_state" does not exist`, "database      PostgreSQL ", "slot          "+db.Name+" does not exist", "relay migrate up")

	var o bytes.Buffer
	if code := testProcess([]string{"RELAY_POSTGRES_URL=" + db.URL}, &o, &o).execute(t.Context(), []string{"migrate", "up", "--postgres-slot=" + db.Name}); code != exitOK {
		t.Fatal(o.String())
	}
	out, _ = status(db.URL)
	expect(out, "slot          "+db.Name+", held by nobody", "WAL retained  ", "reserved", "relay state   streaming, confirmed 0/", "incarnation 1", "start relay run")
	if strings.Contains(out, "error") {
		t.Error(out)
	}

	// Any relay that runs elsewhere is seen by its hold of the slot.
	r := &rig{t: t, db: db, slot: db.Name, brokers: []string{"127.0.0.1:1"}, topic: "none"}
	p := r.startStreaming("RELAY_SINK_TYPE=stdout")
	out, _ = status(db.URL, "--json")
	var got Unanswered
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if d := got.Database; d == nil || d.Slot == nil || !*d.Slot.Active || d.Slot.ActivePID == nil || d.Slot.ActiveApplication != "relay "+db.Name || d.Relay == nil || got.Error == "" {
		t.Errorf("--json: %s", out)
	}
	out, _ = status(db.URL)
	expect(out, "held by another session, walsender", "at another address than was asked")
	p.kill()

	r.conn = r.connect()
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		_, err := r.conn.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, db.Name)
		return err == nil, fmt.Sprint(err)
	})
	out, _ = status(db.URL)
	expect(out, "does not exist", "relay recover")

	const secret = "d0ntsh0w"
	out, stderr := status("postgres://relay:" + secret + "@127.0.0.1:1/shop?sslmode=disable")
	expect(out, "error         ", "database      cannot be reached")
	if strings.Contains(out+stderr, secret) {
		t.Errorf("the password is shown: %s%s", out, stderr)
	}
}

// TestStatusWatch_Stranger: something else that listens there is no reason to end.
func TestStatusWatch_Stranger(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, http.NotFoundHandler())
	w := &statusWatch{loader: &loader{config: defaultConfig()}}
	w.loader.config.Admin.Listen = addr
	if g := w.glance(t.Context()); g.report != nil || !strings.Contains(g.line(), "unreachable; what answers at "+addr+" is not a relay") {
		t.Errorf("line %q", g.line())
	}
}
