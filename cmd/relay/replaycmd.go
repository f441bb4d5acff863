package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/outbox"
)

// replayOptions are the flags of relay replay beside the configuration.
type replayOptions struct {
	criteria     cdc.Criteria
	since, until string
	xacts        string
	rate         int
	dryRun, yes  bool
	request      letterRequest
}

func (p *process) replayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Publish events again",
		Long: `Publish events again, from the rows of the outbox tables. The flags select events; several of them combine with AND,
a flag that is given twice with OR. What they select is shown first, and has to be confirmed. Then the relay that runs
is asked to publish it, beside what it publishes anyway: the records have the header relay_replay and stand outside the
order of the others. Only events that were published are selected, and none that waits as a dead letter. Events of
outbox.emit and other messages have no rows, so they cannot be published again.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	flags.VisitAll(func(f *pflag.Flag) {
		f.Hidden = f.Name != "config" && !strings.HasPrefix(f.Name, "postgres-")
	})
	var o replayOptions
	f := cmd.Flags()
	f.StringArrayVar(&o.criteria.EventIDs, "event-id", nil, "the event of this ID")
	f.StringArrayVar(&o.criteria.EventKeys, "event-key", nil, "events of this event key")
	f.StringVar(&o.criteria.AggregateType, "aggregate-type", "", "events of this aggregate type")
	f.StringArrayVar(&o.criteria.AggregateIDs, "aggregate-id", nil, "events of this aggregate")
	f.StringArrayVar(&o.criteria.EventTypes, "event-type", nil, "events of this type")
	f.StringVar(&o.since, "since", "", "events with occurred_at at this time or later, like 2026-11-30T18:00:00Z")
	f.StringVar(&o.until, "until", "", "events with occurred_at before this time")
	f.StringVar(&o.xacts, "xact-id", "", "events of this transaction, or of a range: 5000-6000, 5000- or -6000")
	f.StringArrayVar(&o.criteria.Tables, "table", nil, "events of this table")
	f.BoolVar(&o.criteria.All, "all", false, "every event that is still there")
	f.IntVar(&o.rate, "rate", defaultReplayRate, "events per second at most; 0 is no limit")
	f.BoolVar(&o.dryRun, "dry-run", false, "show what is selected and stop")
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	o.request.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		l := loadConfig(flags, p.environ)
		if err := l.check("postgres", "tables", "messages", "route"); err != nil {
			return err
		}
		return p.replay(cmd.Context(), l.config, &o)
	}
	return cmd
}

// check reads the flags that are not plain text.
func (o *replayOptions) check() (err error) {
	if o.criteria.Since, err = parseTime("--since", o.since); err != nil {
		return err
	}
	if o.criteria.Until, err = parseTime("--until", o.until); err != nil {
		return err
	}
	if o.criteria.FirstXact, o.criteria.LastXact, err = parseXacts(o.xacts); err != nil {
		return err
	}
	if err := o.criteria.Validate(); err != nil {
		return &usageError{problem: "relay replay: " + parts(err)[0].Error(), hint: "relay replay --help lists what selects events; --all is every one"}
	}
	if o.rate < 0 || o.rate > maxReplayRate {
		return &usageError{problem: "--rate is out of range", hint: fmt.Sprintf("use 1 to %d events per second, or 0 for no limit", maxReplayRate)}
	}
	if o.dryRun {
		return nil
	}
	return o.request.check()
}

func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.IsZero() {
		return t, &usageError{problem: fmt.Sprintf("%s %s is not a time", flag, quoted(text)), hint: "write it with its zone: 2026-11-30T18:00:00Z"}
	}
	return t, nil
}

// parseXacts reads a transaction ID or a range of them.
func parseXacts(text string) (first, last uint64, err error) {
	if text == "" {
		return 0, 0, nil
	}
	bad := &usageError{problem: fmt.Sprintf("--xact-id %s is neither a transaction ID nor a range", quoted(text)), hint: "write 5000, 5000-6000, 5000- or -6000; the IDs are those of column xact_id"}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	read := func(s string) uint64 {
		n, parseErr := strconv.ParseUint(s, 10, 64)
		if s != "" && (parseErr != nil || n == 0) {
			err = bad
		}
		return n
	}
	first, last = read(from), read(to)
	if err == nil && first == 0 && last == 0 {
		err = bad
	}
	return first, last, err
}

func (p *process) replay(ctx context.Context, c *Config, o *replayOptions) error {
	stream, err := newStream(c, nil, cdc.Listener{})
	if err != nil {
		return err
	}
	archive, err := stream.OpenArchive(ctx)
	if err != nil {
		return err
	}
	defer archive.Close(ctx)
	below, err := archive.SafeXID(ctx)
	if errors.Is(err, cdc.ErrNotVouched) {
		return &hintError{err: err, hint: "start relay run; what it has published can be published again a few seconds later"}
	} else if err != nil {
		return err
	}
	sel, err := archive.Survey(ctx, o.criteria, below, 3)
	if err != nil {
		return selectError(err)
	}
	if err := printSelection(p.stdout, c, o, below, &sel, time.Now()); err != nil {
		return fmt.Errorf("print selection: %w", err)
	}
	if sel.Events == 0 || o.dryRun {
		return nil
	}
	if err := p.confirmReplay(sel.Events, o); err != nil {
		return err
	}
	archive.Close(ctx)
	cfg, err := c.Postgres.ConnConfig()
	if err != nil {
		return err
	}
	cfg.RuntimeParams["application_name"] = "relay replay"
	cfg.RuntimeParams["search_path"] = "pg_catalog"
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler in transaction mode may stand between
	db, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer db.Close(context.WithoutCancel(ctx))
	args := replayArgs{Criteria: o.criteria, Below: below, Rate: o.rate, Total: sel.Events}
	if args.Rate == 0 {
		args.Rate = -1
	}
	id, err := submitRequest(ctx, db, c.Postgres.Slot, "replay", args, o.request.actor, o.request.reason)
	if err != nil {
		return err
	}
	return p.followReplay(ctx, db, c, id, o.request.wait)
}

func selectError(err error) error {
	var criteria *cdc.CriteriaError
	switch {
	case errors.As(err, &criteria):
		return &usageError{problem: criteria.Reason, hint: "relay config shows the tables and their columns; --table chooses one"}
	case errors.Is(err, cdc.ErrTooSlow):
		return &hintError{err: err, hint: "select fewer events, by --event-id or --event-key, which have an index, or make one for the column"}
	}
	return err
}

// confirmReplay asks unless told not to.
func (p *process) confirmReplay(events int64, o *replayOptions) error {
	if o.yes {
		return nil
	}
	if !isTerminalInput(p.stdin) {
		return &usageError{problem: "there is nobody to ask", hint: "look at relay replay --dry-run, then say --yes"}
	}
	word := fmt.Sprint(events)
	return ask(p.stdin, p.stdout, fmt.Sprintf("To publish them again, type their number, %s: ", word), word)
}

// followReplay shows how a request goes on. An interrupt ends the showing and not the request.
func (p *process) followReplay(ctx context.Context, db *pgx.Conn, c *Config, id int64, wait bool) error {
	hint := fmt.Sprintf("relay requests show %d tells how it goes, relay requests cancel %d ends it", id, id)
	if !wait {
		fmt.Fprintf(p.stdout, "request %d: the relay of slot %s is asked to publish them again\n%s\n", id, c.Postgres.Slot, hint)
		if !relayHolds(ctx, db, id) {
			fmt.Fprintf(p.stderr, "relay: no relay holds the slot now; the next one takes the request up\n")
		}
		return nil
	}
	watching, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := awaitRequest(watching, db, id, p.stdout, newReplayWatch(time.Now).describe)
	if err != nil && watching.Err() != nil && ctx.Err() == nil {
		fmt.Fprintf(p.stdout, "request %d goes on without you; %s\n", id, hint)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "request %d: done\n", id)
	return nil
}

// replayWatch puts the progress of a replay into words.
type replayWatch struct {
	now   func() time.Time
	began time.Time // when the first progress was seen
	from  int64     // how far it had come then
	spoke time.Time
	said  string
}

func newReplayWatch(now func() time.Time) *replayWatch { return &replayWatch{now: now} }

// describe speaks once a second, and when everything is done.
func (w *replayWatch) describe(progress json.RawMessage) string {
	var p replayProgress
	if json.Unmarshal(progress, &p) != nil || p.Below == 0 {
		return ""
	}
	now, done := w.now(), p.done()
	if w.began.IsZero() {
		w.began, w.from = now, done
	}
	if w.said != "" && done < p.Total && now.Sub(w.spoke) < time.Second {
		return w.said
	}
	text := p.describe()
	if passed := now.Sub(w.began).Seconds(); passed >= 1 && done > w.from && done < p.Total {
		rate := float64(done-w.from) / passed
		text += fmt.Sprintf(", %.0f/s, %s left", rate, about(float64(p.Total-done)/rate))
	}
	w.spoke, w.said = now, text
	return text
}

func (p *replayProgress) done() int64 { return p.Published + p.Refused + p.Gone }

// describe says how far it has come.
func (p *replayProgress) describe() string {
	text := fmt.Sprintf("%d of %d published", p.Published, max(p.Total, p.done()))
	if p.Refused > 0 {
		text += fmt.Sprintf(", %d refused", p.Refused)
	}
	if p.Gone > 0 {
		text += fmt.Sprintf(", the rows of %d are gone", p.Gone)
	}
	return text
}

// printSelection shows what is selected and what would become of it.
func printSelection(w io.Writer, c *Config, o *replayOptions, below uint64, sel *cdc.Selection, now time.Time) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", label, printable(fmt.Sprintf(format, args...)))
	}
	row("slot", "%s, published are all transactions below %d", c.Postgres.Slot, below)
	if sel.Events == 0 {
		row("events", "none")
		if sel.Withheld > 0 {
			row("", "%d that these flags select are not known to be published yet, or wait as dead letters", sel.Withheld)
		}
		return tw.Flush()
	}
	row("events", "%d, with %s of values", sel.Events, size(&sel.Bytes))
	if !sel.Oldest.IsZero() {
		row("oldest", "%s, %s ago", sel.Oldest.UTC().Format(time.RFC3339), now.Sub(sel.Oldest).Round(time.Second))
		row("newest", "%s, %s ago", sel.Newest.UTC().Format(time.RFC3339), now.Sub(sel.Newest).Round(time.Second))
	}
	for _, k := range sel.Kinds {
		row("  "+printable(strings.Join(strings.Fields(strings.ReplaceAll(k.Table, `"`, "")+" "+k.AggregateType+" "+k.EventType), " ")), "%d", k.Events)
	}
	routes := sinkConfig(c)
	event := func(label string, e *outbox.Committed) {
		topic, why := routes.TopicOf(e)
		if why != "" {
			topic = "no topic: " + why
		}
		row(label, "%s %s %s, to %s", e.ID, e.OccurredAt, e.Key(), topic)
	}
	for i := range sel.First {
		event("first", &sel.First[i])
	}
	if sel.Events > int64(len(sel.First)) {
		for i := range sel.Last {
			event("last", &sel.Last[i])
		}
	}
	if o.rate > 0 {
		row("then", "they are published again, %d a second at most: %s", o.rate, about(float64(sel.Events)/float64(o.rate)))
	} else {
		row("then", "they are published again, as fast as it goes")
	}
	return tw.Flush()
}
