package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/outboxrelay/relay/ledger/deliver"
	"github.com/outboxrelay/relay/ledger/inbox"
)

// secretFile writes a file with keys and returns its path.
func secretFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

const testKey = "k1 0123456789abcdef0123456789abcdef\n"

func TestDeliverToken(t *testing.T) {
	t.Parallel()
	token := func(environ []string, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"deliver", "token"}, args...), strings.NewReader(""), &out, &errs, environ)
		return code, out.String(), errs.String()
	}
	good := []string{"RELAY_DELIVER_HTTP_SECRET_FILE=" + secretFile(t, testKey, 0o600)}
	if code, out, errs := token(good, "--recipient", "user:42", "--ttl", "5m"); code != exitOK || !regexp.MustCompile(`^v1\.[\w-]+\.[\w-]{43}\n$`).MatchString(out) {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
	for want, c := range map[string]struct {
		environ []string
		args    []string
	}{
		"--recipient is not set":                  {good, nil},
		"--ttl is not between 1s and 24h":         {good, []string{"--recipient", "user:42", "--ttl", "25h"}},
		"deliver.http.secret_file: not set":       {nil, []string{"--recipient", "user:42"}},
		"others than its owner can read it":       {[]string{"RELAY_DELIVER_HTTP_SECRET_FILE=" + secretFile(t, testKey, 0o644)}, []string{"--recipient", "user:42"}},
		"secret is shorter than 32":               {[]string{"RELAY_DELIVER_HTTP_SECRET_FILE=" + secretFile(t, "k1 short", 0o600)}, []string{"--recipient", "user:42"}},
		"can be reached from other machines":      {append(good[:1:1], "RELAY_DELIVER_HTTP_LISTEN=0.0.0.0:7072"), []string{"--recipient", "user:42"}},
		"set deliver.http.allow_remote: true":     {append(good[:1:1], "RELAY_DELIVER_HTTP_LISTEN=0.0.0.0:7072"), []string{"--recipient", "user:42"}},
		`"https://app.example/" is not an origin`: {append(good[:1:1], "RELAY_DELIVER_HTTP_ORIGINS=https://app.example/"), []string{"--recipient", "user:42"}},
		"deliver.http.listen":                     {append(good[:1:1], "RELAY_DELIVER_HTTP_LISTEN="), []string{"--recipient", "user:42"}},
		"openssl rand -hex 32":                    {[]string{"RELAY_DELIVER_HTTP_SECRET_FILE=/nowhere"}, []string{"--recipient", "user:42"}},
	} {
		if code, out, errs := token(c.environ, c.args...); code != exitUsage || !strings.Contains(errs, want) || out != "" || strings.Contains(errs, "0123456789abcdef") {
			t.Errorf("%s: code %d\n%s%s", want, code, out, errs)
		}
	}
}

func TestInboxMetrics(t *testing.T) {
	t.Parallel()
	stats := func() inbox.Stats {
		return inbox.Stats{Streams: 2, Ended: map[inbox.EndReason]uint64{inbox.EndSlow: 3}, Refused: map[string]uint64{"token": 4}}
	}
	collector := newInboxCollector(stats)
	w := httptest.NewRecorder()
	newDeliverRegistry(deliverStats, &deliver.Rules{}, "v1", collector).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	page := w.Body.String()
	for _, want := range []string{
		"relay_deliver_http_streams 2", `relay_deliver_http_streams_ended_total{reason="slow"} 3`, `relay_deliver_http_streams_ended_total{reason="left"} 0`,
		`relay_deliver_http_refused_total{class="token"} 4`, `relay_deliver_http_refused_total{class="limit"} 0`,
	} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("lacks %q", want)
		}
	}
	if problems, err := promlint.New(strings.NewReader(page)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 100)
	collector.Describe(descs)
	close(descs)
	for d := range descs {
		name, _, _ := strings.Cut(strings.TrimPrefix(d.String(), `Desc{fqName: "`), `"`)
		if !bytes.Contains(readme, []byte("`"+name+"`")) {
			t.Errorf("README.md does not list %s", name)
		}
	}
}
