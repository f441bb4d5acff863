package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxrelay/relay/cdc"
)

// pruneOptions are the flags of relay prune beside the configuration.
type pruneOptions struct {
	olderThan time.Duration
	tables    []string
	dryRun    bool
}

func (p *process) pruneCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete old rows that nothing needs any more",
		Long: `Delete old rows of the outbox tables that nothing needs any more: those that every relay of this database has published,
that no dead letter waits for, and that no list of events to be published holds. Without --older-than it does once what
retention.* says, as the relay that streams does at intervals. It deletes in small transactions and may be broken off at
any time. Its role needs the right to delete (relay migrate print --roles, -v prune=1).`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && !strings.HasPrefix(f.Name, "postgres-") && !strings.HasPrefix(f.Name, "retention-")
	})
	var o pruneOptions
	cmd.Flags().DurationVar(&o.olderThan, "older-than", 0, "delete rows whose event is older, like 168h, instead of what retention.* says")
	cmd.Flags().StringArrayVar(&o.tables, "table", nil, "only of this table")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "count what would be deleted and stop")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("older-than") && o.olderThan < minRetention {
			return &usageError{problem: "--older-than is out of range", hint: retentionHint}
		}
		l := loadConfig(flags, p.environ)
		if err := l.check("postgres", "tables", "messages", "route", "retention"); err != nil {
			return err
		}
		return p.prune(cmd.Context(), l.config, &o)
	}
	return cmd
}

func (p *process) prune(ctx context.Context, c *Config, o *pruneOptions) error {
	plan := o.plan(c)
	records := len(o.tables) == 0 && o.olderThan == 0
	if len(plan) == 0 && !(records && (c.Retention.Requests > 0 || c.Retention.DeadLetters > 0)) {
		return &usageError{problem: "nothing says how old rows become", hint: "say --older-than, or set retention.age; a table without a column of the event's time cannot be pruned"}
	}
	stream, err := newStream(c, nil, cdc.Listener{})
	if err != nil {
		return err
	}
	archive, err := stream.OpenArchive(ctx)
	if err != nil {
		return err
	}
	defer archive.Close(ctx)
	for _, table := range plan {
		if err := p.pruneTable(ctx, c, archive, table, o.dryRun); err != nil {
			return pruneError(err)
		}
	}
	if !records || o.dryRun {
		return nil
	}
	for _, r := range []struct {
		age   time.Duration
		table string
		do    func() (int64, error)
	}{
		{c.Retention.Requests, requestsTable, func() (int64, error) { return archive.PruneRequests(ctx, c.Retention.Requests) }},
		{c.Retention.DeadLetters, deadLettersTable, func() (int64, error) {
			return archive.PruneLetters(ctx, c.Retention.DeadLetters, c.Retention.Batch)
		}},
	} {
		if r.age == 0 {
			continue
		}
		n, err := r.do()
		if err != nil {
			return pruneError(err)
		}
		fmt.Fprintf(p.stdout, "%s: %d rows deleted that were older than %s\n", r.table, n, (*durationValue)(&r.age))
	}
	return nil
}

// plan says which tables are pruned and at what age.
func (o *pruneOptions) plan(c *Config) (plan []cdc.Retention) {
	chosen := map[string]bool{}
	for _, t := range o.tables {
		chosen[t] = true
	}
	if o.olderThan == 0 {
		for _, r := range c.retentions() {
			if len(chosen) == 0 || chosen[r.Table] {
				plan = append(plan, r)
			}
		}
		return plan
	}
	tables := o.tables
	if len(tables) == 0 && len(c.Tables) == 0 {
		tables = []string{c.Postgres.Table}
	} else if len(tables) == 0 {
		for i := range c.Tables {
			if c.Tables[i].knowsTime() {
				tables = append(tables, c.Tables[i].Name)
			}
		}
	}
	for _, t := range tables {
		plan = append(plan, cdc.Retention{Table: t, Age: o.olderThan})
	}
	return plan
}

func (p *process) pruneTable(ctx context.Context, c *Config, archive *cdc.Archive, table cdc.Retention, dryRun bool) error {
	walk, err := archive.Pruner(ctx, table, c.Retention.Batch)
	if err != nil {
		return err
	}
	age := (*durationValue)(&table.Age)
	if dryRun {
		n, oldest, err := walk.Count(ctx)
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%s: %d rows would be deleted that are older than %s", table.Table, n, age)
		if n > 0 && !oldest.IsZero() {
			text += ", the oldest of " + oldest.UTC().Format(time.RFC3339)
		}
		fmt.Fprintln(p.stdout, printable(text))
		return p.tellKept(ctx, walk, table)
	}
	var gone int64
	for more := true; more; {
		var done cdc.Pruned
		if done, more, err = walk.Next(ctx); err != nil {
			return fmt.Errorf("after %d rows: %w", gone, err)
		}
		gone += done.Gone
	}
	fmt.Fprintln(p.stdout, printable(fmt.Sprintf("%s: %d rows deleted that were older than %s", table.Table, gone, age)))
	return p.tellKept(ctx, walk, table)
}

// tellKept says how many old rows are still needed, so that a table that only grows has a reason.
func (p *process) tellKept(ctx context.Context, walk *cdc.Pruner, table cdc.Retention) error {
	kept, safe, slot, err := walk.Kept(ctx)
	if err != nil || kept == 0 {
		return err
	}
	fmt.Fprintln(p.stdout, printable(fmt.Sprintf("%s: %d older rows are kept: not below safe_xid %d of slot %q, or a dead letter, the backlog or a replay needs them",
		table.Table, kept, safe, slot)))
	return nil
}

// pruneError adds what to do.
func pruneError(err error) error {
	var criteria *cdc.CriteriaError
	switch {
	case errors.Is(err, cdc.ErrPruneHeld):
		return &hintError{err: err, hint: "relay status shows what the relay does. The record of a relay that is gone for good: DELETE FROM outbox.relay_state WHERE slot = '...'; its rows can then not be recovered any more"}
	case errors.As(err, &criteria):
		return &usageError{problem: criteria.Reason, hint: "relay config shows the tables and their columns"}
	}
	return err
}
