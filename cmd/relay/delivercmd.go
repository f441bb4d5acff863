package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxrelay/relay/ledger/deliver"
)

func (p *process) deliverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deliver",
		Short: "Deliver events to people, once each, by rules",
		Long: `Read the relay's topics and deliver each event to its recipients, by the rules of a file and through the delivery
ledger: once for each event, recipient and channel, however often the event comes. Run as many as are needed. The first
SIGTERM or SIGINT lets deliveries that have begun finish within drain_timeout.`,
		Args: noUnknownCommand,
	}
	flags := p.deliverFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.checkDeliver(true); err != nil {
			return err
		}
		rules, err := l.config.Deliver.rules(deliver.Kinds(deliver.NewLineWriter(p.stdout)))
		if err != nil {
			return err
		}
		return p.deliver(cmd.Context(), l.config, rules)
	}
	cmd.AddCommand(p.deliverCheckCommand(), p.deliverReconcileCommand(), p.deliverTokenCommand())
	return cmd
}

// deliverFlags gives a command the flags of the configuration; help shows those that it looks at.
func (p *process) deliverFlags(cmd *cobra.Command) *pflag.FlagSet {
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		section, _, _ := strings.Cut(f.Name, "-")
		switch section {
		case "config", "deliver", "ledger", "log", "drain":
		default:
			f.Hidden = f.Name != "kafka-brokers"
		}
	})
	return flags
}

func (p *process) deliverCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the rules against the database; with --event show who would get what. Sends nothing",
		Args:  noArguments,
	}
	flags := p.deliverFlags(cmd)
	eventFile := cmd.Flags().String("event", "", "file with an event, JSON: event_key, event_type, occurred_at, aggregate_id, payload")
	limit := cmd.Flags().Int("limit", 20, "how many recipients to show")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		return p.withWorker(cmd.Context(), l, func(ctx context.Context, w *deliver.Worker, rules *deliver.Rules) error {
			if err := w.Check(ctx); err != nil {
				return deliverProblem(err)
			}
			fmt.Fprintf(p.stdout, "rules are in order (rules: %d, channels: %d), and the database takes every query\n", len(rules.Rules), len(rules.Channels))
			if *eventFile == "" {
				return nil
			}
			e, err := readEvent(*eventFile)
			if err != nil {
				return err
			}
			return p.explain(ctx, w, e, *limit)
		})
	}
	return cmd
}

func (p *process) deliverReconcileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Register what the rules' discovery queries find and the ledger does not know",
		Long: `Run the discovery queries of the rules and register the deliveries that the ledger does not know. Running it again adds
nothing. A running relay deliver makes the deliveries.`,
		Args: noArguments,
	}
	flags := p.deliverFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		return p.withWorker(cmd.Context(), l, func(ctx context.Context, w *deliver.Worker, _ *deliver.Rules) error {
			list, err := w.Reconcile(ctx)
			if len(list) == 0 && err == nil {
				fmt.Fprintln(p.stdout, "no rule has a discovery query")
				return nil
			}
			tw := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
			fmt.Fprintln(tw, "RULE\tEVENTS\tNEW\tKNOWN\tEXPIRED\tREFUSED")
			for _, r := range list {
				fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%d\n", printable(r.Rule), r.Events, r.Inserted, r.Known, r.Expired, r.Refused)
			}
			if e := tw.Flush(); e != nil {
				return e
			}
			return deliverProblem(err)
		})
	}
	return cmd
}

// withWorker runs what needs the databases and no Kafka.
func (p *process) withWorker(ctx context.Context, l *loader, f func(context.Context, *deliver.Worker, *deliver.Rules) error) error {
	if err := l.checkDeliver(false); err != nil {
		return err
	}
	rules, err := l.config.Deliver.rules(deliver.Kinds(deliver.NewLineWriter(p.stdout)))
	if err != nil {
		return err
	}
	d, err := openDatabases(ctx, l.config, rules)
	if err != nil {
		return err
	}
	defer d.close()
	cfg := deliver.DefaultConfig()
	cfg.SameDatabase = d.same
	w, err := deliver.New(cfg, rules, d.app, d.ledger)
	if err != nil {
		return err
	}
	return f(ctx, w, rules)
}

