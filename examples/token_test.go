package examples_test

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger/inbox"
)

// TestTokens_documented: what docs/notifications.md shows in other languages signs what the server takes.
func TestTokens_documented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/notifications.md")
	if err != nil {
		t.Fatal(err)
	}
	key := inbox.Key{ID: "k1", Secret: []byte(strings.Repeat("s", 40))}
	for language, run := range map[string]struct {
		argv          []string
		before, after string
	}{
		"js":  {[]string{"node", "-e"}, "const kid = 'k1', secret = '" + string(key.Secret) + "';\n", "console.log(token);"},
		"php": {[]string{"php", "-r"}, "$kid = 'k1'; $secret = '" + string(key.Secret) + "';\n", "echo $token, \"\\n\";"},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			code := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(page)
			if code == nil {
				t.Fatal("the page has no code")
			}
			got := strings.TrimSpace(output(t, command(t, append(run.argv, run.before+string(code[1])+run.after))))
			claims, err := base64.RawURLEncoding.DecodeString(strings.Split(got+"..", ".")[1])
			if err != nil {
				t.Fatal(err)
			}
			var c struct {
				Recipient string
				Exp       int64
			}
			if err := json.Unmarshal(claims, &c); err != nil || time.Until(time.Unix(c.Exp, 0)) < 4*time.Minute {
				t.Errorf("claims %s: %v", claims, err)
			}
			want, err := inbox.Sign(key, inbox.Identity{Recipient: c.Recipient, Expires: time.Unix(c.Exp, 0)})
			if err != nil || got != want || c.Recipient != "user:42" {
				t.Errorf("got  %s\nwant %s, %v", got, want, err)
			}
		})
	}
}
