package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// keepBatch is how many rows one statement of sweep and purge takes at most, so that none holds locks for long.
const keepBatch = 1000

// ledgerSwept is what relay ledger sweep did. Its fields are API.
type ledgerSwept struct {
	ToUncertain int `json:"to_uncertain"`
	ToDead      int `json:"to_dead"`
	ToSkipped   int `json:"to_skipped"`
}

func (p *process) ledgerSweepCommand() *cobra.Command {
	var asJSON bool
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "sweep", short: "Settle due deliveries that no worker will take", args: noArguments, need: needOperator,
		long: `Settle due deliveries that no worker will take: a lease that ended after the effect began becomes uncertain, what
used up its attempts dead, what waits for a delivery that was skipped or is dead skipped. Workers do this too, for the
rows that they meet; run it every minute where workers may be gone for long.`,
		do: func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			done, err := sweepAll(ctx, conn)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(p.stdout, done)
			}
			_, err = fmt.Fprintf(p.stdout, "%d to uncertain, %d to dead, %d to skipped\n", done.ToUncertain, done.ToDead, done.ToSkipped)
			return err
		},
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func sweepAll(ctx context.Context, conn *pgx.Conn) (all ledgerSwept, err error) {
	for {
		var one ledgerSwept
		if err := conn.QueryRow(ctx, `SELECT to_uncertain, to_dead, to_skipped FROM ledger.sweep(n => $1::int)`, keepBatch).
			Scan(&one.ToUncertain, &one.ToDead, &one.ToSkipped); err != nil {
			return all, err
		}
		all.ToUncertain += one.ToUncertain
		all.ToDead += one.ToDead
		all.ToSkipped += one.ToSkipped
		if one.ToUncertain+one.ToDead+one.ToSkipped < keepBatch {
			return all, nil
		}
	}
}

// ledgerPurge is what relay ledger purge would delete, or did. Its fields are API.
type ledgerPurge struct {
	DryRun  bool              `json:"dry_run"`
	Due     []ledgerPurgeable `json:"due"` // null: not looked at
	Deleted int64             `json:"deleted"`
}

// ledgerPurgeable counts rows whose retention is over.
type ledgerPurgeable struct {
	Channel string    `json:"channel"`
	State   string    `json:"state"`
	N       int64     `json:"n"`
	Oldest  time.Time `json:"oldest"` // when the one settled first was settled
}

func (p *process) ledgerPurgeCommand() *cobra.Command {
	var dryRun, yes, asJSON bool
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "purge", short: "Delete what was settled longer ago than its channel's retention", args: noArguments, need: needOperator,
		long: `Delete what was settled longer ago than its channel's retention, with its attempts and decisions, and events that
have no delivery left. What is going to be deleted is shown first, which needs the reader's rights, and has to be
confirmed. An event that comes again after that is refused as expired, as long as the channel's horizon is in force.`,
		check: func([]string) error {
			switch {
			case dryRun && yes:
				return &usageError{problem: "--dry-run and --yes are given", hint: "choose one"}
			case !dryRun && !yes && (asJSON || !isTerminalInput(p.stdin)):
				return &usageError{problem: "there is nobody to ask", hint: "look at relay ledger purge --dry-run, then say --yes"}
			}
			return nil
		},
		do: func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			done := ledgerPurge{DryRun: dryRun}
			if !yes {
				var err error
				if done.Due, err = purgeable(ctx, conn); err != nil {
					return explainLedger(ctx, conn, needReader, err)
				}
				if !asJSON {
					if err := printPurgeable(p.stdout, done.Due); err != nil {
						return err
					}
				}
				if !dryRun && len(done.Due) > 0 {
					if err := ask(p.stdin, p.stdout, "To delete them, type purge: ", "purge"); err != nil {
						return err
					}
				}
			}
			if !dryRun {
				for {
					var n int64
					if err := conn.QueryRow(ctx, `SELECT ledger.purge(n => $1::int)`, keepBatch).Scan(&n); err != nil {
						return err
					}
					if done.Deleted += n; n < keepBatch {
						break
					}
				}
			}
			switch {
			case asJSON:
				return printJSON(p.stdout, done)
			case dryRun:
				return nil
			}
			_, err := fmt.Fprintf(p.stdout, "deleted: %d\n", done.Deleted)
			return err
		},
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be deleted and stop")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not show and do not ask")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// purgeable counts what ledger.purge would delete now.
func purgeable(ctx context.Context, conn *pgx.Conn) ([]ledgerPurgeable, error) {
	rows, err := conn.Query(ctx, `SELECT d.channel, d.state, count(*), min(d.done_at) FROM ledger.notification_dispatches d
JOIN ledger.channels s ON s.channel = '*' LEFT JOIN ledger.channels c ON c.channel = d.channel
WHERE d.state IN ('delivered', 'skipped', 'dead') AND coalesce(c.retention, s.retention) > '0' AND d.done_at < clock_timestamp() - coalesce(c.retention, s.retention)
GROUP BY d.channel, d.state ORDER BY d.channel, d.state`)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ledgerPurgeable])
	if list == nil {
		list = []ledgerPurgeable{}
	}
	return list, err
}

func printPurgeable(w io.Writer, list []ledgerPurgeable) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing is older than its channel's retention")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHANNEL\tSTATE\tROWS\tOLDEST")
	for _, r := range list {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", printable(r.Channel), r.State, r.N, timeText(&r.Oldest))
	}
	return tw.Flush()
}

// ledgerStats is what relay ledger stats tells. Its fields are API.
type ledgerStats struct {
	States []ledgerStateCount `json:"states"`
}

// ledgerStateCount counts the deliveries of a channel in one state. Oldest is the earliest due time (pending, failed),
// begin of the hold (reserved) or of the effect (uncertain), or end (delivered, skipped, dead).
type ledgerStateCount struct {
	Channel string     `json:"channel"`
	State   string     `json:"state"`
	N       int64      `json:"n"`
	Oldest  *time.Time `json:"oldest"`
}

func (p *process) ledgerStatsCommand() *cobra.Command {
	var asJSON bool
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "stats", short: "Count deliveries by channel and state", args: noArguments, need: needReader,
		long: `Count deliveries by channel and state, with the earliest due time (pending, failed), begin of the hold (reserved) or of
the effect (uncertain), or end (delivered, skipped, dead). It reads the whole table: not more than once a minute.`,
		do: func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			rows, err := conn.Query(ctx, `SELECT channel, state, n, oldest FROM ledger.stats()`)
			if err != nil {
				return err
			}
			s := ledgerStats{States: []ledgerStateCount{}}
			if list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ledgerStateCount]); err != nil {
				return err
			} else if list != nil {
				s.States = list
			}
			if asJSON {
				return printJSON(p.stdout, s)
			}
			return s.print(p.stdout)
		},
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (s *ledgerStats) print(w io.Writer) error {
	if len(s.States) == 0 {
		_, err := fmt.Fprintln(w, "the ledger is empty")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHANNEL\tSTATE\tROWS\tOLDEST")
	for _, c := range s.States {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", printable(c.Channel), c.State, c.N, timeText(c.Oldest))
	}
	return tw.Flush()
}
