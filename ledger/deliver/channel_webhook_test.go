package deliver_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/ledger/deliver"
)

// receiver is who webhooks go to. It does what a test says for the last part of the path.
type receiver struct {
	*httptest.Server
	ca string

	// mu guards the fields below.
	mu  sync.Mutex
	got []hook
}

type hook struct {
	at     time.Time
	method string
	path   string
	header http.Header
	body   string
}

func newReceiver(t *testing.T, answer func(n int, h hook, w http.ResponseWriter)) *receiver {
	t.Helper()
	v := &receiver{}
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("read request: %v", err)
		}
		h := hook{time.Now(), req.Method, strings.TrimPrefix(req.URL.Path, "/"), req.Header, string(body)}
		v.mu.Lock()
		v.got = append(v.got, h)
		v.mu.Unlock()
		answer(len(v.of(h.path)), h, w)
	}))
	a := newAuthority(t)
	v.ca, v.TLS = a.file, a.tls
	v.Config.ErrorLog = log.New(io.Discard, "", 0)
	v.StartTLS()
	t.Cleanup(v.Close)
	return v
}

// of returns the requests to a path.
func (v *receiver) of(path string) []hook {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []hook
	for _, h := range v.got {
		if h.path == path {
			list = append(list, h)
		}
	}
	return list
}

// cut ends the connection without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		conn.Close()
	}
}

// Each way in which a request can end, and what the ledger holds then.
func TestWebhook(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	var mu sync.Mutex         // guards known
	known := map[string]int{} // what the receiver says to a question about a key
	retry := map[string]func() string{
		"hold/seconds":     func() string { return "2" },
		"hold/unavailable": func() string { return "2" },
		"hold/date":        func() string { return time.Now().Add(3 * time.Second).UTC().Format(http.TimeFormat) },
	}
	v := newReceiver(t, func(n int, h hook, w http.ResponseWriter) {
		mu.Lock()
		defer mu.Unlock()
		if n > 1 && h.method == http.MethodPost {
			return // the second time all goes well
		}
		switch h.path {
		case "hold/delivered":
			w.Header().Set("X-Request-Id", "req-7")
			w.WriteHeader(http.StatusNoContent)
		case "hold/seconds", "hold/date":
			w.Header().Set("Retry-After", retry[h.path]())
			w.WriteHeader(http.StatusTooManyRequests)
		case "hold/unavailable":
			w.Header().Set("Retry-After", retry[h.path]())
			w.WriteHeader(http.StatusServiceUnavailable)
		case "hold/gone":
			http.Error(w, "ann@example.test is no customer", http.StatusGone)
		case "hold/refused":
			w.WriteHeader(http.StatusUnprocessableEntity)
		case "hold/moved":
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case "hold/broken", "again/broken":
			w.WriteHeader(http.StatusInternalServerError)
		case "hold/silent":
			mu.Unlock()
			<-done
			mu.Lock()
		case "hold/cut", "again/cut", "ask/came", "ask/lost":
			known["asked/"+h.header.Get("Idempotency-Key")] = map[bool]int{true: 200, false: 404}[h.path == "ask/came"]
			cut(w)
		default:
			if code := known[h.path]; code != 0 {
				w.WriteHeader(code)
			}
		}
	})
	defer close(done)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	const common = "backoff: 50ms..100ms, timeout: 1s, allow_private: true, max_attempts: 3, ca_file: "
	r := channels(t, `
  hold: {kind: webhook, on_uncertain: hold, `+common+v.ca+`}
  again: {kind: webhook, on_uncertain: resend, `+common+v.ca+`}
  ask: {kind: webhook, on_uncertain: probe, probe_url: "`+v.URL+`/asked/{key}", `+common+v.ca+`}
  away: {kind: webhook, on_uncertain: hold, url: "https://`+gone.Addr().String()+`/", `+common+v.ca+`}
  strange: {kind: webhook, on_uncertain: hold, url: "`+v.URL+`/strange", backoff: 50ms..100ms, max_attempts: 2, allow_private: true}
  private: {kind: webhook, on_uncertain: hold, url: "`+strings.Replace(v.URL, "127.0.0.1", "localhost", 1)+`/private", ca_file: `+v.ca+`}
`, `
      hold: {url: "`+v.URL+`/hold/{{ .event.key }}", data: {name: "{{ .payload.name }}"}}
      again: {url: "`+v.URL+`/again/{{ .event.key }}"}
      ask: {url: "`+v.URL+`/ask/{{ .event.key }}"}
      away: {}
      strange: {}
      private: {}
`, "delivered", "seconds", "unavailable", "date", "gone", "refused", "moved", "broken", "silent", "cut", "came", "lost")

	if _, ref := r.becomes("hold", "delivered", "delivered 1"); ref != "req-7" {
		t.Errorf("reference %q", ref)
	}
	if h := v.of("hold/delivered"); len(h) != 1 || !strings.HasSuffix(h[0].body, `,"event_key":"delivered","data":{"name":"Zoë"}}`) || h[0].header.Get("Content-Type") != "application/json" {
		t.Errorf("requests %+v", h)
	}
	for _, path := range []string{"seconds", "unavailable", "date"} {
		r.becomes("hold", path, "delivered 2")
		h := v.of("hold/" + path)
		if gap := h[1].at.Sub(h[0].at); len(h) != 2 || gap < 1900*time.Millisecond {
			t.Errorf("%s: %d requests, the second after %v", path, len(h), gap)
		}
		if key := h[0].header.Get("Idempotency-Key"); key == "" || key != h[1].header.Get("Idempotency-Key") {
			t.Errorf("%s: key %q became %q", path, key, h[1].header.Get("Idempotency-Key"))
		}
	}
	for _, c := range []struct{ channel, key, state, reason string }{
		{"hold", "gone", "dead 1", "the receiver answers 410 Gone"},
		{"hold", "refused", "dead 1", "the receiver answers 422 Unprocessable Entity"},
		{"hold", "moved", "dead 1", "the receiver answers 307 Temporary Redirect: redirects are not followed, name where it has moved"},
		{"hold", "broken", "uncertain 1", "the receiver answers 500 Internal Server Error"},
		{"hold", "silent", "uncertain 1", "no answer: context deadline exceeded"},
		{"hold", "cut", "uncertain 1", "no answer: EOF"},
		{"again", "broken", "delivered 2", ""},
		{"again", "cut", "delivered 2", ""},
		{"ask", "came", "delivered 1", ""},
		{"ask", "lost", "delivered 2", ""},
		{"away", "delivered", "dead 3", "connect: dial tcp"},
		{"strange", "delivered", "dead 2", "connect: tls: failed to verify certificate"},
		{"private", "delivered", "dead 1", "the receiver's address is private or reserved"},
	} {
		reason, _ := r.becomes(c.channel, c.key, c.state)
		if !strings.HasPrefix(reason, c.reason) || strings.Contains(reason, "ann@") || strings.Contains(reason, "/"+c.key) {
			t.Errorf("%s %s: reason %q, want %q", c.channel, c.key, reason, c.reason)
		}
	}
	for path, want := range map[string]int{
		"elsewhere": 0, "private": 0, "strange": 0, "hold/broken": 1, "hold/silent": 1, "hold/cut": 1, "ask/came": 1, "ask/lost": 2, "again/cut": 2,
	} {
		if n := len(v.of(path)); n != want {
			t.Errorf("%d requests to %s, want %d", n, path, want)
		}
	}
}