// readEvent reads the file of --event.
func readEvent(path string) (*deliver.Event, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &usageError{problem: "the file of --event cannot be read: " + causeOf(err), hint: "name a JSON file"}
	}
	var in struct {
		ID            string            `json:"event_id"`
		Tenant        string            `json:"tenant"`
		Key           string            `json:"event_key"`
		Type          string            `json:"event_type"`
		AggregateType string            `json:"aggregate_type"`
		AggregateID   string            `json:"aggregate_id"`
		OccurredAt    time.Time         `json:"occurred_at"`
		Headers       map[string]string `json:"headers"`
		Payload       json.RawMessage   `json:"payload"`
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, &usageError{problem: fmt.Sprintf("the file of --event is not an event: %v", err),
			hint: `it is a JSON object with event_key, event_type, occurred_at (2026-01-31T09:00:00Z) and perhaps tenant, aggregate_type, aggregate_id, event_id, headers, payload`}
	}
	if in.OccurredAt.IsZero() {
		in.OccurredAt = time.Now()
	}
	return &deliver.Event{
		ID: in.ID, Tenant: in.Tenant, Key: in.Key, Type: in.Type, AggregateType: in.AggregateType, AggregateID: in.AggregateID,
		OccurredAt: in.OccurredAt, Headers: in.Headers, Payload: in.Payload,
	}, nil
}

// explain shows who would get what.
func (p *process) explain(ctx context.Context, w *deliver.Worker, e *deliver.Event, limit int) error {
	shown, yes := 0, 0
	more := false
	err := w.Explain(ctx, e, func(x deliver.Explanation) bool {
		if shown == limit {
			more = true
			return false
		}
		shown++
		if !x.Eligible {
			fmt.Fprintf(p.stdout, "%s: nothing, %s\n", printable(x.Recipient), printable(x.Reason))
			return true
		}
		yes++
		for _, c := range x.Channels {
			if c.Error != "" {
				fmt.Fprintf(p.stdout, "%s: %s would be dead: %s\n", printable(x.Recipient), printable(c.Channel), printable(c.Error))
				continue
			}
			fields, err := json.Marshal(c.Fields)
			if err != nil {
				return false
			}
			fmt.Fprintf(p.stdout, "%s: %s %s\n", printable(x.Recipient), printable(c.Channel), printable(string(fields)))
		}
		return true
	})
	if err != nil {
		return withDeliverHint(err)
	}
	rest := ""
	if more {
		rest = ", and there are more"
	}
	fmt.Fprintf(p.stdout, "%d of %d recipients would be told%s; nothing was sent\n", yes, shown, rest)
	return nil
}

// deliverProblem adds what to do to the errors of rules and databases. Joined ones are told one by one.
func deliverProblem(err error) error {
	if err == nil {
		return nil
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	var ms Mistakes
	for _, e := range list {
		q, ok := errors.AsType[*deliver.QueryError](e)
		if !ok {
			return withDeliverHint(err)
		}
		source := ""
		if q.Line > 0 {
			source = fmt.Sprintf("rules file, line %d column %d", q.Line, q.Column)
		}
		ms = append(ms, Mistake{Key: "rules." + q.Rule + "." + q.Field, Source: source, Problem: errText(q.Err), Hint: pgHint(q.Err)})
	}
	return ms
}

func pgHint(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return ""
	case pg.Code == "42501":
		return "the role of deliver.url needs SELECT there, and UPDATE for FOR SHARE"
	}
	return pg.Hint
}

// withDeliverHint adds what to do about a ledger that is not as it should be.
func withDeliverHint(err error) error {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return &hintError{err, "deliver.url and ledger.url say where the databases are, by default postgres.url; relay config shows them"}
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch pg.Code {
	case "3F000", "42883", "42P01":
		return &hintError{err, "relay migrate up --only ledger makes the ledger, or brings it up to date"}
	case "42501":
		return &hintError{err, "the role of ledger.url needs what relay migrate print --only ledger --roles grants to ledger_worker"}
	}
	return err
}
