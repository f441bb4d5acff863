package standardwebhook_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/internal/standardwebhook"
)

// The expected signature was made with openssl dgst -sha256 -hmac.
func TestSign(t *testing.T) {
	t.Parallel()
	keys := [][]byte{[]byte(strings.Repeat("k", 24)), []byte(strings.Repeat("o", 24))}
	at, signature := standardwebhook.Sign("msg_1", []byte(`{"a":1}`), keys, time.Unix(1700000000, 999))
	if want := "v1,bYr7Rz93bX8WqNI5XVthzq7NE/LcYrDkos9dgSLYHOc= v1,6dx9ntCmbcrwobamPAwexk0oMjyhTrMC6b1MDaVE/TI="; at != "1700000000" || signature != want {
		t.Errorf("got %s %q, want %q", at, signature, want)
	}
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("k", 24)
	if got, err := standardwebhook.ParseKey("whsec_" + base64.StdEncoding.EncodeToString([]byte(key))); err != nil || string(got) != key {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"", "whsec_", "hunter2hunter2hunter2hunter2", "whsec_hunter2!", "whsec_" + base64.StdEncoding.EncodeToString([]byte("hunter2"))} {
		if _, err := standardwebhook.ParseKey(bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}
