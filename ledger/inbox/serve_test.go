package inbox_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/ledger/inbox"
)

type listing struct {
	Notifications []inbox.Notification
	More          bool
}

func (l listing) ids() []int64 {
	ids := []int64{}
	for _, n := range l.Notifications {
		ids = append(ids, n.ID)
	}
	return ids
}

func TestNotifications(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	var mine []int64
	for i := range 5 {
		mine = append(mine, r.notify(fmt.Sprint("k:", i), "user:1"))
		r.notify(fmt.Sprint("k:", i), "user:2")
	}
	auth := "Bearer " + r.token("user:1", time.Minute)
	for _, c := range []struct {
		query string
		want  []int64
		more  bool
	}{
		{"", mine, false},
		{"?limit=2", mine[3:], false},
		{"?after=0&limit=2", mine[:2], true},
		{fmt.Sprintf("?after=%d&limit=2", mine[1]), mine[2:4], true},
		{fmt.Sprintf("?after=%d&limit=2", mine[3]), mine[4:], false},
		{fmt.Sprintf("?after=%d", mine[4]), nil, false},
	} {
		a := r.request("GET", "/notifications"+c.query, "", "Authorization", auth)
		got := decode[listing](t, a.body)
		if a.status != 200 || !slices.Equal(got.ids(), c.want) || got.More != c.more || !strings.Contains(a.body, `"notifications":[`) {
			t.Errorf("%s: %d %v %t, want %v %t", c.query, a.status, got.ids(), got.More, c.want, c.more)
		}
	}
	n := decode[listing](t, r.request("GET", "/notifications?after=0&limit=1", "", "Authorization", auth).body).Notifications[0]
	if n.Type != "order-shipped" || string(n.Data) != `{"key":"k:0"}` || n.ReadAt != nil || time.Since(n.CreatedAt) > time.Minute {
		t.Errorf("notification %+v, data %s", n, n.Data)
	}
	for query, code := range map[string]string{"?after=x": "after_invalid", "?after=-1": "after_invalid", "?limit=0": "limit_invalid", "?limit=501": "limit_invalid"} {
		if a := r.request("GET", "/notifications"+query, "", "Authorization", auth); a.status != 400 || !strings.Contains(a.body, code) {
			t.Errorf("%s: %d %s, want 400 %s", query, a.status, a.body, code)
		}
	}
}

