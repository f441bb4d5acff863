package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/outboxrelay/relay/internal/state"
)

// testProcess returns a process whose run action says that it was reached.
func testProcess(environ []string, stdout, stderr io.Writer) *process {
	return &process{
		stdin: strings.NewReader(""), stdout: stdout, stderr: stderr, environ: environ,
		actions: actions{
			run: func(_ context.Context, p *process, c *Config) error {
				_, err := fmt.Fprintf(p.stdout, "would run slot %s\n", c.Postgres.Slot)
				return err
			},
			demo: func(context.Context, *process, *demoOptions) error { return errors.New("start demo: no room") },
		},
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		err        error
		wantCode   int
		wantStderr string
	}{
		{"OK", nil, exitOK, ""},
		{"failed", errors.New("connect broker: refused"), exitFailed, "relay: connect broker: refused\n"},
		{"several lines become one", errors.New("a\nb"), exitFailed, "relay: a; b\n"},
		{"terminal escapes", errors.New("table \x1b[31m"), exitFailed, "relay: table ?[31m\n"},
		{"hint", &hintError{err: errors.New("x"), hint: "do y"}, exitFailed, "relay: x\nhint: do y\n"},
		{"state", fmt.Errorf("run: %w", &state.Error{Reason: "slot is gone", Hint: "relay recover"}), exitFailed,
			"relay: run: slot is gone\nhint: relay recover\n"},
		{"mistakes", Mistakes{{Key: "a.b", Source: "env RELAY_A_B", Problem: "is bad", Hint: "good"}}, exitUsage,
			"relay: config a.b (env RELAY_A_B): is bad\nhint: good\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			p := testProcess(nil, &stdout, &stderr)
			p.actions.demo = func(context.Context, *process, *demoOptions) error { return tt.err }
			if got := p.execute(t.Context(), []string{"demo"}); got != tt.wantCode {
				t.Errorf("exit code = %d, want %d", got, tt.wantCode)
			}
			if got := stderr.String(); got != tt.wantStderr {
				t.Errorf("stderr = %q, want %q", got, tt.wantStderr)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout = %q, want nothing", stdout.String())
			}
		})
	}
}

// TestShipped makes sure that no command of the released binary lacks its action.
func TestShipped(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, strings.NewReader(""), &stdout, &stderr, nil); code != exitOK {
		t.Fatalf("exit code = %d, stderr %q", code, stderr.String())
	}
	for _, name := range []string{"run", "migrate", "status", "config", "version", "help"} {
		if !strings.Contains(stdout.String(), "\n  "+name+" ") {
			t.Errorf("help lacks %q:\n%s", name, stdout.String())
		}
	}
}

// TestExecute_NoSecretsFromArguments puts a password where people put it by mistake.
func TestExecute_NoSecretsFromArguments(t *testing.T) {
	t.Parallel()
	dsn := "postgres://relay:" + canary + "@localhost/app"
	for _, args := range [][]string{
		{dsn}, {"run", dsn}, {"run", "--postgres-url", dsn}, {"run", "--postgres-url=" + dsn}, {"run", "--url=" + dsn},
		{"run", "--postgres-url" + dsn}, {"run", "--=" + dsn}, {"run", "-p" + dsn}, {"run", "-" + dsn}, {"migrate", dsn}, {"migrate", "up", dsn},
		{"config", "--postgres-url", dsn}, {"status", "--postgres-url", dsn}, {"help", dsn}, {"run", "--ensure=" + dsn}, {"version", "--json=" + dsn},
	} {
		var out bytes.Buffer
		code := testProcess(nil, &out, &out).execute(t.Context(), args)
		if code == exitOK && args[0] != "help" {
			t.Errorf("%q was accepted", args)
		}
		if strings.Contains(out.String(), canary) {
			t.Errorf("%q prints the password: %s", args, out.String())
		}
	}
}
