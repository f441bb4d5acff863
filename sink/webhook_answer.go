package sink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	answerRead  = 64 << 10 // of an answer's body, so that its connection can be used again
	answerShown = 200      // characters of it
)

// judge says what an answer means:
//
//	2xx                               the event is taken
//	408 409 421 425 429 5xx           later: busy, or another request of this event is under way
//	3xx 401 403 404 405 407 410       the receiver is not there, or not for us: no event's fault
//	other 4xx                         poison
//
// Redirects are not followed: they would take events, and secrets, where the settings do not say.
func (w *Webhook) judge(res *http.Response, secrets WebhookSecrets) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, answerRead))
	code := res.StatusCode
	if code >= 200 && code < 300 {
		return nil
	}
	f := &Fault{Kind: FaultPoison, Err: errors.New("the receiver answers " + statusText(code) + excerpt(body, secrets)),
		Hint: "let the receiver take the event, or repair it"}
	switch {
	case code >= 500, code == 408, code == 409, code == 421, code == 425, code == 429:
		f.Kind, f.Hint = FaultBusy, "look at the receiver"
		if code == 429 || code == 503 {
			f.After = min(retryAfter(res.Header.Get("Retry-After"), time.Now()), w.cfg.RetryAfterMost)
		}
	case code < 400:
		f.Kind, f.Hint = FaultDenied, "redirects are not followed: set webhook.url to where it has moved"
	case code == 401, code == 403, code == 407:
		f.Kind, f.Hint = FaultDenied, "look at the relay's credentials: webhook.secret_headers, webhook.signing_secret"
	case code == 404, code == 405:
		f.Kind, f.Hint = FaultDenied, "look at webhook.url, and that the receiver takes POST there"
	case code == 410:
		f.Kind, f.Hint = FaultDenied, "the receiver is gone for good and wants no more events: set webhook.url to another, or stop this relay"
	}
	return f
}

// unanswered says what it means that no answer came.
func (w *Webhook) unanswered(err error) error {
	if refusedConnection(err) {
		return &Fault{Kind: FaultDenied, Err: err,
			Hint: "look at the names, the dates and the authority of the receiver's certificate (webhook.tls.ca_file), and at the relay's own"}
	}
	return &Fault{Kind: FaultLost, Err: err, Hint: "look at the receiver and at the network between"}
}

func statusText(code int) string {
	if text := http.StatusText(code); text != "" {
		return fmt.Sprint(code, " ", text)
	}
	return strconv.Itoa(code)
}

// excerpt quotes the beginning of what the receiver says, without what must not be shown should it come back.
func excerpt(body []byte, secrets WebhookSecrets) string {
	for _, values := range secrets.Headers {
		for _, v := range values {
			body = bytes.ReplaceAll(body, []byte(v), []byte("[redacted]"))
		}
	}
	text := strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, string(body))
	runes := []rune(strings.Join(strings.Fields(text), " "))
	switch {
	case len(runes) == 0:
		return ""
	case len(runes) > answerShown:
		return `: "` + string(runes[:answerShown]) + ` ..."`
	}
	return `: "` + string(runes) + `"`
}

// retryAfter reads the header, seconds or a date; 0 where there is none.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(n, 0), 1<<30)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
