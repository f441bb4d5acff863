package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// dsnsWithCanary puts a password in every place and shape, well formed or not.
func dsnsWithCanary() []string {
	var list []string
	for _, pass := range []string{
		canary, "x%40" + canary, "x@" + canary, canary + "/x", "x/" + canary, "x?" + canary, "x#" + canary, "x:" + canary,
		"%zz" + canary, canary + "%", "5432/" + canary, "a b" + canary, canary + "@", "[" + canary, "%25" + canary, "1,2@" + canary,
		`\` + canary, "'" + canary, "%00" + canary, "x&password=" + canary, "=" + canary, "//" + canary + "@@/",
	} {
		for _, form := range []string{
			"postgres://relay:%s@localhost:5432/app", "postgresql://relay:%s@localhost/app?sslmode=disable",
			"postgres://:%s@localhost/app", "postgres://relay:%s@/app", "postgres://relay:%s@localhost:port/app",
			"postgres://relay@localhost/app?password=%s", "postgres://relay@localhost/app?sslmode=bad&pass%%77ord=%s",
			"postgres://relay@localhost/app?sslpassword=%s",
			"host=localhost user=relay password=%s", "host=localhost password='%s' port=bad", "host=localhost password = %s x",
			"host=localhost sslpassword=%s sslmode=bad", "PASSWORD=%s", "host=localhost password='%s",
			"postgres:/relay:%s@localhost/app", "mysql://relay:%s@localhost/app", "%s",
		} {
			list = append(list, fmt.Sprintf(form, pass))
		}
	}
	return list
}

func TestDSN_NeverPrinted(t *testing.T) {
	t.Parallel()
	for _, dsn := range dsnsWithCanary() {
		_, pgxErr := pgx.ParseConfig(dsn)
		_, ourErr := parseDSN(dsn)
		texts := []string{redactDSN(dsn)}
		if pgxErr != nil {
			texts = append(texts, errText(fmt.Errorf("connect: %w", pgxErr)))
		}
		if ourErr != nil {
			texts = append(texts, ourErr.Error(), errText(ourErr), hintOf(ourErr))
		}
		for _, text := range texts {
			if strings.Contains(text, canary) {
				t.Errorf("%q is shown as %q", dsn, text)
			}
		}
	}
}

func TestHasPassword(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"postgres://relay:x@localhost/app":             true,
		"postgres://:x@localhost/app":                  true,
		"postgres://relay:x/y@localhost/app":           true,
		"postgresql://relay:x?y@localhost/app":         true,
		"postgres://relay@localhost/app?password=x":    true,
		"postgres://relay@localhost/app?pass%77ord=x":  true,
		"postgres://relay@localhost/app?sslpassword=x": true,
		"postgres://relay@localhost/app?a=%zz":         true, // cannot be told
		"host=localhost PassWord = x":                  true,
		"postgres://relay@localhost/app":               false,
		"postgres://localhost:5432/app":                false,
		"postgres:///app?host=/tmp&sslmode=disable":    false,
		"host=localhost user=relay":                    false,
		"":                                             false,
	}
	for dsn, want := range tests {
		if got := hasPassword(dsn); got != want {
			t.Errorf("hasPassword(%q) = %v, want %v", dsn, got, want)
		}
	}
}

func TestRedactDSN(t *testing.T) {
	t.Parallel()
	tests := []struct{ dsn, want string }{
		{"postgres://relay:x@db:5433/app?sslmode=disable", "postgres://relay:xxxxx@db:5433/app"},
		{"postgres://relay@a:1,b:2/app?sslmode=disable", "postgres://relay@a:1,b:2/app"},
		{"host=db user=relay dbname=app password=x port=5432", "postgres://relay:xxxxx@db:5432/app"},
		{"postgres://relay:x@y@db/app", redacted},
	}
	for _, tt := range tests {
		if got := redactDSN(tt.dsn); got != tt.want {
			t.Errorf("redactDSN(%q) = %q, want %q", tt.dsn, got, tt.want)
		}
	}
}

// TestErrText_Wraps makes sure that errors without a connection string come through as they are.
func TestErrText_Wraps(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("read slot %q: %w", "relay", errors.New("refused"))
	if got, want := errText(err), `read slot "relay": refused`; got != want {
		t.Errorf("errText = %q, want %q", got, want)
	}
}

func TestReadSecretFile(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, content string, mode os.FileMode) string {
		path := t.TempDir() + "/secret"
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Run("OK", func(t *testing.T) {
		t.Parallel()
		for _, content := range []string{"x y", "x y\n", "x y\r\n"} {
			got, err := readSecretFile(write(t, content, 0o400))
			if err != nil || got.Reveal() != "x y" {
				t.Errorf("%q: got %q, %v", content, got.Reveal(), err)
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		for _, mode := range []os.FileMode{0o644, 0o604, 0o602, 0o601, 0o620} {
			_, err := readSecretFile(write(t, canary, mode))
			var open *openFileError
			if !errors.As(err, &open) || strings.Contains(err.Error(), canary) {
				t.Errorf("mode %o: got %v, want an openFileError", mode, err)
			}
		}
	})
	t.Run("group may read root's", func(t *testing.T) {
		t.Parallel()
		path := write(t, "x", 0o640)
		_, err := readSecretFile(path)
		var open *openFileError
		if root := os.Geteuid() == 0; errors.As(err, &open) == root {
			t.Errorf("owner is root %v: got %v", root, err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(path, 65532, 65532); err != nil {
				t.Fatal(err)
			}
			if _, err := readSecretFile(path); !errors.As(err, &open) {
				t.Errorf("owner is not root: got %v, want an openFileError", err)
			}
		}
	})
	t.Run("content", func(t *testing.T) {
		t.Parallel()
		for _, content := range []string{"", "\n", "a\nb\n", "a\x00b", strings.Repeat("x", maxSecretFile+1)} {
			if s, err := readSecretFile(write(t, content, 0o600)); err == nil {
				t.Errorf("%.10q: got %d bytes, want an error", content, len(s.Reveal()))
			}
		}
		if _, err := readSecretFile(t.TempDir()); err == nil {
			t.Error("a directory was read")
		}
	})
}

// TestConnConfig_Rotation shows that a changed password file is found by the next connection.
func TestConnConfig_Rotation(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/password"
	c := PostgresConfig{URL: NewSecret("postgres://relay@localhost/app"), PasswordFile: path}
	for _, want := range []string{"old", "new"} {
		if err := os.WriteFile(path, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		conf, err := c.ConnConfig()
		if err != nil {
			t.Fatal(err)
		}
		if conf.Password != want {
			t.Errorf("password = %q, want %q", conf.Password, want)
		}
	}
}