// The token says whose they are, whatever ids are named.
func TestMarkRead(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	mine, theirs := r.notify("k:1", "user:1"), r.notify("k:1", "user:2")
	r.exec("INSERT INTO ledger.notifications (tenant, event_key, recipient, type) VALUES ('other', 'k:1', 'user:1', 't')")
	auth := "Bearer " + r.token("user:1", time.Minute)
	mark := func(body string) answer {
		return r.request("POST", "/notifications/read", body, "Authorization", auth, "Content-Type", "application/json")
	}
	for _, want := range []string{`{"read":1}`, `{"read":0}`} {
		if a := mark(fmt.Sprintf(`{"ids": [%d, %d, %d, 999]}`, mine, theirs, theirs+1)); a.status != 200 || strings.TrimSpace(a.body) != want {
			t.Errorf("%d %s, want %s", a.status, a.body, want)
		}
	}
	var ids []int64
	if err := r.pool.QueryRow(t.Context(), "SELECT array_agg(id) FROM ledger.notifications WHERE read_at IS NOT NULL").Scan(&ids); err != nil || !slices.Equal(ids, []int64{mine}) {
		t.Errorf("read are %v, %v; want %d alone", ids, err, mine)
	}
	for _, body := range []string{"", "{", `{"ids": ["1"]}`, `{"id": [1]}`, `{"ids": [1]} x`, `{"ids": [` + strings.Repeat("1,", 1000) + `1]}`, `{"ids": [1` + strings.Repeat(" ", 70<<10) + `]}`} {
		if a := mark(body); a.status != 400 || !strings.Contains(a.body, "body_invalid") {
			t.Errorf("%.30s: %d %s", body, a.status, a.body)
		}
	}
	if a := r.request("POST", "/notifications/read", `{"ids": [1]}`, "Authorization", auth, "Content-Type", "text/plain"); a.status != 400 {
		t.Errorf("a form's type: %d", a.status)
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	sign := func(k inbox.Key, who inbox.Identity) string {
		text, err := inbox.Sign(k, who)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	later := time.Now().Add(time.Minute)
	good := sign(r.keys[0], inbox.Identity{Recipient: "user:1", Expires: later})
	parts := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(fmt.Sprintf(`{"kid":"new","recipient":"user:2","exp":%d}`, later.Unix())))
	for name, c := range map[string]struct {
		token  string
		status int
		code   string
	}{
		"good":              {good, 200, ""},
		"of the old key":    {sign(r.keys[1], inbox.Identity{Recipient: "user:1", Expires: later}), 200, ""},
		"none":              {"", 401, "token_missing"},
		"rubbish":           {"rubbish", 401, "token_invalid"},
		"no signature":      {parts[0] + "." + parts[1], 401, "token_invalid"},
		"empty signature":   {parts[0] + "." + parts[1] + ".", 401, "token_invalid"},
		"another recipient": {parts[0] + "." + forged + "." + parts[2], 401, "token_invalid"},
		"another version":   {"v2." + parts[1] + "." + parts[2], 401, "token_invalid"},
		"cut":               {good[:len(good)-1], 401, "token_invalid"},
		"unknown key":       {sign(inbox.Key{ID: "other", Secret: r.keys[0].Secret}, inbox.Identity{Recipient: "user:1", Expires: later}), 401, "token_invalid"},
		"wrong secret":      {sign(inbox.Key{ID: "new", Secret: r.keys[1].Secret}, inbox.Identity{Recipient: "user:1", Expires: later}), 401, "token_invalid"},
		"expired":           {sign(r.keys[0], inbox.Identity{Recipient: "user:1", Expires: time.Now().Add(-time.Second)}), 401, "token_expired"},
		"for ever":          {sign(r.keys[0], inbox.Identity{Recipient: "user:1", Expires: time.Now().Add(25 * time.Hour)}), 401, "token_lives_too_long"},
		"for nobody":        {sign(r.keys[0], inbox.Identity{Expires: later}), 403, "token_without_recipient"},
		"NUL":               {sign(r.keys[0], inbox.Identity{Recipient: "a\x00b", Expires: later}), 403, "token_without_recipient"},
		"too long":          {good + strings.Repeat("x", 2048), 401, "token_invalid"},
	} {
		for _, path := range []string{"/notifications", "/events"} {
			if path == "/events" && c.status == 200 {
				continue
			}
			for _, a := range []answer{
				r.request("GET", path+"?token="+c.token, ""),
				r.request("GET", path, "", "Authorization", "Bearer "+c.token),
				r.request("GET", path, "", "Cookie", "relay_inbox="+c.token),
			} {
				if a.status != c.status || !strings.Contains(a.body, c.code) {
					t.Errorf("%s, %s: %d %s, want %d %s", name, path, a.status, a.body, c.status, c.code)
				}
			}
		}
	}
	if got := r.Stats().Refused["token"]; got == 0 {
		t.Error("refused tokens are not counted")
	}
}

// The claims of a token are all that an application has to write.
func TestSign_format(t *testing.T) {
	t.Parallel()
	got, err := inbox.Sign(inbox.Key{ID: "k1", Secret: []byte("0123456789abcdef0123456789abcdef")}, inbox.Identity{Tenant: "t", Recipient: "user:42", Expires: time.Unix(1893456000, 0)})
	// By hand: printf v1.$(printf '{"kid":"k1",...}' | basenc --base64url) | openssl dgst -sha256 -hmac 0123...
	want := "v1.eyJraWQiOiJrMSIsInRlbmFudCI6InQiLCJyZWNpcGllbnQiOiJ1c2VyOjQyIiwiZXhwIjoxODkzNDU2MDAwfQ.0yWKCAboIaZK6AtwEMBOxEYBH4VX5WP8FTDY3KJBvqU"
	if err != nil || got != want {
		t.Errorf("got %s, %v\nwant %s", got, err, want)
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("s", 32)
	keys, err := inbox.ParseKeys("b " + long + "\na " + long + "x\n")
	if diff := cmp.Diff([]inbox.Key{{ID: "b", Secret: []byte(long)}, {ID: "a", Secret: []byte(long + "x")}}, keys); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for text, want := range map[string]string{
		"": "is not a key id", long: "is not a key id", "a short": "shorter than 32", "a " + long + "\na " + long: "one key id",
		"a " + long + "\nb " + long + "\nc " + long: "more than two", "ä " + long: "is not a key id",
	} {
		if _, err := inbox.ParseKeys(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "ssss") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestOrigins(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	auth := "Bearer " + r.token("user:1", time.Minute)
	for origin, want := range map[string]int{
		"https://app.example": 200, r.base: 200, "https://app.example.evil.test": 403, "https://evil.test": 403, "null": 403, "http://app.example": 403,
	} {
		a := r.request("GET", "/notifications", "", "Authorization", auth, "Origin", origin)
		if a.status != want || a.header.Get("Vary") != "Origin" {
			t.Errorf("%s: %d %s, want %d", origin, a.status, a.body, want)
		}
		if got := a.header.Get("Access-Control-Allow-Origin"); (got == origin) != (origin == "https://app.example") {
			t.Errorf("%s: allowed %q", origin, got)
		}
	}
	a := r.request("OPTIONS", "/notifications/read", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type")
	if a.status != 204 || a.header.Get("Access-Control-Allow-Methods") != "POST" || !strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "Content-Type") {
		t.Errorf("before a request: %d %v", a.status, a.header)
	}
	for path, want := range map[string]int{"/": 404, "/notifications/read": 405, "/events/": 404} {
		if a := r.request("GET", path, "", "Authorization", auth); a.status != want {
			t.Errorf("%s: %d, want %d", path, a.status, want)
		}
	}
}

// A role that serves some tenants refuses the others, and says so.
func TestTenant(t *testing.T) {
	t.Parallel()
	r := setup(t, nil)
	r.exec("INSERT INTO ledger.role_tenants VALUES (session_user, 'a')")
	for tenant, want := range map[string]int{"a": 200, "b": 403} {
		token, err := inbox.Sign(r.keys[0], inbox.Identity{Tenant: tenant, Recipient: "user:1", Expires: time.Now().Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		a := r.request("GET", "/notifications?token="+token, "")
		if a.status != want || want == 403 && !strings.Contains(a.body, "tenant_not_served") {
			t.Errorf("tenant %s: %d %s, want %d", tenant, a.status, a.body, want)
		}
	}
}

func TestKeys_unreadable(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *inbox.Config) { c.Keys = func() ([]inbox.Key, error) { return nil, errNoKeys }; c.Notice = nil })
	if a := r.request("GET", "/notifications", "", "Authorization", "Bearer x"); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || strings.Contains(a.body, errNoKeys.Error()) {
		t.Errorf("%d %s", a.status, a.body)
	}
}
