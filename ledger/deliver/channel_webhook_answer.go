package deliver

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/outboxrelay/relay/ledger"
)

// maxRetryAfter bounds how long a receiver may ask to be left alone.
const maxRetryAfter = time.Hour

// judge says what an answer tells about the effect:
//
//	2xx                          it happened
//	408 409 421 425 429 503      it did not; later, when Retry-After says
//	other 5xx                    it may have: the receiver, or a gateway before it, broke somewhere in it
//	everything else              it did not, and the same request will not do better
//
// Redirects are among the last: they would take the request, and its signature, where no setting says. An answer's body
// may quote the request, so it is not told.
func judge(code int, after string, now time.Time) error {
	if code/100 == 2 {
		return nil
	}
	err := fmt.Errorf("the receiver answers %s", strings.TrimSpace(strconv.Itoa(code)+" "+http.StatusText(code)))
	switch code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusTooEarly,
		http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return ledger.RetryAfter(min(retryAfter(after, now), maxRetryAfter), err)
	}
	switch {
	case code >= 500:
		return ledger.Ambiguous(err)
	case code/100 == 3:
		err = fmt.Errorf("%w: redirects are not followed, name where it has moved", err)
	}
	return ledger.Permanent(err)
}

// retryAfter reads the header, seconds or a date; 0, the channel's backoff, where there is none.
func retryAfter(text string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(n, 0), 1<<30)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}
