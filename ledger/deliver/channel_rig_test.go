package deliver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/ledger/deliver"
)

// authority is an own one, with a certificate for this machine.
type authority struct {
	file string // its certificate
	tls  *tls.Config
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{
		file: writeFile(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))),
		tls:  &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
	}
	return a
}

// writeFile makes a file that nobody else can read.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newChannel makes a channel of a kind.
func newChannel(t *testing.T, kind string, s deliver.Settings) deliver.Channel {
	t.Helper()
	for _, k := range deliver.Kinds(deliver.NewLineWriter(os.Stderr)) {
		if k.Name == kind {
			c, err := k.New(s)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
	}
	t.Fatalf("no kind %s", kind)
	return nil
}

// channels runs a worker without Kafka that has the given channels and delivers one event for each key, to one recipient,
// on each of them.
func channels(t *testing.T, settings, fields string, keys ...string) *rig {
	t.Helper()
	r := setupWithoutKafka(t)
	var events []string
	for _, k := range keys {
		events = append(events, "('"+k+"')")
	}
	r.rules = "channels:\n" + settings + `
rules:
  told:
    event_type: Told
    recipients: SELECT 'user:ann@example.test'
    eligible: SELECT true, ''
    discover: SELECT k AS event_key, now() - interval '1 hour' AS occurred_at, '{"name":"Zoë"}' AS payload FROM (VALUES ` + strings.Join(events, ", ") + `) AS v (k)
    channels:
` + fields
	w := r.run(nil)
	if _, err := w.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// becomes waits for a delivery to have a state and a number of attempts, and returns the reason and the reference.
func (r *rig) becomes(channel, key, want string) (reason, ref string) {
	r.t.Helper()
	const query = "SELECT %s FROM ledger.notification_dispatches WHERE channel = $1 AND event_key = $2"
	r.eventually(channel+" "+key+" to be "+want, func() bool {
		return one[string](r, fmt.Sprintf(query, "state || ' ' || attempts"), channel, key) == want
	})
	return one[string](r, fmt.Sprintf(query, "coalesce(reason, '')"), channel, key), one[string](r, fmt.Sprintf(query, "coalesce(provider_ref, '')"), channel, key)
}
