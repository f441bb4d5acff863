package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// deadLettersTimeout bounds connecting to the database.
const deadLettersTimeout = 10 * time.Second

func (p *process) deadLettersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead-letters",
		Short: "Show events that could not be published, and decide about them",
		Long: `Show events that could not be published, and decide about them. park, requeue and discard are requests to the relay
that runs: only that one publishes. They need a reason, and are kept with it in outbox.requests. The settings postgres.* say
where the database is; the role needs the rights of an operator (relay migrate print --roles).`,
		Args: noUnknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.deadLettersListCommand(), p.deadLettersShowCommand(), p.deadLettersParkCommand(),
		p.deadLettersRequeueCommand(), p.deadLettersDiscardCommand())
	return cmd
}

// withDatabase gives a command the flags of the configuration, and its work a connection.
func (p *process) withDatabase(cmd *cobra.Command, check func(args []string) error, do func(ctx context.Context, db *pgx.Conn, c *Config, args []string) error) {
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && !strings.HasPrefix(f.Name, "postgres-")
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(args); err != nil {
			return err
		}
		l := loadConfig(flags, p.environ)
		if err := l.check("postgres"); err != nil {
			return err
		}
		cfg, err := l.config.Postgres.ConnConfig()
		if err != nil {
			return err
		}
		cfg.RuntimeParams["application_name"] = "relay dead-letters"
		cfg.RuntimeParams["search_path"] = "pg_catalog"
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler in transaction mode may stand between
		ctx, cancel := context.WithTimeout(cmd.Context(), deadLettersTimeout)
		defer cancel()
		db, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return &hintError{err: fmt.Errorf("connect to PostgreSQL: %w", err), hint: "check postgres.url, and that the role may log in"}
		}
		defer db.Close(context.WithoutCancel(ctx))
		return do(cmd.Context(), db, l.config, args)
	}
}

// letterRequest is how park, requeue and discard ask the relay.
type letterRequest struct {
	reason, actor string
	wait          bool
}

func (r *letterRequest) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.reason, "reason", "", "why; required, and kept")
	cmd.Flags().StringVar(&r.actor, "actor", actor(), "who asks")
	cmd.Flags().BoolVar(&r.wait, "wait", false, "show how it goes until it is over")
}

func (r *letterRequest) check() error {
	switch {
	case strings.TrimSpace(r.reason) == "":
		return &usageError{problem: "--reason is missing", hint: "say why in a few words: it is kept with the request"}
	case len([]rune(r.reason)) > 1000:
		return &usageError{problem: "--reason has more than 1000 characters", hint: "say it in fewer words"}
	case strings.TrimSpace(r.actor) == "" || len([]rune(r.actor)) > 255:
		return &usageError{problem: "--actor is empty or has more than 255 characters", hint: "leave it out to give your user name"}
	}
	return nil
}

// submit asks, and waits if that is wanted.
func (p *process) submit(ctx context.Context, db *pgx.Conn, c *Config, kind string, args letterArgs, r letterRequest) error {
	id, err := submitRequest(ctx, db, c.Postgres.Slot, kind, args, r.actor, r.reason)
	if err != nil {
		return err
	}
	if !r.wait {
		fmt.Fprintf(p.stdout, "request %d: the relay of slot %s is asked to %s; --wait shows how it goes\n", id, c.Postgres.Slot, kind)
		if !relayHolds(ctx, db, id) {
			fmt.Fprintf(p.stderr, "relay: no relay holds the slot now; the next one takes the request up\n")
		}
		return nil
	}
	if err := awaitRequest(ctx, db, id, p.stdout, describeLetters); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "request %d: done\n", id)
	return nil
}

// describeLetters says how far a request about letters has come.
func describeLetters(progress json.RawMessage) string {
	var l letterProgress
	if json.Unmarshal(progress, &l) != nil {
		return ""
	}
	var said []string
	if l.Published > 0 {
		said = append(said, fmt.Sprintf("%d published", l.Published))
	}
	if l.Discarded > 0 {
		said = append(said, fmt.Sprintf("%d discarded", l.Discarded))
	}
	if l.Refused > 0 {
		said = append(said, fmt.Sprintf("%d refused and parked again", l.Refused))
	}
	if l.Note != "" {
		said = append(said, l.Note)
	}
	return strings.Join(said, ", ")
}

