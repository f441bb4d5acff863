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

// Hints for when no relay answers.
const (
	noRelayHint    = "start one with relay run, or name the address of the running one, its admin.listen, with --admin-listen"
	noDatabaseHint = "with the relay's configuration (--config, or RELAY_POSTGRES_URL and RELAY_POSTGRES_SLOT) the database is asked what it knows"
)

const (
	statusTimeout = 5 * time.Second
	maxReport     = 1 << 20
)

// statusOptions are the flags of relay status beside the configuration.
type statusOptions struct {
	asJSON, ready, watch bool
	interval             time.Duration
}

func (p *process) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the running relay does",
		Long: `Show what the running relay does, by asking its admin listener. With --ready the exit code is 1 unless
the relay does its work or waits as a standby, for use as a health check. With --watch it is shown anew again and
again, through restarts of the relay, until Ctrl-C: in place on a terminal, else a line each time.

When no relay answers, the database is asked what it knows, if the configuration says where it is: whether
anybody reads from the slot, how much WAL it holds, and how far the relay had come. The exit code is 1 then.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	var o statusOptions
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.ready, "ready", false, "fail unless the relay is ready")
	cmd.Flags().BoolVar(&o.watch, "watch", false, "go on showing it")
	cmd.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "how often --watch shows it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.check("admin"); err != nil {
			return err
		}
		if o.watch {
			return p.watchStatus(cmd.Context(), l, o)
		}
		return p.status(cmd.Context(), l, o)
	}
	return cmd
}

// status shows it once.
func (p *process) status(ctx context.Context, l *loader, o statusOptions) error {
	r, err := fetchReport(ctx, l.config.Admin.Listen)
	if err != nil {
		return p.showDatabase(ctx, l, o, err)
	}
	if o.asJSON {
		err = printJSON(p.stdout, r)
	} else {
		err = r.print(p.stdout, time.Now())
	}
	if err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	if o.ready && !r.State.Ready() {
		return fmt.Errorf("relay is not ready: %s", r.State)
	}
	return nil
}

// Unanswered is what relay status --json prints when no relay answers and the database was asked instead.
type Unanswered struct {
	Error    string          `json:"error"`
	Database *DatabaseReport `json:"database"`
}

// showDatabase shows what the database says, if the configuration tells where it is. It returns why no relay
// answered.
func (p *process) showDatabase(ctx context.Context, l *loader, o statusOptions, unanswered error) (err error) {
	if l.check("postgres") != nil {
		return &hintError{err: unanswered, hint: hintOf(unanswered) + "; " + noDatabaseHint}
	}
	d := askDatabase(ctx, l.config)
	if o.asJSON {
		err = printJSON(p.stdout, Unanswered{Error: errText(unanswered), Database: d})
	} else {
		_, err = fmt.Fprint(p.stdout, "No relay answers. This is what the database says:\n\n", d.screen(time.Now()), "\n")
	}
	if err != nil {
		return errors.Join(unanswered, fmt.Errorf("print status: %w", err))
	}
	return unanswered
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
			hint: noRelayHint,
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
