package examples_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger/inbox"
)

// envScreenshots names a folder for pictures of the page.
const envScreenshots = "RELAY_TEST_SCREENSHOTS"

// browserRig is the page in a browser, a worker, and a network between them that can fail.
type browserRig struct {
	t      *testing.T
	relay  string
	env    []string
	conn   *pgx.Conn
	proxy  *faultproxy.Proxy
	page   string
	worker *procs.Process
	tabs   []context.Context
	posts  int
}

func newBrowserRig(t *testing.T) *browserRig {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		testenv.Require(t, "chromium is not installed")
	}
	db, brokers := testenv.NewDatabase(t), testenv.Kafka(t)
	key := inbox.Key{ID: "k1", Secret: []byte(strings.Repeat("s", 32))}
	secrets := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(secrets, []byte(key.ID+" "+string(key.Secret)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New("127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	// The application: it serves the page, and signs tokens that expire while the test runs.
	site := http.NewServeMux()
	site.Handle("/", http.FileServer(http.Dir("browser")))
	site.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		text, err := os.ReadFile("browser/index.html")
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, strings.Replace(string(text), "http://127.0.0.1:7072", "http://"+proxy.Addr(), 1))
	})
	site.HandleFunc("/token", func(w http.ResponseWriter, _ *http.Request) {
		token, err := inbox.Sign(key, inbox.Identity{Recipient: "user:1", Expires: time.Now().Add(4 * time.Second)})
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintln(w, token)
	})
	server := httptest.NewServer(site)
	t.Cleanup(server.Close)

	r := &browserRig{t: t, relay: build(t, "../cmd/relay"), proxy: proxy, page: server.URL, conn: connect(t, db.URL)}
	r.env = []string{
		"RELAY_DELIVER_URL=" + db.URL, "RELAY_LEDGER_URL=", "RELAY_DELIVER_RULES=browser/rules.yaml", "RELAY_DELIVER_TOPICS=" + testenv.NewTopic(t, brokers, 1, nil),
		"RELAY_DELIVER_GROUP=" + db.Name, "RELAY_KAFKA_BROKERS=" + strings.Join(brokers, ","), "RELAY_DELIVER_LISTEN=",
		"RELAY_DELIVER_HTTP_SECRET_FILE=" + secrets, "RELAY_DELIVER_HTTP_ORIGINS=" + server.URL,
	}
	output(t, command(t, []string{r.relay, "migrate", "up", "--only", "ledger"}, "RELAY_LEDGER_URL="+db.URL))
	schema, err := os.ReadFile("rules/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	exec1(t, r.conn, string(schema))
	exec1(t, r.conn, "INSERT INTO users VALUES (1), (2); INSERT INTO followers VALUES (1, 1), (1, 2)")
	r.openTabs(2)
	return r
}

func (r *browserRig) openTabs(n int) {
	r.t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.UserDataDir(r.t.TempDir()), chromedp.WindowSize(900, 700))
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(r.t.Context()), options...)
	r.t.Cleanup(cancel)
	for range n { // the first starts the browser, the others are its tabs
		tab, cancel := chromedp.NewContext(ctx)
		r.t.Cleanup(cancel)
		if err := chromedp.Do(tab, chromedp.Navigate("about:blank")); err != nil {
			r.t.Fatal(err)
		}
		r.tabs, ctx = append(r.tabs, tab), tab
	}
}

