package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// ledgerPage is one page of relay ledger list. Its fields are API.
type ledgerPage struct {
	Deliveries []ledgerLine `json:"deliveries"`
	NextAfter  *int64       `json:"next_after"` // --after of the next page; null: this is the last
}

// ledgerLine is one delivery in a list.
type ledgerLine struct {
	ID          int64      `json:"id"`
	Tenant      string     `json:"tenant"`
	EventKey    string     `json:"event_key"`
	EventType   *string    `json:"event_type"` // null: nobody remembered the event
	Recipient   string     `json:"recipient"`
	Channel     string     `json:"channel"`
	State       string     `json:"state"`
	Attempts    int        `json:"attempts"`
	MaxAttempts int        `json:"max_attempts"`
	CreatedAt   time.Time  `json:"created_at"`
	DueAt       *time.Time `json:"due_at"`
	DoneAt      *time.Time `json:"done_at"`
	Worker      *string    `json:"worker"`
	Reason      *string    `json:"reason"`
}

// listFilter picks deliveries.
type listFilter struct {
	states                                []string
	tenant, channel, recipient, eventType *string
	olderThan                             time.Duration
	after                                 int64
	limit                                 int
}

func ledgerStates() []string {
	return []string{"pending", "reserved", "failed", "uncertain", "delivered", "skipped", "dead"}
}

func (p *process) ledgerListCommand() *cobra.Command {
	var f listFilter
	var asJSON bool
	var cmd *cobra.Command
	cmd = p.ledgerSubcommand(ledgerAction{
		use: "list", short: "List deliveries, oldest first", args: noArguments, need: needReader,
		long: `List deliveries, oldest first, those that match all that is asked for. The last line says how to get the next page.`,
		check: func([]string) error {
			f.tenant, f.channel = given(cmd.Flags(), "tenant"), given(cmd.Flags(), "channel")
			f.recipient, f.eventType = given(cmd.Flags(), "recipient"), given(cmd.Flags(), "event-type")
			return f.check()
		},
		do: func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			page, now, err := listDeliveries(ctx, conn, &f)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(p.stdout, page)
			}
			return page.print(p.stdout, now)
		},
	})
	flags := cmd.Flags()
	flags.StringSliceVar(&f.states, "state", nil, "in one of these states: "+strings.Join(ledgerStates(), ", "))
	flags.String("tenant", "", "of this tenant; left out: of all")
	flags.String("channel", "", "on this channel")
	flags.String("recipient", "", "for this recipient, like user:42")
	flags.String("event-type", "", "of events of this type, as far as they are remembered")
	flags.DurationVar(&f.olderThan, "older-than", 0, "made longer ago than this, like 90m")
	flags.Int64Var(&f.after, "after", 0, "begin after this id: the next page")
	flags.IntVar(&f.limit, "limit", 50, "most deliveries on a page")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (f *listFilter) check() error {
	for _, s := range f.states {
		if !slices.Contains(ledgerStates(), s) {
			return &usageError{problem: fmt.Sprintf("--state %s is not a state", word(s)), hint: suggest(s, ledgerStates(), "the states are "+strings.Join(ledgerStates(), ", "))}
		}
	}
	if f.olderThan < 0 {
		return &usageError{problem: "--older-than is negative", hint: "write how long ago, like 90m or 24h"}
	}
	return checkLimit(f.limit)
}

// listDeliveries reads a page. now is the database's clock.
func listDeliveries(ctx context.Context, conn *pgx.Conn, f *listFilter) (page *ledgerPage, now time.Time, err error) {
	const query = `SELECT d.id, d.tenant, d.event_key, (SELECT e.event_type FROM ledger.events e WHERE e.tenant = d.tenant AND e.event_key = d.event_key),
    d.recipient, d.channel, d.state, d.attempts, d.max_attempts, d.created_at, d.due_at, d.done_at, d.worker, d.reason
FROM ledger.notification_dispatches d
WHERE d.id > $1::bigint AND ($2::text[] IS NULL OR d.state = ANY ($2::text[])) AND ($3::text IS NULL OR d.tenant = $3::text)
    AND ($4::text IS NULL OR d.channel = $4::text) AND ($5::text IS NULL OR d.recipient = $5::text)
    AND ($6::text IS NULL OR EXISTS (SELECT FROM ledger.events e WHERE e.tenant = d.tenant AND e.event_key = d.event_key AND e.event_type = $6::text))
    AND d.created_at < $7::timestamptz - $8::float8 * interval '1 second'
ORDER BY d.id LIMIT $9::int`
	page = &ledgerPage{Deliveries: []ledgerLine{}}
	err = readLedger(ctx, conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		until := now
		if f.olderThan == 0 {
			until = now.Add(time.Hour) // none is left out
		}
		rows, err := tx.Query(ctx, query, f.after, f.states, f.tenant, f.channel, f.recipient, f.eventType, until, f.olderThan.Seconds(), f.limit+1)
		if err != nil {
			return err
		}
		page.Deliveries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d ledgerLine, err error) {
			return d, row.Scan(&d.ID, &d.Tenant, &d.EventKey, &d.EventType, &d.Recipient, &d.Channel, &d.State, &d.Attempts, &d.MaxAttempts,
				&d.CreatedAt, &d.DueAt, &d.DoneAt, &d.Worker, &d.Reason)
		})
		return err
	})
	if err != nil {
		return nil, now, err
	}
	if len(page.Deliveries) > f.limit {
		page.Deliveries = page.Deliveries[:f.limit]
		page.NextAfter = &page.Deliveries[f.limit-1].ID
	}
	return page, now, nil
}

// print writes the page for a person.
func (l *ledgerPage) print(w io.Writer, now time.Time) error {
	if len(l.Deliveries) == 0 {
		_, err := fmt.Fprintln(w, "no such delivery")
		return err
	}
	tenants := slices.ContainsFunc(l.Deliveries, func(d ledgerLine) bool { return d.Tenant != "" })
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cells := func(cells ...string) {
		for i, c := range cells {
			cells[i] = printable(c)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	head := []string{"ID", "STATE", "EVENT", "RECIPIENT", "CHANNEL", "TYPE", "ATTEMPTS", "AGE", "DUE", "REASON"}
	if tenants {
		head = slices.Insert(head, 2, "TENANT")
	}
	cells(head...)
	for _, d := range l.Deliveries {
		due := "-"
		if d.DueAt != nil {
			if due = "now"; d.DueAt.After(now) {
				due = "in " + span(d.DueAt.Sub(now).Round(time.Second))
			}
		}
		line := []string{fmt.Sprint(d.ID), d.State, d.EventKey, dash(d.Recipient), d.Channel, dash(text(d.EventType)),
			fmt.Sprintf("%d/%d", d.Attempts, d.MaxAttempts), span(max(0, now.Sub(d.CreatedAt)).Round(time.Second)), due, dash(text(d.Reason))}
		if tenants {
			line = slices.Insert(line, 2, dash(d.Tenant))
		}
		cells(line...)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if l.NextAfter != nil {
		_, err := fmt.Fprintf(w, "there are more: the same with --after %d\n", *l.NextAfter)
		return err
	}
	return nil
}