func hookTo(url string) deliver.Delivery {
	return deliver.Delivery{ProviderKey: "key-1", Event: deliver.Event{Key: "k", Type: "Told"}, Fields: map[string]string{"url": url}}
}

// A connection that is used again and cut in the middle of a request: only the ledger may send that again.
func TestWebhook_oneRequest(t *testing.T) {
	t.Parallel()
	v := newReceiver(t, func(n int, h hook, w http.ResponseWriter) {
		if h.path == "cut" {
			cut(w)
		}
	})
	c := newChannel(t, "webhook", deliver.Settings{"allow_private": "true", "ca_file": v.ca})
	for _, path := range []string{"a", "b"} {
		if _, err := c.Send(t.Context(), hookTo(v.URL+"/"+path)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.Send(t.Context(), hookTo(v.URL+"/cut"))
	if kind, _ := ledger.Classify(err); kind != ledger.KindAmbiguous || len(v.of("cut")) != 1 {
		t.Errorf("%d requests, %s: %v; want one, ambiguous", len(v.of("cut")), kind, err)
	}
}

// The signature is one that others can verify, with each secret there is; the files are read anew.
func TestWebhook_secrets(t *testing.T) {
	t.Parallel()
	old, fresh := strings.Repeat("o", 24), strings.Repeat("n", 32)
	text := func(key string) string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(key)) + "\n" }
	file, auth := writeFile(t, "secret", text(old)), writeFile(t, "auth", "Bearer hunter2\n")
	v := newReceiver(t, func(int, hook, http.ResponseWriter) {})
	c := newChannel(t, "webhook", deliver.Settings{
		"url": v.URL + "/own", "allow_private": "true", "ca_file": v.ca, "secret_file": file, "authorization_file": auth,
	})
	send := func() error {
		_, err := c.Send(t.Context(), hookTo(""))
		return err
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text(fresh)+text(old)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := send(); err != nil {
		t.Fatal(err)
	}
	for i, keys := range [][]string{{old}, {fresh, old}} {
		h := v.of("own")[i]
		var want []string
		for _, key := range keys {
			mac := hmac.New(sha256.New, []byte(key))
			fmt.Fprintf(mac, "key-1.%s.%s", h.header.Get("Webhook-Timestamp"), h.body)
			want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
		if got := h.header.Get("Webhook-Signature"); got != strings.Join(want, " ") || h.header.Get("Webhook-Id") != "key-1" || h.header.Get("Authorization") != "Bearer hunter2" {
			t.Errorf("request %d: headers %v, want %q", i, h.header, want)
		}
	}
	// What cannot be read is a failure to be retried, and nothing is sent without it.
	if err := os.WriteFile(auth, []byte("Bearer\x01hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := send()
	if kind, _ := ledger.Classify(err); kind != ledger.KindRetry || strings.Contains(err.Error(), "hunter2") || len(v.of("own")) != 2 {
		t.Errorf("%s: %v", kind, err)
	}
}

// No URL that a recipient could have chosen is used for more than a request to a public host.
func TestWebhook_urls(t *testing.T) {
	t.Parallel()
	c := newChannel(t, "webhook", deliver.Settings{})
	for _, url := range []string{
		"", "http://hooks.example/", "http://127.0.0.1/", "ftp://hooks.example/", "https://", "/hooks", "https://u:hunter2@hooks.example/",
		"https://hooks.example/#x", "https://hooks.example:hunter2/", "https://127.0.0.1:1/", "https://[::1]:1/", "https://[::ffff:127.0.0.1]:1/",
		"https://10.0.0.1/", "https://169.254.169.254/latest/meta-data", "https://[fd00:ec2::254]/", "https://localhost:1/", "https://0.0.0.0:1/",
	} {
		_, err := c.Send(t.Context(), hookTo(url))
		kind, _ := ledger.Classify(err)
		if kind != ledger.KindPermanent || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%q: %s: %v", url, kind, err)
		}
	}
	d := hookTo("https://hooks.example/")
	d.Fields["body"] = `{"name": Zoë}`
	if _, err := c.Send(t.Context(), d); err == nil || !strings.HasPrefix(err.Error(), "the body is not JSON") {
		t.Errorf("got %v", err)
	}
}

// http goes to this machine, where that is asked for, and nowhere else.
func TestWebhook_insecure(t *testing.T) {
	t.Parallel()
	came := make(chan string, 1)
	v := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { came <- req.Header.Get("Idempotency-Key") }))
	defer v.Close()
	c := newChannel(t, "webhook", deliver.Settings{"insecure": "true"})
	if _, err := c.Send(t.Context(), hookTo(v.URL)); err != nil || <-came != "key-1" {
		t.Errorf("got %v", err)
	}
	for _, url := range []string{"http://10.0.0.1/", "http://hooks.example/", "https://127.0.0.1:1/"} {
		_, err := c.Send(t.Context(), hookTo(url))
		if kind, _ := ledger.Classify(err); kind != ledger.KindPermanent {
			t.Errorf("%s: %s: %v", url, kind, err)
		}
	}
}

// What is wrong with the settings is told at the start, with its key.
func TestWebhook_mistakes(t *testing.T) {
	t.Parallel()
	shared := writeFile(t, "shared", "whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 24)))
	if err := os.Chmod(shared, 0o644); err != nil {
		t.Fatal(err)
	}
	weak := writeFile(t, "weak", "hunter2")
	for settings, want := range map[string]string{
		"url: https://hooks.example/":                                                                "",
		"timeout: 1s":                                                                                "channels.hook (line 9 column 13): url is not set, here or at the channel",
		"url: http://hooks.example/":                                                                 "channels.hook (line 2 column 9): url: the URL is not https",
		"url: http://hooks.example/, insecure: true":                                                 "for this machine alone",
		"url: http://localhost:8080/, insecure: true":                                                "",
		"url: https://hooks.example/, insecure: yes please":                                          `insecure: "yes please" is not true or false`,
		"url: https://hooks.example/, timeout: 5":                                                    `timeout: "5" is not a duration`,
		"url: https://hooks.example/, per_host: none":                                                `per_host: "none" is not a number`,
		"url: https://hooks.example/, probe_url: https://hooks.example/":                             "probe_url: has no {key}",
		"url: https://hooks.example/, ca_file: " + weak:                                              "has no certificate",
		"url: https://hooks.example/, secret_file: " + weak:                                          "secret: a signing secret begins with whsec_",
		"url: https://hooks.example/, secret_file: " + shared:                                        "is not a regular file of mode 0600 or 0640",
		"url: https://hooks.example/, secret_file: " + shared + ", secret_env: A":                    "secret_file and secret_env are both set",
		"url: https://hooks.example/, authorization_env: RELAY_TEST_NOT_SET":                         `authorization: environment variable "RELAY_TEST_NOT_SET" is not set`,
		"url: https://hooks.example/, on_uncertain: probe":                                           "this kind of channel cannot ask",
		`url: https://hooks.example/, on_uncertain: probe, probe_url: "https://hooks.example/{key}"`: "",
	} {
		settings, fields, _ := strings.Cut(settings, " / ")
		_, err := parse("channels:\n  hook: {kind: webhook, " + settings + `}
rules:
  told:
    event_type: Told
    recipients: SELECT ''
    eligible: SELECT true, ''
    channels:
      hook: {` + fields + `}
`)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", settings, err, want)
		}
	}
}
