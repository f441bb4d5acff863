package deliver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/outboxrelay/relay/ledger"
)

// webhookProber is a webhook whose receiver can be asked.
type webhookProber struct {
	*webhook
	probeURL string
}

// keyPlace stands in probe_url for the key that is asked about.
const keyPlace = "{key}"

// Probe implements Prober: 200 is yes, 404 is no.
func (w *webhookProber) Probe(ctx context.Context, r ledger.Reservation) (ledger.Verdict, error) {
	u, err := w.parse(strings.ReplaceAll(w.probeURL, keyPlace, url.PathEscape(r.ProviderKey)))
	if err != nil {
		return ledger.VerdictUnknown, err
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	req, err := w.request(ctx, http.MethodGet, u, r.ProviderKey, nil)
	if err != nil {
		return ledger.VerdictUnknown, err
	}
	res, _, err := w.do(req)
	if err != nil {
		return ledger.VerdictUnknown, fmt.Errorf("ask the receiver: %w", err)
	}
	finish(res)
	switch res.StatusCode {
	case http.StatusOK:
		return ledger.VerdictDelivered, nil
	case http.StatusNotFound:
		return ledger.VerdictNotSent, nil
	}
	return ledger.VerdictUnknown, fmt.Errorf("the receiver answers %d to the question", res.StatusCode)
}
