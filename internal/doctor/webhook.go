package doctor

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/outboxrelay/relay/sink"
)

const sectionWebhook = "Webhook"

// expirySoon is how long before a certificate's end it is worth a word.
const expirySoon = 14 * 24 * time.Hour

func (p *patient) webhook() []step {
	return []step{
		{sectionWebhook, "receiver", nil, p.receiver},
		{sectionWebhook, "secrets", nil, p.secrets},
	}
}

// receiver goes as far as a request would before it is sent.
func (p *patient) receiver(ctx context.Context, s *sheet) {
	r, err := sink.ProbeWebhook(ctx, *p.cfg.Webhook)
	if err != nil {
		var fault *sink.Fault
		if errors.As(err, &fault) {
			s.fail("receiver", do(fault.Hint), "%v", fault.Err)
			return
		}
		s.broken("receiver", err)
		return
	}
	by := r.Address
	if r.Proxy {
		s.ok("receiver", "the proxy %s answers; what lies behind it is not looked at", by)
		return
	}
	s.ok("name", "%s is %s", r.Host, strings.Join(r.Addresses, ", "))
	switch {
	case r.TLS == "":
		s.ok("receiver", "%s takes connections, in the clear", by)
	case time.Until(r.Expires) < expirySoon:
		s.warn("receiver", do("have the receiver renew it: nothing is delivered once it is over"), "%s, %s; its certificate ends at %s", by, r.TLS, r.Expires.UTC().Format(time.RFC3339))
	default:
		s.ok("receiver", "%s, %s, certificate until %s", by, r.TLS, r.Expires.UTC().Format(time.DateOnly))
	}
}

// secrets reads them as each batch does. What they are is not told.
func (p *patient) secrets(_ context.Context, s *sheet) {
	w := p.cfg.Webhook
	if w.Secrets == nil {
		s.ok("secrets", "none; requests are not signed")
		return
	}
	secrets, err := w.Secrets()
	if err != nil {
		s.fail("secrets", do("the files must exist, be readable by the relay and private"), "%v", err)
		return
	}
	signed := "requests are not signed"
	if n := len(secrets.Keys); n > 0 {
		signed = "requests are signed with " + count(n, "key")
	}
	s.ok("secrets", "%s; %s", count(len(secrets.Headers), "header"), signed)
}
