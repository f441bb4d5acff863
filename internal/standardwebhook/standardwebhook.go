// Package standardwebhook signs requests as Standard Webhooks (standardwebhooks.com) says, so that receivers can verify
// them with any of its libraries.
package standardwebhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Sign returns the values of the headers webhook-timestamp and webhook-signature: one signature for each key, over the
// ID, the time and the body. A full stop separates these, so none may stand in the ID.
func Sign(id string, body []byte, keys [][]byte, now time.Time) (timestamp, signature string) {
	timestamp = strconv.FormatInt(now.Unix(), 10)
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return timestamp, strings.Join(signatures, " ")
}

// ParseKey reads a signing secret: whsec_ and 24 to 64 bytes in base64. Its errors do not show it.
func ParseKey(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	if !ok {
		return nil, errors.New("a signing secret begins with whsec_")
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, errors.New("a signing secret is in base64 behind whsec_")
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, fmt.Errorf("a signing secret has 24 to 64 bytes, not %d", len(key))
	}
	return key, nil
}
