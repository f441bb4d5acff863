package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/outboxrelay/relay/sink"
)

// client translates the settings. It reads the files of authorities, so its errors are those of files.
func (k *KafkaConfig) client() (sink.KafkaConfig, error) {
	cfg := sink.DefaultKafkaConfig()
	cfg.Brokers, cfg.ClientID, cfg.RequestTimeout = k.Brokers, k.ClientID, k.RequestTimeout
	cfg.Compression = k.Compression
	cfg.NewTopics, _ = k.NewTopics.client() // it is checked
	cfg.NoFencing, cfg.NotIdempotent = k.Fencing == "off", !k.Idempotent
	if k.TLS.Enabled {
		var err error
		if cfg.TLS, err = k.TLS.client(); err != nil {
			return cfg, err
		}
	}
	if k.SASL.Mechanism != "" {
		cfg.SASL = &sink.SASL{Mechanism: k.SASL.Mechanism, Credentials: k.SASL.credentials}
	}
	return cfg, nil
}

// client returns what crypto/tls wants. The client's certificate is read for each connection, so that a renewed one
// is found without a restart; the authorities are read for each session.
func (t *TLSFiles) client() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read authorities: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read authorities: file %q holds no certificate in PEM form", t.CAFile)
		}
	}
	if t.CertFile != "" {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.certificate() }
	}
	return cfg, nil
}

// certificate reads the client's certificate and its key, which nobody else may be able to read.
func (t *TLSFiles) certificate() (*tls.Certificate, error) {
	f, err := os.Open(t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read client key: %w", err)
	}
	defer f.Close()
	if err := checkSecretFile(t.KeyFile, f); err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read client certificate: %w", err)
	}
	return &cert, nil
}

// credentials reads user and password for a connection.
func (s *SASLConfig) credentials() (user, password string, err error) {
	if s.PasswordFile == "" {
		return s.Username, s.Password.Reveal(), nil
	}
	secret, err := readSecretFile(s.PasswordFile)
	return s.Username, secret.Reveal(), err
}

// validateClient checks what has to do with the brokers' trust, reading the files as connecting will.
func (k *KafkaConfig) validateClient(add addMistake) {
	if !slices.Contains(sink.Compressions(), k.Compression) {
		add("kafka.compression", fmt.Sprintf("%s is not a compression", quoted(k.Compression)), "use "+strings.Join(sink.Compressions(), ", "))
	}
	if !slices.Contains([]string{"on", "off"}, k.Fencing) {
		add("kafka.fencing", fmt.Sprintf("%s is not a choice", quoted(k.Fencing)), "use on or off")
	}
	k.validateNewTopics(add)
	k.TLS.validate(add)
	k.SASL.validate(add)
	if k.SASL.Mechanism == "PLAIN" && !k.TLS.Enabled && !k.SASL.AllowPlaintext && !allLoopback(k.Brokers) {
		add("kafka.sasl.mechanism", "PLAIN sends the password readable by everybody on the way",
			"set kafka.tls.enabled: true, use SCRAM-SHA-512, or set kafka.sasl.allow_plaintext: true")
	}
}

func (t *TLSConfig) validate(add addMistake) {
	if !t.Enabled {
		if t.CAFile+t.CertFile+t.KeyFile != "" {
			add("kafka.tls.enabled", "files are named for TLS, and it is off", "set kafka.tls.enabled: true, or leave the files out")
		}
		return
	}
	t.validateFiles("kafka.tls", add)
}

// validateFiles reads the files of a section as connecting will.
func (t *TLSFiles) validateFiles(section string, add addMistake) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		add(section+".key_file", "a client certificate and its key go together", "set both "+section+".cert_file and "+section+".key_file")
		return
	}
	if _, err := t.client(); err != nil {
		add(section+".ca_file", err.Error(), "the file must exist and hold certificates in PEM form")
	}
	if t.CertFile != "" {
		if _, err := t.certificate(); err != nil {
			add(section+".cert_file", err.Error(), "both files must exist and fit each other; "+secretFileHint(err))
		}
	}
}

func (s *SASLConfig) validate(add addMistake) {
	if s.Mechanism == "" {
		if s.Username+s.PasswordFile != "" || !s.Password.Empty() {
			add("kafka.sasl.mechanism", "not set, and there are credentials", "use "+strings.Join(sink.Mechanisms(), ", "))
		}
		return
	}
	if !slices.Contains(sink.Mechanisms(), s.Mechanism) {
		add("kafka.sasl.mechanism", fmt.Sprintf("%s is not a mechanism", quoted(s.Mechanism)), "use "+strings.Join(sink.Mechanisms(), ", "))
	}
	if s.Username == "" {
		add("kafka.sasl.username", "not set", "name the user that the brokers know")
	}
	switch {
	case s.Password.Empty() && s.PasswordFile == "":
		add("kafka.sasl.password", "not set", "set RELAY_KAFKA_SASL_PASSWORD, or use kafka.sasl.password_file")
	case !s.Password.Empty() && s.PasswordFile != "":
		add("kafka.sasl.password_file", "kafka.sasl.password is set too", "keep one of them")
	case s.PasswordFile != "":
		if _, err := readSecretFile(s.PasswordFile); err != nil {
			add("kafka.sasl.password_file", err.Error(), secretFileHint(err))
		}
	}
}

func allLoopback(brokers []string) bool {
	return !slices.ContainsFunc(brokers, func(b string) bool {
		host, _, err := net.SplitHostPort(b)
		if err != nil {
			return false // told elsewhere
		}
		ip, err := netip.ParseAddr(host)
		return host != "localhost" && (err != nil || !ip.IsLoopback())
	})
}

// givenUp says what the switches give up, for the log: whoever reads about a duplicate should find it there.
func (k *KafkaConfig) givenUp() (reasons []string) {
	switch {
	case !k.Idempotent:
		reasons = append(reasons, "kafka.idempotent is false: a batch whose answer was lost is in Kafka twice when it is sent again, and a late one may stand behind newer events of its keys")
	case k.Fencing == "off":
		reasons = append(reasons, "kafka.fencing is off: a relay that was paused while another took over may still write what it has under way, behind newer events of the same key")
	}
	if k.ResumeCheck == "off" {
		reasons = append(reasons, "kafka.resume_check is off: what was acknowledged and not confirmed when a relay ended is published again")
	}
	return reasons
}
