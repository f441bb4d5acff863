package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
)

// recoverOptions are the flags of relay recover beside the configuration.
type recoverOptions struct {
	since       string
	all         bool
	nothing     bool
	dryRun, yes bool
}

func (p *process) recoverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make a lost slot anew and publish what may be missing",
		Long: `Make a lost slot anew and publish what may be missing, from the rows of the outbox table. It is the way out of
the states slot_missing, slot_lost, slot_recreated and history_changed, and of publication_mismatch where the
publication is in order again and rows may be missing all the same. What it is going to do is shown first, and
has to be confirmed. Rows that were published a moment before the slot was lost are published again; consumers tell
by the event ID. A relay that runs meanwhile goes on by itself.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && !strings.HasPrefix(f.Name, "postgres-")
	})
	var o recoverOptions
	cmd.Flags().StringVar(&o.since, "since", "", "take the rows of this time and later, like 2026-11-30T18:00:00Z; default: the rows of all transactions that are not known to be published")
	cmd.Flags().BoolVar(&o.all, "all", false, "take every row")
	cmd.Flags().BoolVar(&o.nothing, "nothing-missing", false, "only for publication_mismatch: vouch that no row is missing; the slot stays and nothing is published again")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would be done and stop")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.check("postgres", "backlog"); err != nil {
			return err
		}
		return p.recover(cmd.Context(), l.config, o)
	}
	return cmd
}

func (p *process) recover(ctx context.Context, c *Config, o recoverOptions) error {
	if o.all && o.since != "" {
		return &usageError{problem: "--all and --since are given", hint: "choose one"}
	}
	if o.nothing && (o.all || o.since != "") {
		return &usageError{problem: "--nothing-missing is given with --all or --since", hint: "choose one"}
	}
	want := cdc.Scope{All: o.all || o.nothing} // with nothing missing the scope does not matter
	if o.since != "" {
		var err error
		if want.Since, err = time.Parse(time.RFC3339, o.since); err != nil {
			return &usageError{problem: fmt.Sprintf("--since %s is not a time", quoted(o.since)), hint: "write it with its zone: 2026-11-30T18:00:00Z"}
		}
	}
	stream, err := newStream(c, nil, cdc.Listener{State: func(s state.Status) { fmt.Fprintf(p.stderr, "relay: %s\n", s.Reason) }})
	if err != nil {
		return err
	}
	plan, err := stream.PlanRecovery(ctx, want)
	if err != nil {
		return recoverHint(err)
	}
	if o.nothing {
		return p.vouch(ctx, c, stream, plan, o)
	}
	if err := printPlan(p.stdout, c, plan, time.Now()); err != nil {
		return fmt.Errorf("print plan: %w", err)
	}
	if o.dryRun {
		return nil
	}
	if err := p.confirmRecovery(plan, o); err != nil {
		return err
	}
	done, err := stream.Recover(ctx, plan, actor())
	if err != nil {
		return recoverHint(err)
	}
	fmt.Fprintf(p.stdout, "made slot %s at %s, incarnation %d; %d events go first\n", c.Postgres.Slot, done.From, done.Incarnation, done.Events)
	return nil
}

// confirmRecovery asks unless told not to.
func (p *process) confirmRecovery(plan cdc.Plan, o recoverOptions) error {
	if o.yes {
		return nil
	}
	if !isTerminalInput(p.stdin) {
		return &usageError{problem: "there is nobody to ask", hint: "look at relay recover --dry-run, then say --yes"}
	}
	word := plan.Record.Confirmed.String()
	return ask(p.stdin, p.stdout, fmt.Sprintf("To go on, type the confirmed position, %s: ", word), word)
}

// vouch goes on with the slot as it is.
func (p *process) vouch(ctx context.Context, c *Config, stream *cdc.Stream, plan cdc.Plan, o recoverOptions) error {
	if plan.Cause != state.PublicationMismatch {
		return &hintError{err: fmt.Errorf("slot %q has another fault: %s", c.Postgres.Slot, plan.Cause), hint: "leave --nothing-missing out"}
	}
	fmt.Fprintf(p.stdout, "publication %s was changed; slot %s stays at %s and no event is published again\n", printable(c.Postgres.Publication), c.Postgres.Slot, plan.SlotLSN)
	if o.dryRun {
		return nil
	}
	if err := p.confirmRecovery(plan, o); err != nil {
		return err
	}
	if err := stream.NothingMissing(ctx, plan, actor()); err != nil {
		return recoverHint(err)
	}
	fmt.Fprintln(p.stdout, "noted that nothing is missing; a relay that waits goes on within 30 s")
	return nil
}

// recoverHint adds what to do.
func recoverHint(err error) error {
	hint := ""
	switch {
	case errors.Is(err, cdc.ErrSlotInUse):
		hint = "the relay that streams needs no recovery; if it is not yours, stop it"
	case errors.Is(err, cdc.ErrNothingToRecover):
		hint = "start relay run. To make a sound slot anew all the same, drop it first: SELECT pg_drop_replication_slot(...). For a first start see relay migrate up and the setting backlog"
	case errors.Is(err, cdc.ErrScopeNeeded):
		hint = "say --since with a time before which everything was published, or --all; with --dry-run it only shows how many rows that is"
	case errors.Is(err, cdc.ErrPlanOutdated):
		hint = "something changed since the plan was shown: run relay recover again"
	default:
		return err
	}
	return &hintError{err: err, hint: hint}
}

// printPlan shows what is known and what a recovery would do.
func printPlan(w io.Writer, c *Config, plan cdc.Plan, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", label, printable(fmt.Sprintf(format, args...)))
	}
	row("state", "%s", plan.Cause)
	row("confirmed", "%s, incarnation %d, server %s", plan.Record.Confirmed, plan.Record.Incarnation, plan.Record.SystemIdentifier)
	slot := "does not exist"
	if plan.SlotLSN != 0 {
		slot = fmt.Sprintf("stands at %s and is dropped", plan.SlotLSN)
	}
	row("slot", "%s on server %s: %s", c.Postgres.Slot, plan.SystemID, slot)
	row("scope", "%s", plan.Scope)
	if plan.Listed > 0 {
		row("left over", "%d events of the list before, which go first", plan.Listed)
	}
	row("events", "%d", plan.Events)
	if !plan.Oldest.IsZero() {
		row("oldest", "%s, %s ago", plan.Oldest.UTC().Format(time.RFC3339), now.Sub(plan.Oldest).Round(time.Second))
		row("newest", "%s, %s ago", plan.Newest.UTC().Format(time.RFC3339), now.Sub(plan.Newest).Round(time.Second))
	}
	for _, t := range plan.Types {
		row("  "+printable(t.AggregateType), "%d", t.Events)
	}
	row("then", "a new slot is made, incarnation %d; these events are published by time, then what commits from now on", plan.Record.Incarnation+1)
	return tw.Flush()
}

// ask wants the word typed.
func ask(in io.Reader, out io.Writer, question, word string) error {
	fmt.Fprint(out, question)
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read answer: %w", err)
	}
	if strings.TrimSpace(line) != word {
		return errors.New("not confirmed: nothing was changed")
	}
	return nil
}

// isTerminalInput is isTerminal for what is read. The null device, which services are started with, is none.
func isTerminalInput(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok || !isTerminal(f) {
		return false
	}
	in, err := f.Stat()
	null, nullErr := os.Stat(os.DevNull)
	return err == nil && (nullErr != nil || !os.SameFile(in, null))
}

// actor is who runs this process, for the audit.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}
