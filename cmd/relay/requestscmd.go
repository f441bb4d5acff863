package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// requestRow is a request as relay requests shows it. Its fields are API.
type requestRow struct {
	ID        int64           `json:"id"`
	Kind      string          `json:"kind"`
	State     string          `json:"state"`
	Actor     string          `json:"actor"`
	Reason    string          `json:"reason"`
	Args      json.RawMessage `json:"args"`
	Progress  json.RawMessage `json:"progress"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

const requestColumns = `id, kind, state, actor, reason, args::text, progress::text, created_at, updated_at`

func scanRequest(row pgx.CollectableRow) (r requestRow, err error) {
	var args, progress string
	err = row.Scan(&r.ID, &r.Kind, &r.State, &r.Actor, &r.Reason, &args, &progress, &r.CreatedAt, &r.UpdatedAt)
	r.Args, r.Progress = json.RawMessage(args), json.RawMessage(progress)
	return r, err
}

// describe says how far it has come.
func (r *requestRow) describe() string {
	var p struct{ Error string }
	_ = json.Unmarshal(r.Progress, &p)
	text := describeLetters(r.Progress)
	if r.Kind == "replay" {
		var p replayProgress
		if text = ""; json.Unmarshal(r.Progress, &p) == nil && p.Below != 0 {
			text = p.describe()
		}
	}
	return strings.Join(strings.FieldsFunc(text+"\n"+p.Error, func(c rune) bool { return c == '\n' }), "; ")
}

func (p *process) requestsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "requests",
		Short: "Show what the relay was asked to do, or call it off",
		Long: `Show what the relay was asked to do by relay replay and relay dead-letters, and call it off. The settings postgres.* say
where the database is; to see, the role needs the rights of an operator, and to call off, those of a replay role
(relay migrate print --roles).`,
		Args: noUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.requestsListCommand(), p.requestsShowCommand(), p.requestsCancelCommand())
	return cmd
}

func (p *process) requestsListCommand() *cobra.Command {
	var all, asJSON bool
	var limit int
	cmd := &cobra.Command{Use: "list", Short: "List requests, the newest first"}
	cmd.Flags().BoolVar(&all, "all", false, "those that are over too")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many at most")
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	p.withDatabase(cmd, func(args []string) error {
		if len(args) > 0 {
			return noArguments(cmd, args)
		}
		if limit < 1 {
			return &usageError{problem: "--limit is out of range", hint: "use 1 or more"}
		}
		return nil
	}, func(ctx context.Context, db *pgx.Conn, c *Config, _ []string) error {
		rows, err := db.Query(ctx, `select `+requestColumns+` from outbox.requests
			where slot = $1 and ($2 or state in ('pending', 'running')) order by id desc limit $3`, c.Postgres.Slot, all, limit)
		if err != nil {
			return tableError("read requests", err)
		}
		list, err := pgx.CollectRows(rows, scanRequest)
		if err != nil {
			return tableError("read requests", err)
		}
		return p.printRequests(list, all, asJSON)
	})
	return cmd
}

func (p *process) printRequests(list []requestRow, all, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(p.stdout)
		for _, r := range list {
			if err := out.Encode(r); err != nil {
				return fmt.Errorf("print requests: %w", err)
			}
		}
		return nil
	}
	if len(list) == 0 {
		what := "no open requests; --all shows those that are over"
		if all {
			what = "no requests"
		}
		fmt.Fprintln(p.stdout, what)
		return nil
	}
	tw := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NUMBER\tKIND\tSTATE\tASKED\tBY\tPROGRESS")
	for _, r := range list {
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Kind, r.State, r.CreatedAt.UTC().Format(time.RFC3339), printable(r.Actor), printable(r.describe()))
	}
	return tw.Flush()
}

// requestNumber reads the argument of a command about one request.
func requestNumber(cmd *cobra.Command, args []string) (int64, error) {
	if len(args) == 1 {
		if id, err := strconv.ParseInt(args[0], 10, 64); err == nil && id > 0 {
			return id, nil
		}
	}
	return 0, &usageError{problem: cmd.Name() + " takes the number of one request", hint: "relay requests list shows the numbers"}
}

func (p *process) requestsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "show NUMBER", Short: "Show one request"}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as a JSON object")
	p.withDatabase(cmd, func(args []string) error {
		_, err := requestNumber(cmd, args)
		return err
	}, func(ctx context.Context, db *pgx.Conn, c *Config, args []string) error {
		id, err := requestNumber(cmd, args)
		if err != nil {
			return err
		}
		r, err := loadRequest(ctx, db, c.Postgres.Slot, id)
		if err != nil {
			return err
		}
		if asJSON {
			return p.printRequests([]requestRow{r}, true, true)
		}
		tw := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
		for _, line := range [][2]string{
			{"request", fmt.Sprintf("%d, %s", r.ID, r.Kind)}, {"state", r.State}, {"progress", r.describe()},
			{"asked", fmt.Sprintf("%s by %s", r.CreatedAt.UTC().Format(time.RFC3339), r.Actor)}, {"reason", r.Reason},
			{"changed", r.UpdatedAt.UTC().Format(time.RFC3339)}, {"args", string(r.Args)}, {"details", string(r.Progress)},
		} {
			fmt.Fprintf(tw, "%s\t%s\n", line[0], printable(line[1]))
		}
		return tw.Flush()
	})
	return cmd
}

func loadRequest(ctx context.Context, db *pgx.Conn, slot string, id int64) (r requestRow, err error) {
	rows, err := db.Query(ctx, `select `+requestColumns+` from outbox.requests where slot = $1 and id = $2`, slot, id)
	if err != nil {
		return r, tableError("read request", err)
	}
	r, err = pgx.CollectExactlyOneRow(rows, scanRequest)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, &hintError{err: fmt.Errorf("slot %s has no request %d", slot, id), hint: "relay requests list --all shows the numbers"}
	}
	return r, tableError("read request", err)
}

func (p *process) requestsCancelCommand() *cobra.Command {
	var by letterRequest
	cmd := &cobra.Command{
		Use:   "cancel NUMBER",
		Short: "Call a request off",
		Long: `Call a request off. The relay leaves it within seconds; what it has done stays done. A replay that is called off cannot be
gone on with: relay replay asks for a new one.`,
	}
	cmd.Flags().StringVar(&by.reason, "reason", "", "why; required, and kept")
	cmd.Flags().StringVar(&by.actor, "actor", actor(), "who asks")
	p.withDatabase(cmd, func(args []string) error {
		if _, err := requestNumber(cmd, args); err != nil {
			return err
		}
		return by.check()
	}, func(ctx context.Context, db *pgx.Conn, c *Config, args []string) error {
		id, err := requestNumber(cmd, args)
		if err != nil {
			return err
		}
		r, err := loadRequest(ctx, db, c.Postgres.Slot, id)
		if err != nil {
			return err
		}
		var off bool
		err = db.QueryRow(ctx, `
			with off as (
				update outbox.requests set state = 'failed', updated_at = clock_timestamp(),
					progress = progress || jsonb_build_object('error', 'called off by ' || $3::text || ': ' || $4::text)
				where slot = $1 and id = $2 and state in ('pending', 'running') returning 1
			) select exists (select from off)`, c.Postgres.Slot, id, by.actor, by.reason).Scan(&off)
		if err != nil {
			return tableError("call request off", err)
		}
		if !off {
			return &hintError{err: fmt.Errorf("request %d is over: %s", id, r.State), hint: fmt.Sprintf("relay requests show %d tells more", id)}
		}
		fmt.Fprintf(p.stdout, "request %d is called off\n", id)
		return nil
	})
	return cmd
}
