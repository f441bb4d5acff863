package sink_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/sink"
)

// authority makes certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	var raw tls.Certificate
	raw, a.key = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	var err error
	if a.cert, err = x509.ParseCertificate(raw.Certificate[0]); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(c *x509.Certificate) (tls.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	c.NotBefore = time.Now().Add(-time.Hour)
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, key
}

func (a *authority) server(c *x509.Certificate) tls.Certificate {
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert, _ := a.sign(c)
	return cert
}

func (a *authority) client() tls.Certificate {
	cert, _ := a.sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return cert
}

func loopback() *x509.Certificate {
	return &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
}

// goesThrough fails the test unless an event is published.
func goesThrough(t *testing.T, cfg sink.KafkaConfig) {
	t.Helper()
	s := start(t, testConfig("t"), sink.NewKafka(cfg, source))
	s.accept(to("t", event(1, "k", "1")))
	s.awaitAcked(1)
	s.drain()
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	expired := loopback()
	expired.NotAfter = time.Now().Add(-time.Minute)
	tests := []struct {
		name   string
		server *tls.Config // nil: none
		client *tls.Config
		hint   string // "": it goes through
	}{
		{"own authority", &tls.Config{Certificates: []tls.Certificate{ca.server(loopback())}}, &tls.Config{RootCAs: ca.pool}, ""},
		{"client certificate", &tls.Config{Certificates: []tls.Certificate{ca.server(loopback())}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert},
			&tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{ca.client()}}, ""},
		{"unknown authority", &tls.Config{Certificates: []tls.Certificate{ca.server(loopback())}}, &tls.Config{RootCAs: other.pool}, "kafka.tls.ca_file"},
		{"another host", &tls.Config{Certificates: []tls.Certificate{ca.server(&x509.Certificate{DNSNames: []string{"kafka.example"}})}}, &tls.Config{RootCAs: ca.pool}, "another name"},
		{"expired", &tls.Config{Certificates: []tls.Certificate{ca.server(expired)}}, &tls.Config{RootCAs: ca.pool}, "dates"},
		{"no client certificate", &tls.Config{Certificates: []tls.Certificate{ca.server(loopback())}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert},
			&tls.Config{RootCAs: ca.pool}, "client certificate"},
		{"TLS 1.1", &tls.Config{Certificates: []tls.Certificate{ca.server(loopback())}, MinVersion: tls.VersionTLS11, MaxVersion: tls.VersionTLS11},
			&tls.Config{RootCAs: ca.pool, MinVersion: tls.VersionTLS10}, "TLS 1.2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}, Options: []kfake.Opt{kfake.TLS(tt.server)}})
			cfg := kafkaConfig(f.Brokers())
			cfg.TLS = tt.client
			if tt.hint == "" {
				goesThrough(t, cfg)
				return
			}
			s := start(t, testConfig("t"), sink.NewKafka(cfg, source))
			status := s.board.await(t, state.BrokerDenied)
			if !strings.Contains(status.Hint, tt.hint) {
				t.Errorf("got %+v, want the hint to say %s", status, tt.hint)
			}
		})
	}
	t.Run("a broker without", func(t *testing.T) {
		f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}})
		cfg := kafkaConfig(f.Brokers())
		cfg.TLS = &tls.Config{RootCAs: ca.pool}
		s := start(t, testConfig("t"), sink.NewKafka(cfg, source))
		eventually(t, func() bool { return len(s.board.all()) > 0 }, "nothing is raised")
		if s.Stats().Published["t"] > 0 {
			t.Error("something was published in the clear")
		}
	})
}

// password is one that a test changes.
type password struct {
	mu    sync.Mutex
	value string
	err   error
	reads int
}

func (p *password) read() (string, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	return "relay", p.value, p.err
}

func (p *password) set(value string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.value, p.err = value, err
}

