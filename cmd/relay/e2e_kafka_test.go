package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
)

// selfSigned makes a certificate for loopback that is its own authority, as PEM files and for a server.
func selfSigned(t *testing.T, dir string) (certFile, keyFile string, server tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestE2E_SecuredKafka runs the relay against a broker that wants TLS, a client certificate and SCRAM, all from files: a
// wrong password is a state that does not show it, and the right one is found without a restart.
func TestE2E_SecuredKafka(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, cert := selfSigned(t, dir)
	parsed, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(parsed)
	f, err := kafkaserver.StartFake(kafkaserver.FakeConfig{Options: []kfake.Opt{
		kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert}),
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "relay", "canary-right"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	r := newRigWithoutTopic(t, sharedPostgres(t), f.Brokers())
	passwordFile := filepath.Join(dir, "password")
	password := func(text string) {
		if err := os.WriteFile(passwordFile, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	password("canary-wrong")
	p := r.start(
		"RELAY_KAFKA_TLS_ENABLED=true", "RELAY_KAFKA_TLS_CA_FILE="+certFile, "RELAY_KAFKA_TLS_CERT_FILE="+certFile, "RELAY_KAFKA_TLS_KEY_FILE="+keyFile,
		"RELAY_KAFKA_SASL_MECHANISM=SCRAM-SHA-512", "RELAY_KAFKA_SASL_USERNAME=relay", "RELAY_KAFKA_SASL_PASSWORD_FILE="+passwordFile,
		"RELAY_KAFKA_CREATE_TOPICS=true", "RELAY_KAFKA_RESUME_CHECK=off",
	)
	p.awaitState(state.BrokerUnreachable, 30*time.Second) // this broker hangs up; Kafka says no
	password("canary-right")
	p.awaitState(state.Streaming, 30*time.Second)
	ids := r.publish("order-1", 5)
	r.drained(p, 30*time.Second)
	if n := p.status().Published.Events; n != uint64(len(ids)) {
		t.Errorf("%d of %d events are published", n, len(ids))
	}
	p.stop()
	log := p.log()
	if strings.Contains(log, "canary") {
		t.Error("the log shows a password")
	}
	for _, want := range []string{`"guarantee switched off"`, `"topic settings"`} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, tail(log, 3000))
		}
	}
}
