package main

import (
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestE2E_Secrets connects with a password that needs escaping, rightly and in each wrong way: neither the password
// nor a part of it is in anything the relay says.
func TestE2E_Secrets(t *testing.T) {
	t.Parallel()
	// Whatever splits at one of these would leave a canary on each side.
	const password = "c4n4ry1@c4n4ry2/c4n4ry3:c4n4ry4%c4n4ry5?c4n4ry6#c4n4ry7"
	const trace = "c4n4ry"
	server := testenv.Dedicated(t, pgserver.Config{Password: password})
	r := newRig(t, server, testenv.Kafka(t), 1)
	right, err := url.Parse(r.db.URL)
	if err != nil {
		t.Fatal("not a URL")
	}
	if !strings.Contains(right.String(), "%40"+trace) {
		t.Fatal("the password is not escaped, which is no test")
	}
	closed, err := procs.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*url.URL)) string {
		u := *right
		change(&u)
		return u.String()
	}
	tests := []struct {
		name string
		url  string
		want state.State // "": the configuration is refused
	}{
		{"right", right.String(), state.Streaming},
		{"wrong host", with(func(u *url.URL) { u.Host = "nowhere.invalid:5432" }), state.DatabaseUnreachable},
		{"wrong port", with(func(u *url.URL) { u.Host = procs.Address(closed) }), state.DatabaseUnreachable},
		{"wrong password", with(func(u *url.URL) { u.User = url.UserPassword(pgserver.Superuser, "x"+password) }), state.PermissionDenied},
		{"wrong user", with(func(u *url.URL) { u.User = url.UserPassword("nobody", password) }), state.PermissionDenied},
		{"wrong database", with(func(u *url.URL) { u.Path = "/nothing" }), state.ConfigInvalid},
		{"not escaped", "postgres://postgres:" + password + "@" + right.Host + right.Path, ""},
		{"port is no number", with(func(u *url.URL) { u.Host = "127.0.0.1" }) + "&port=" + trace, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := startRelay(t, "RELAY_POSTGRES_URL="+tt.url, "RELAY_POSTGRES_SLOT="+r.slot, "RELAY_POSTGRES_ENSURE=true",
				"RELAY_POSTGRES_ALLOW_INSECURE_TLS=true", "RELAY_KAFKA_BROKERS="+r.brokers[0], "RELAY_ROUTE_TOPIC="+r.topic,
				"RELAY_LOG_LEVEL=debug", "RELAY_ADMIN_PPROF=true")
			said := map[string]string{}
			if tt.want != "" {
				p.awaitState(tt.want, 30*time.Second)
				for _, page := range []string{"/readyz", "/status.json", "/metrics", "/healthz", "/debug/pprof/cmdline"} {
					_, body, err := p.get(page)
					if err != nil {
						t.Fatal(err)
					}
					said[page] = string(body)
				}
				p.stop()
			} else if code := p.awaitExit(20 * time.Second); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			said["stderr"] = p.log()
			out, err := os.ReadFile(p.stdout)
			if err != nil {
				t.Fatal(err)
			}
			said["stdout"] = string(out)
			if said["stderr"] == "" {
				t.Error("the relay says nothing at all")
			}
			for where, text := range said {
				if strings.Contains(text, trace) {
					t.Errorf("%s holds a part of the password:\n%s", where, text)
				}
			}
		})
	}
}
