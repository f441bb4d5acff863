package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ledgerTimeout bounds connecting to the ledger.
const ledgerTimeout = 10 * time.Second

func (p *process) ledgerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ledger",
		Short: "Look into the delivery ledger, decide and keep house",
		Long: `Look into the delivery ledger, decide what is open, and keep house: one delivery for each business event,
recipient and channel. The ledger is in the database of ledger.url, by default that of postgres.url. Looking needs the
rights of the ledger's reader role, deciding and housekeeping those of its operator role.`,
		Args: noUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.ledgerShowCommand(), p.ledgerListCommand(), p.ledgerResolveCommand(), p.ledgerRedriveCommand(),
		p.ledgerSweepCommand(), p.ledgerPurgeCommand(), p.ledgerStatsCommand(), p.ledgerChannelsCommand())
	return cmd
}

// ledgerAction is what a subcommand does with its connection.
type ledgerAction struct {
	use, short, long string
	args             cobra.PositionalArgs
	need             ledgerNeed
	// do runs with a connection of its own. Its errors may be PostgreSQL's: they are explained by the caller.
	do func(ctx context.Context, conn *pgx.Conn, args []string) error
	// check, if set, is asked before anything connects.
	check func(args []string) error
}

// ledgerSubcommand builds a subcommand that needs the ledger's database.
func (p *process) ledgerSubcommand(a ledgerAction) *cobra.Command {
	cmd := &cobra.Command{Use: a.use, Short: a.short, Long: a.long, Args: a.args}
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		// The others are read all the same, so that one configuration serves every command.
		f.Hidden = f.Name != "config" && !strings.HasPrefix(f.Name, "ledger-")
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.checkLedger(); err != nil {
			return err
		}
		if a.check != nil {
			if err := a.check(args); err != nil {
				return err
			}
		}
		conn, err := connectLedger(cmd.Context(), l.config)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(cmd.Context()))
		if err := a.do(cmd.Context(), conn, args); err != nil {
			return explainLedger(cmd.Context(), conn, a.need, err)
		}
		return nil
	}
	return cmd
}

func connectLedger(ctx context.Context, c *Config) (*pgx.Conn, error) {
	conf, err := c.LedgerConn()
	if err != nil {
		return nil, err
	}
	// Behind a pooler in transaction mode nothing may be prepared.
	conf.DefaultQueryExecMode = pgx.QueryExecModeExec
	if conf.RuntimeParams["application_name"] == "" {
		conf.RuntimeParams["application_name"] = "relay ledger"
	}
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, &hintError{
			err:  fmt.Errorf("connect to the ledger: %w", err),
			hint: "ledger.url says where it is, by default postgres.url; relay config shows both",
		}
	}
	return conn, nil
}

// readLedger runs questions in one snapshot, so that their answers fit together.
func readLedger(ctx context.Context, conn *pgx.Conn, f func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// deliveryFlags pick deliveries of one event.
type deliveryFlags struct {
	set                        *pflag.FlagSet
	tenant, recipient, channel string
}

func (f *deliveryFlags) add(cmd *cobra.Command) {
	f.set = cmd.Flags()
	f.set.StringVar(&f.tenant, "tenant", "", "whose event it is; left out in an application without tenants")
	f.set.StringVar(&f.recipient, "recipient", "", "this recipient alone, like user:42")
	f.set.StringVar(&f.channel, "channel", "", "this channel alone, like email")
}

// given returns the text of a flag, nil if it was left out: an empty recipient is that of a plain listener.
func given(set *pflag.FlagSet, name string) *string {
	if !set.Changed(name) {
		return nil
	}
	text, err := set.GetString(name)
	if err != nil {
		return nil
	}
	return &text
}

// matches reports whether a delivery is one of those that are picked.
func (f *deliveryFlags) matches(recipient, channel string) bool {
	return (!f.set.Changed("recipient") || f.recipient == recipient) && (!f.set.Changed("channel") || f.channel == channel)
}

// oneKey wants the event key as the only argument.
func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] != "" {
		return nil
	}
	problem := fmt.Sprintf("%s takes one event key, and got %d arguments", cmd.Name(), len(args))
	return &usageError{problem: problem, hint: fmt.Sprintf("%s scheduled-post-published:42; relay ledger list shows keys", cmd.CommandPath())}
}

// timeText prints a time of the database's for a person.
func timeText(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// dash stands for what is not there.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