func (p *process) deadLettersParkCommand() *cobra.Command {
	var r letterRequest
	cmd := &cobra.Command{
		Use:   "park EVENT_ID",
		Short: "Make a dead letter of the event that the relay is halted at",
		Long: `Make a dead letter of the event that the relay is halted at, and go on. relay status names the event. Whatever the policy,
its key is not held.`,
	}
	r.flags(cmd)
	p.withDatabase(cmd, func(args []string) error {
		if len(args) != 1 || args[0] == "" {
			return &usageError{problem: "park takes the ID of one event", hint: "relay status names it, in the reason of state halted"}
		}
		return r.check()
	}, func(ctx context.Context, db *pgx.Conn, c *Config, args []string) error {
		return p.submit(ctx, db, c, "park", letterArgs{Event: args[0]}, r)
	})
	return cmd
}

// letterChoice is which letters a request is about, as flags say it.
type letterChoice struct {
	key, keyHex, topic string
}

func (o *letterChoice) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.key, "key", "", "those of this record key")
	cmd.Flags().StringVar(&o.keyHex, "key-hex", "", "the same, for a key that is no text")
	cmd.Flags().StringVar(&o.topic, "all-of-topic", "", "those that were meant for this topic")
}

// args checks the choice.
func (o *letterChoice) args(ids []string) (a letterArgs, err error) {
	for _, s := range ids {
		id, err := strconv.ParseInt(s, 10, 64)
		if err != nil || id <= 0 {
			return a, &usageError{problem: word(s) + " is not the number of a letter", hint: "relay dead-letters list shows the numbers"}
		}
		a.IDs = append(a.IDs, id)
	}
	if a.Key, err = parseKey(o.key, o.keyHex); err != nil {
		return a, err
	}
	if o.topic != "" {
		a.Topic = &o.topic
	}
	switch {
	case len(ids) == 0 && a.Key == nil && a.Topic == nil:
		return a, &usageError{problem: "no letter is named", hint: "give numbers, --key or --all-of-topic"}
	case len(ids) > 0 && (a.Key != nil || a.Topic != nil):
		return a, &usageError{problem: "numbers and --key or --all-of-topic are given", hint: "choose one"}
	}
	return a, nil
}

// bound keeps a request from what is parked while it goes on.
func (a *letterArgs) bound(ctx context.Context, db *pgx.Conn, slot string) error {
	err := db.QueryRow(ctx, `select coalesce(max(id), 0) from outbox.dead_letters where slot = $1`, slot).Scan(&a.Upto)
	return tableError("read dead letters", err)
}

func (p *process) deadLettersRequeueCommand() *cobra.Command {
	var r letterRequest
	var o letterChoice
	var to string
	var asked letterArgs
	cmd := &cobra.Command{
		Use:   "requeue [NUMBER ...]",
		Short: "Publish dead letters after all",
		Long: `Publish dead letters after all, when the cause is gone. A letter whose key is held takes those that wait behind it along, in
their order; the key is free then. The records carry the header relay_replay. One that is refused again stays parked. After a
crash in the middle a record may be there twice, and none is missing.`,
	}
	r.flags(cmd)
	o.flags(cmd)
	cmd.Flags().StringVar(&to, "topic", "", "publish to this topic instead")
	p.withDatabase(cmd, func(args []string) (err error) {
		if asked, err = o.args(args); err != nil {
			return err
		}
		if to != "" && !isTopic(to) {
			return &usageError{problem: fmt.Sprintf("--topic %s is not a topic name", quoted(to)), hint: topicHint}
		}
		asked.To = to
		return r.check()
	}, func(ctx context.Context, db *pgx.Conn, c *Config, _ []string) error {
		if err := asked.bound(ctx, db, c.Postgres.Slot); err != nil {
			return err
		}
		return p.submit(ctx, db, c, "requeue", asked, r)
	})
	return cmd
}

func (p *process) deadLettersDiscardCommand() *cobra.Command {
	var r letterRequest
	var o letterChoice
	var asked letterArgs
	cmd := &cobra.Command{
		Use:   "discard [NUMBER ...]",
		Short: "Give dead letters up: they are never published",
		Long: `Give dead letters up: they are never published, and stay in the table. Where others of their key wait behind one, these are
published then. With --key or --all-of-topic those that wait are given up too.`,
	}
	r.flags(cmd)
	o.flags(cmd)
	p.withDatabase(cmd, func(args []string) (err error) {
		if asked, err = o.args(args); err != nil {
			return err
		}
		return r.check()
	}, func(ctx context.Context, db *pgx.Conn, c *Config, _ []string) error {
		if err := asked.bound(ctx, db, c.Postgres.Slot); err != nil {
			return err
		}
		return p.submit(ctx, db, c, "discard", asked, r)
	})
	return cmd
}