// TestSASL wants each mechanism to go through, a wrong password to be a state that does not show it, and the right one to
// be found without a restart.
func TestSASL(t *testing.T) {
	for _, mechanism := range sink.Mechanisms() {
		t.Run(mechanism, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}, Options: []kfake.Opt{
				kfake.EnableSASL(), kfake.Superuser(mechanism, "relay", "right, =word"),
			}})
			secret := &password{value: "canary-wrong"}
			cfg := kafkaConfig(f.Brokers())
			cfg.SASL = &sink.SASL{Mechanism: mechanism, Credentials: secret.read}
			s := start(t, testConfig("t"), sink.NewKafka(cfg, source))
			status := s.board.await(t, state.BrokerUnreachable) // this broker hangs up; Kafka says no
			if !strings.Contains(status.Hint, "password") || strings.Contains(status.Reason+status.Hint, "canary") {
				t.Errorf("got %+v", status)
			}
			secret.set("", errors.New("file is gone"))
			s.board.awaitReason(t, "file is gone")
			secret.set("right, =word", nil)
			s.accept(to("t", event(1, "k", "1")))
			s.awaitAcked(1)
			s.drain()
		})
	}
}

// awaitReason waits until something is raised whose reason holds a text.
func (b *board) awaitReason(t testing.TB, text string) {
	t.Helper()
	eventually(t, func() bool {
		for _, s := range b.all() {
			if strings.Contains(s.Reason, text) {
				return true
			}
		}
		return false
	}, "no reason says "+text)
}

// TestACLs takes each right away that the documentation asks for: the state names the one that is missing.
func TestACLs(t *testing.T) {
	type acl = kfake.ACL
	rights := map[string]acl{
		"write topic": {Resource: kmsg.ACLResourceTypeTopic, Name: "t", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationWrite, Allow: true},
		"read topic":  {Resource: kmsg.ACLResourceTypeTopic, Name: "t", Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: kmsg.ACLOperationRead, Allow: true},
		"write id":    {Resource: kmsg.ACLResourceTypeTransactionalId, Name: "relay-", Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: kmsg.ACLOperationWrite, Allow: true},
	}
	for without, hint := range map[string]string{
		"": "", "write topic": "Write and Describe on the topic", "read topic": "allow Read on the topic", "write id": "TransactionalId relay-",
	} {
		t.Run("without "+without, func(t *testing.T) {
			var have []acl
			for name, r := range rights {
				if name != without {
					have = append(have, r)
				}
			}
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 1}, Options: []kfake.Opt{
				kfake.EnableSASL(), kfake.EnableACLs(), kfake.User("PLAIN", "relay", "word", have...),
			}})
			cfg := kafkaConfig(f.Brokers())
			cfg.SASL = &sink.SASL{Mechanism: "PLAIN", Credentials: (&password{value: "word"}).read}
			if without == "" {
				goesThrough(t, cfg)
				return
			}
			s := start(t, testConfig("t"), sink.NewKafka(cfg, source))
			aside, stop := context.WithCancel(s.ctx)
			defer stop()
			go func() { _ = s.Accept(aside, 1, events1()) }()
			status := s.board.await(t, state.BrokerDenied)
			if !strings.Contains(status.Hint, hint) {
				t.Errorf("got %+v, want the hint to say %q", status, hint)
			}
			if s.isAcked(1) {
				t.Error("the event was acknowledged")
			}
		})
	}
}

// TestModes publishes without fencing, and without an identity: it takes fewer rights, and says what it is.
func TestModes(t *testing.T) {
	for name, change := range map[string]func(*sink.KafkaConfig){
		"no fencing":     func(c *sink.KafkaConfig) { c.NoFencing = true },
		"not idempotent": func(c *sink.KafkaConfig) { c.NotIdempotent = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := fake(t, kafkaserver.FakeConfig{Topics: map[string]int32{"t": 3}})
			transactions := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.EndTxn, kmsg.FindCoordinator}, Observe: true, Count: -1})
			identities := f.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.InitProducerID}, Observe: true, Count: -1})
			m := newStream(t, f.Brokers(), "t")
			session := func(from, until int) sink.Stats {
				cfg := testConfig("t")
				cfg.ResumeLSN = m.event(from).Position.LSN
				kcfg := kafkaConfig(f.Brokers())
				change(&kcfg)
				s := startAs(t, cfg, sink.NewKafka(kcfg, m.source), m.source)
				for _, e := range m.events(from, until) {
					s.accept(e)
				}
				s.drain()
				return s.Stats()
			}
			session(0, 100)
			if st := session(50, 150); st.Resumed != 50 {
				t.Errorf("got %+v", st)
			}
			m.wantOnce(t, 150)
			if n := transactions.Hits(); n != 0 {
				t.Errorf("%d requests of transactions", n)
			}
			if n := identities.Hits(); (n == 0) != (name == "not idempotent") {
				t.Errorf("%d requests for an identity", n)
			}
		})
	}
}
