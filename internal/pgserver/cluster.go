package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/outboxrelay/relay/internal/child"
)

// Superuser is the name of the role that initdb makes.
const Superuser = "postgres"

const settingsName = "pgserver.conf"

// cluster is a data directory with the installation and the account that run it.
type cluster struct {
	inst installation
	acct account
	base string // log and data
	data string
	temp *child.TempDir // base, if we made it
}

// makeCluster finds or makes the data directory that cfg asks for.
func makeCluster(ctx context.Context, cfg *Config) (_ *cluster, err error) {
	c := &cluster{}
	if c.inst, err = install(ctx, cfg.Major); err != nil {
		return nil, err
	}
	if c.acct, err = serverAccount(); err != nil {
		return nil, err
	}
	if c.base = cfg.DataDir; c.base != "" {
		if err := os.MkdirAll(c.base, 0o700); err != nil {
			return nil, fmt.Errorf("make data directory: %w", err)
		}
	} else {
		if c.temp, err = child.NewTempDir("relay-pg-"); err != nil {
			return nil, err
		}
		c.base = c.temp.Path
	}
	defer func() {
		if err != nil {
			c.remove()
		}
	}()
	if err := c.give(c.base); err != nil {
		return nil, err
	}
	c.data = filepath.Join(c.base, "data")
	if !exists(filepath.Join(c.data, "PG_VERSION")) {
		if err := c.initdb(ctx, cfg.Password); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// initdb makes the cluster and has its configuration include our settings file.
func (c *cluster) initdb(ctx context.Context, password string) error {
	args := []string{"--pgdata", c.data, "--username", Superuser, "--locale=C", "--encoding=UTF8", "--no-sync"}
	if password == "" {
		args = append(args, "--auth=trust")
	} else {
		file := filepath.Join(c.base, "password")
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			return fmt.Errorf("write password file: %w", err)
		}
		defer os.Remove(file)
		if err := c.give(file); err != nil {
			return err
		}
		args = append(args, "--auth=scram-sha-256", "--pwfile", file)
	}
	log, err := c.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	if err := child.Run(ctx, c.command("initdb", log, args...)); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("make cluster: %w", cause)
		}
		return fmt.Errorf("make cluster: %w\n%s", err, c.logTail())
	}

	conf, err := os.OpenFile(filepath.Join(c.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open configuration: %w", err)
	}
	_, err = conf.WriteString("include '" + settingsName + "'\n")
	if err = errors.Join(err, conf.Close()); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// writeSettings replaces the settings file.
func (c *cluster) writeSettings(text string) error {
	file := filepath.Join(c.data, settingsName)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	return c.give(file)
}

// command prepares one of the installation's programs.
func (c *cluster) command(program string, log *os.File, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.inst.bin, program), args...)
	cmd.Dir = "/" // ours may be closed to the server's user
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.acct}
	return cmd
}

// give hands a file to the server's user.
func (c *cluster) give(path string) error {
	if c.acct == nil {
		return nil
	}
	if err := os.Chown(path, int(c.acct.Uid), int(c.acct.Gid)); err != nil {
		return fmt.Errorf("give %q to the server's user: %w", path, err)
	}
	return nil
}

func (c *cluster) logPath() string { return filepath.Join(c.base, "postgres.log") }

func (c *cluster) openLog() (*os.File, error) {
	f, err := os.OpenFile(c.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	return f, nil
}

// logTail returns the last lines of the server's log, for error messages.
func (c *cluster) logTail() []byte {
	const lines = 12
	text, err := os.ReadFile(c.logPath())
	if err != nil {
		return []byte(err.Error())
	}
	text = bytes.TrimSpace(text)
	for i, n := len(text)-1, 0; i >= 0; i-- {
		if text[i] == '\n' {
			if n++; n == lines {
				return text[i+1:]
			}
		}
	}
	return text
}

// remove deletes the cluster if it is a temporary one.
func (c *cluster) remove() error {
	if c.temp == nil {
		return nil
	}
	return c.temp.Remove()
}
