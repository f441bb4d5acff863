package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

const (
	statusTimeout = 5 * time.Second
	maxReport     = 1 << 20
)

func (p *process) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the running relay does",
		Long: `Show what the running relay does, by asking its admin listener. With --ready the exit code is 1 unless
the relay does its work or waits as a standby, for use as a health check.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	ready := cmd.Flags().Bool("ready", false, "fail unless the relay is ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.check("admin"); err != nil {
			return err
		}
		r, err := fetchReport(cmd.Context(), l.config.Admin.Listen)
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(p.stdout, r)
		} else {
			err = r.print(p.stdout, time.Now())
		}
		if err != nil {
			return fmt.Errorf("print status: %w", err)
		}
		if *ready && !r.State.Ready() {
			return fmt.Errorf("relay is not ready: %s", r.State)
		}
		return nil
	}
	return cmd
}

// fetchReport asks the relay whose admin listener has this address.
func fetchReport(ctx context.Context, listen string) (*Report, error) {
	if listen == "" {
		return nil, &hintError{err: errors.New("admin.listen is empty, so no relay can be asked"), hint: "name the running relay's address with --admin-listen"}
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	addr := dialAddress(listen)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status.json", nil)
	if err != nil {
		return nil, fmt.Errorf("ask relay at %s: %w", addr, err)
	}
	// A transport of its own: no proxy stands between us and this machine.
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, &hintError{
			err:  fmt.Errorf("no relay answers at %s: %w", addr, err),
			hint: "start one with relay run, or name the address of the running one with --admin-listen",
		}
	}
	defer resp.Body.Close()
	var r Report
	err = json.NewDecoder(io.LimitReader(resp.Body, maxReport)).Decode(&r)
	if resp.StatusCode != http.StatusOK || err != nil || r.State == "" {
		return nil, &hintError{
			err:  fmt.Errorf("what answers at %s is not a relay: status %d", addr, resp.StatusCode),
			hint: "name the address of the running relay with --admin-listen",
		}
	}
	return &r, nil
}

// dialAddress turns an address to listen on into one to connect to.
func dialAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