// start starts a worker on a port of its own and has the network lead to it.
func (r *browserRig) start() {
	r.t.Helper()
	port, err := procs.FreePort()
	if err != nil {
		r.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(r.t.TempDir(), "log"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(r.relay, "deliver", "--deliver-http-listen", procs.Address(port))
	cmd.Env, cmd.Stderr = r.env, log
	w, err := procs.Start(cmd, syscall.SIGKILL)
	if err != nil {
		r.t.Fatal(err)
	}
	r.worker = w
	r.t.Cleanup(func() {
		r.kill(w)
		if text, _ := os.ReadFile(log.Name()); r.t.Failed() {
			r.t.Logf("relay deliver said:\n%s", text)
		}
	})
	r.proxy.SetTarget(procs.Address(port))
	testenv.Eventually(r.t, 30*time.Second, func() (bool, string) {
		resp, err := http.Get("http://" + procs.Address(port) + "/notifications")
		if err != nil {
			return false, err.Error()
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusUnauthorized, resp.Status
	})
}

func (r *browserRig) kill(w *procs.Process) {
	r.t.Helper()
	if err := w.Signal(syscall.SIGKILL); err != nil {
		r.t.Error(err)
	}
	if !w.WaitFor(20 * time.Second) {
		r.t.Error("the worker does not end")
	}
}

// publish adds posts, registers what they mean, more than once where there are three, and returns when the notifications are in the table.
func (r *browserRig) publish(n int, workers bool) {
	r.t.Helper()
	for range n {
		r.posts++
		exec1(r.t, r.conn, fmt.Sprintf("INSERT INTO posts (id, author_id, title, publish_at) VALUES (%d, 1, 'What we learned, part %[1]d', now() - interval '1 minute')", r.posts))
	}
	for range 1 + n/3 {
		output(r.t, command(r.t, []string{r.relay, "deliver", "reconcile"}, r.env...))
	}
	if !workers {
		return
	}
	testenv.Eventually(r.t, 40*time.Second, func() (bool, string) {
		got := query1[int](r.t, r.conn, "SELECT count(*)::int FROM ledger.notifications WHERE recipient = 'user:1'")
		return got == r.posts, fmt.Sprintf("%d of %d posts have become notifications", got, r.posts)
	})
}

func (r *browserRig) table() []int {
	r.t.Helper()
	return query1[[]int](r.t, r.conn, "SELECT coalesce(array_agg(id::int ORDER BY id DESC), '{}') FROM ledger.notifications WHERE recipient = 'user:1'")
}

func eval[T any](r *browserRig, tab context.Context, script string) T {
	r.t.Helper()
	v, err := chromedp.Run(tab, chromedp.Evaluate[T](script))
	if err != nil {
		r.t.Fatalf("%s: %v", script, err)
	}
	return v
}

const shown = `[...document.querySelectorAll("#list li")].map(li => Number(li.dataset.id))`

// agree returns when every tab shows what the table has, each once, newest first, and says it is online.
func (r *browserRig) agree(when string) {
	r.t.Helper()
	for i, tab := range r.tabs {
		testenv.Eventually(r.t, 60*time.Second, func() (bool, string) {
			got, state := eval[[]int](r, tab, shown), eval[string](r, tab, "document.body.dataset.state")
			return slices.Equal(got, r.table()) && state == "online", fmt.Sprintf("%s: tab %d is %s and shows (-table +tab):\n%s", when, i, state, cmp.Diff(r.table(), got))
		})
	}
}

func (r *browserRig) state(want string) {
	r.t.Helper()
	for _, tab := range r.tabs {
		testenv.Eventually(r.t, 30*time.Second, func() (bool, string) {
			got := eval[string](r, tab, "document.body.dataset.state")
			return got == want, fmt.Sprintf("state %s, want %s", got, want)
		})
	}
}

// picture stores how the page looks, for a person.
func (r *browserRig) picture(name string) {
	r.t.Helper()
	folder := os.Getenv(envScreenshots)
	if folder == "" {
		return
	}
	image, err := chromedp.Run(r.tabs[0], chromedp.CaptureScreenshot())
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), image, 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// TestBrowser: whatever happens to the worker and to the network, two tabs show what the table has, each once.
func TestBrowser(t *testing.T) {
	t.Parallel()
	r := newBrowserRig(t)
	r.start()
	for _, tab := range r.tabs {
		if err := chromedp.Do(tab, chromedp.Navigate(r.page)); err != nil {
			t.Fatal(err)
		}
	}
	r.state("online")
	if err := chromedp.Do(r.tabs[0], chromedp.Click("#bell")); err != nil {
		t.Fatal(err)
	}
	r.picture("empty")
	r.publish(3, true)
	r.agree("after three posts")
	r.picture("list")
	if got := eval[string](r, r.tabs[1], "document.getElementById('count').textContent"); got != "3" {
		t.Errorf("the bell counts %s, want 3", got)
	}

	// The connection is cut for a while.
	r.proxy.Set(faultproxy.Faults{Refuse: true})
	r.proxy.Reset()
	r.state("offline")
	r.publish(3, true)
	r.picture("offline")
	if got := eval[[]int](r, r.tabs[0], shown); len(got) != 3 {
		t.Errorf("while it is offline the tab shows %v", got)
	}
	r.proxy.Heal()
	r.agree("after the connection was cut")

	// Again and again, at any moment, while notifications come.
	for range 5 {
		r.proxy.Reset()
		r.publish(1, true)
	}
	r.agree("after five cuts")

	// The worker is killed; another one follows.
	r.kill(r.worker)
	r.state("offline")
	r.publish(2, false)
	r.start()
	r.publish(1, true)
	r.agree("after the worker was killed")

	// It is told to stop, and tells the browsers.
	if err := r.worker.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !r.worker.WaitFor(30*time.Second) || r.worker.Err() != nil {
		t.Errorf("worker after SIGTERM: running %t, %v", r.worker.Running(), r.worker.Err())
	}
	r.start()
	r.publish(1, true)
	r.agree("after the worker was stopped")

	// Broadcasts are repeated.
	for range 5 {
		exec1(t, r.conn, "SELECT ledger.announce_notification(tenant, event_key, recipient) FROM ledger.notifications")
	}
	r.publish(2, true)
	r.agree("after broadcasts were repeated")

	// What is read in one tab is read in the other, and in the table, and nobody else's is.
	if err := chromedp.Do(r.tabs[0], chromedp.Click("#list li button"), chromedp.WaitNotPresent("#list li:first-child.unread")); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		got := eval[string](r, r.tabs[1], "document.getElementById('count').textContent")
		return got == fmt.Sprint(r.posts-1), fmt.Sprintf("the other tab's bell counts %s of %d", got, r.posts)
	})
	r.picture("one-read")
	if err := chromedp.Do(r.tabs[0], chromedp.Click("#read-all")); err != nil {
		t.Fatal(err)
	}
	for _, tab := range r.tabs {
		testenv.Eventually(t, 20*time.Second, func() (bool, string) {
			return eval[bool](r, tab, "document.getElementById('count').hidden"), "the bell still counts"
		})
	}
	if got := query1[string](t, r.conn, "SELECT string_agg(DISTINCT recipient, ',') FROM ledger.notifications WHERE read_at IS NOT NULL"); got != "user:1" {
		t.Errorf("read are those of %s", got)
	}
	r.agree("at the end")

	// By keyboard alone: Escape closes and goes back to the bell.
	if err := chromedp.Do(r.tabs[0], chromedp.KeyEvent("\u001b")); err != nil {
		t.Fatal(err)
	}
	if !eval[bool](r, r.tabs[0], "document.getElementById('panel').hidden && document.activeElement.id === 'bell'") {
		t.Error("Escape does not close the panel")
	}
	// A page that is opened anew has it all, read.
	if err := chromedp.Do(r.tabs[1], chromedp.Reload()); err != nil {
		t.Fatal(err)
	}
	r.agree("after a reload")
	if got := eval[int](r, r.tabs[1], `document.querySelectorAll("#list .unread").length`); got != 0 {
		t.Errorf("%d are unread after a reload", got)
	}
}
