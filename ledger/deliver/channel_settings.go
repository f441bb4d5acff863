package deliver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
)

// lookupEnv finds a variable of the environment.
type lookupEnv func(name string) (value string, found bool)

// flag reads a setting that is true or false.
func (s Settings) flag(name string) (bool, error) {
	switch s[name] {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, fmt.Errorf("%s: %q is not true or false", name, s[name])
}

func (s Settings) duration(name string, otherwise time.Duration) (time.Duration, error) {
	if s[name] == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(s[name])
	if err != nil || d < 100*time.Millisecond || d > time.Hour {
		return 0, fmt.Errorf("%s: %q is not a duration from 100ms to 1h", name, s[name])
	}
	return d, nil
}

// tls returns the settings of connections whose servers are known by the authorities in ca_file, or by the system's.
func (s Settings) tls() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	path := s["ca_file"]
	if path == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("ca_file: %w", err)
	}
	cfg.RootCAs = x509.NewCertPool()
	if !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("ca_file: %q has no certificate", path)
	}
	return cfg, nil
}

// secret is where a secret is read, anew for each use: what was renewed counts at once.
type secret struct {
	file   string // or
	env    string
	lookup lookupEnv
}

// maxSecret is how much of a file is taken for a secret, in bytes.
const maxSecret = 64 << 10

// secret returns what <name>_file or <name>_env tell of, after a look at it. An empty one: neither is set.
func (s Settings) secret(name string, lookup lookupEnv) (secret, error) {
	v := secret{s[name+"_file"], s[name+"_env"], lookup}
	if v.file != "" && v.env != "" {
		return v, fmt.Errorf("%s_file and %[1]s_env are both set", name)
	}
	if v.set() {
		if _, err := v.read(); err != nil {
			return v, fmt.Errorf("%s: %w", name, err)
		}
	}
	return v, nil
}

func (s secret) set() bool { return s.file != "" || s.env != "" }

// read returns the secret without the line's end. Its errors do not show it.
func (s secret) read() (string, error) {
	text, found := "", false
	if s.file != "" {
		var err error
		if text, err = readSecret(s.file); err != nil {
			return "", err
		}
	} else if text, found = s.lookup(s.env); !found {
		return "", fmt.Errorf("environment variable %q is not set", s.env)
	}
	if text = strings.TrimRight(text, "\r\n"); text == "" {
		return "", errors.New("the secret is empty")
	}
	return text, nil
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	// A group may read it: that is how mounted secrets reach a process that is not root.
	if others := fs.FileMode(0o027); !info.Mode().IsRegular() || info.Mode().Perm()&others != 0 {
		return "", fmt.Errorf("file %q is not a regular file of mode 0600 or 0640", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err == nil && len(b) > maxSecret {
		err = fmt.Errorf("file %q has more than %d bytes", path, maxSecret)
	}
	return string(b), err
}
