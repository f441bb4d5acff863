package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/migrations"
)

func (p *process) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create and update tables, publication and slot",
		Long: `Create and update what a relay needs in the database: tables, publication and replication slot. This needs a
role that may create a schema and a publication, and replicate; the relay's own role may not. The SQL can also be
printed and applied by other means: what is there already is left as it is.

The delivery ledger is a set of its own, for it belongs in the database of those who consume the events: with
--only ledger everything here is about schema ledger in the database of ledger.url, and the outbox needs no settings.`,
		Args: noUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var only string
	cmd.PersistentFlags().StringVar(&only, "only", "outbox", "set of tables: outbox or ledger")
	var tablesOnly bool
	up := p.migrateAction("up", "Apply what the database has not seen yet, then make publication and slot", &only, func(ctx context.Context, c *Config, t migrateTarget) error {
		return p.migrateUp(ctx, c, t, tablesOnly)
	})
	up.Flags().BoolVar(&tablesOnly, "tables-only", false, "leave publication and slot to relay run --ensure")
	status := p.migrateAction("status", "List the migrations and when they were applied", &only, p.migrateStatus)
	cmd.AddCommand(up, status, p.migratePrintCommand(&only))
	return cmd
}

// migrateTarget is a set of migrations and how to reach the database that it is for.
type migrateTarget struct {
	set    migrations.Set
	conn   func() (*pgx.ConnConfig, error)
	ledger bool // no publication and no slot belong to it
}

// migrationSet finds the set that --only names.
func migrationSet(only string) (migrations.Set, error) {
	names := map[string]migrations.Set{"outbox": migrations.Outbox(), "ledger": migrations.Ledger()}
	set, ok := names[only]
	if !ok {
		return set, &usageError{problem: fmt.Sprintf("--only %s is not a set of tables", word(only)), hint: "use outbox or ledger"}
	}
	return set, nil
}

// migrateAction builds a subcommand that needs the database.
func (p *process) migrateAction(name, short string, only *string, do func(context.Context, *Config, migrateTarget) error) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Args: noArguments}
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		// The others are read all the same, so that one configuration serves every command.
		f.Hidden = f.Name != "config" && f.Name != "backlog" && !strings.HasPrefix(f.Name, "postgres-") && !strings.HasPrefix(f.Name, "ledger-")
	})
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		set, err := migrationSet(*only)
		if err != nil {
			return err
		}
		l := loadConfig(flags, p.environ)
		t := migrateTarget{set: set, conn: l.config.Postgres.ConnConfig, ledger: set == migrations.Ledger()}
		if t.ledger {
			t.conn = l.config.LedgerConn
			err = l.checkLedger()
		} else {
			err = l.check("postgres", "backlog", "tables")
		}
		if err != nil {
			return err
		}
		return do(cmd.Context(), l.config, t)
	}
	return cmd
}

func (p *process) migrateUp(ctx context.Context, c *Config, t migrateTarget, tablesOnly bool) error {
	conn, err := t.conn()
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(p.stdout, format+"\n", args...) }
	applied, err := migrations.Up(ctx, conn, t.set)
	if err != nil {
		return err
	}
	for _, m := range applied {
		say("applied %s/%s", m.Set, m.File)
	}
	if len(applied) == 0 {
		say("schema %s is up to date", t.set)
	}
	if tablesOnly || t.ledger {
		return nil
	}
	stream, err := newStream(c, nil, cdc.Listener{State: func(s state.Status) { fmt.Fprintf(p.stderr, "relay: %s\n", s.Reason) }})
	if err != nil {
		return err
	}
	made, err := stream.Ensure(ctx)
	if made.Publication {
		say("made publication %s for table %s", c.Postgres.Publication, c.tableNames())
	}
	if err != nil {
		return err
	}
	if made.Slot {
		say("made slot %s: PostgreSQL keeps WAL for it from now on, so start relay run soon", c.Postgres.Slot)
	}
	if made == (cdc.Made{}) {
		say("publication %s and slot %s are there", c.Postgres.Publication, c.Postgres.Slot)
	}
	return nil
}

func (p *process) migrateStatus(ctx context.Context, _ *Config, t migrateTarget) error {
	conn, err := t.conn()
	if err != nil {
		return err
	}
	list, err := migrations.Status(ctx, conn, t.set)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	for _, m := range list {
		applied := "not applied"
		if !m.AppliedAt.IsZero() {
			applied = "applied " + m.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(tw, "%s/%s\t%s\n", m.Set, m.File, applied)
	}
	return tw.Flush()
}

func (p *process) migratePrintCommand(only *string) *cobra.Command {
	cmd := &cobra.Command{Use: "print", Short: "Print the SQL", Args: noArguments}
	roles := cmd.Flags().Bool("roles", false, "print the script that makes the roles and grants their rights instead")
	cmd.RunE = func(*cobra.Command, []string) error {
		set, err := migrationSet(*only)
		switch {
		case err != nil:
			return err
		case *roles:
			return set.PrintRoles(p.stdout)
		}
		return set.Print(p.stdout)
	}
	return cmd
}
