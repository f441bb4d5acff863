package doctor_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/sink"
)

// A receiver is visited as far as a request would go before it is sent, and what proves who we are is read.
func TestWebhook(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	var requests atomic.Int32
	v := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests.Add(1) }))
	v.Config.ErrorLog = log.New(io.Discard, "", 0)
	v.StartTLS()
	t.Cleanup(v.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(v.Certificate())

	w := sink.DefaultWebhookConfig()
	w.URL, w.TLS = v.URL, &tls.Config{RootCAs: trusted}
	w.Secrets = func() (sink.WebhookSecrets, error) {
		return sink.WebhookSecrets{Headers: http.Header{"Authorization": {"Bearer hidden"}}, Keys: [][]byte{[]byte("hidden")}}, nil
	}
	r.doc.Kafka, r.doc.Webhook = nil, &w
	rep := r.examine()
	if list := wrong(rep); len(list) > 0 {
		t.Errorf("of a sound relay:\n%s", strings.Join(list, "\n"))
	}
	if c := worst(rep, "Webhook", "receiver"); c.Status != doctor.OK || !strings.Contains(c.Seen, "TLS 1.3") {
		t.Errorf("got %+v", c)
	}
	if c := worst(rep, "Webhook", "secrets"); c.Status != doctor.OK || !strings.Contains(c.Seen, "1 header; requests are signed with 1 key") || strings.Contains(c.Seen, "hidden") {
		t.Errorf("got %+v", c)
	}
	w.TLS = nil
	w.Secrets = func() (sink.WebhookSecrets, error) {
		return sink.WebhookSecrets{}, errors.New("open key: no such file")
	}
	rep = r.examine()
	if c := worst(rep, "Webhook", "receiver"); c.Status != doctor.Fail || !strings.Contains(c.Fix, "webhook.tls.ca_file") {
		t.Errorf("got %+v", c)
	}
	if c := worst(rep, "Webhook", "secrets"); c.Status != doctor.Fail || !strings.Contains(c.Seen, "no such file") || c.Fix == "" {
		t.Errorf("got %+v", c)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("the receiver got %d requests", n)
	}
}

// A dead-letter topic that cannot be used is a warning, for nothing waits for it.
func TestDeadLetterTopic(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	r.doc.Sink.Routes[0].DeadLetterTopic = "dead"
	const check = "dead-letter topic dead"
	c := worst(r.examine(), "Kafka", check)
	if c.Status != doctor.Warn || !strings.Contains(c.Seen, "does not exist") {
		t.Fatalf("got %+v", c)
	}
	r.follow(c)
	if c := worst(r.examine(), "Kafka", check); c.Status != doctor.OK || !strings.Contains(c.Seen, "2 partitions") {
		t.Errorf("got %+v", c)
	}
	r.exec(`SELECT outbox.publish('key', 'dead', '42', 'Placed', '{}')`)
	r.doc.Sink.Routes[0].DeadLetterTopic = "outbox.event.dead"
	if c := worst(r.examine(), "Kafka", "routes"); c.Status != doctor.Warn || !strings.Contains(c.Seen, "copies of dead letters") {
		t.Errorf("a row that goes there: %+v", c)
	}
}
