package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
)

// ledgerDecisions is what relay ledger resolve and redrive did. Its fields are API.
type ledgerDecisions struct {
	Deliveries []ledgerDecided `json:"deliveries"`
}

// ledgerDecided is one delivery that was decided about.
type ledgerDecided struct {
	ID        int64  `json:"id"`
	Recipient string `json:"recipient"`
	Channel   string `json:"channel"`
	State     string `json:"state"` // before
	Outcome   string `json:"outcome"`

	fence int64
}

// decision is what resolve and redrive have in common.
type decision struct {
	verb          string   // resolve, redrive
	from          []string // states that it takes
	wants         []string // outcomes that mean it was done
	pick          deliveryFlags
	actor, reason string
	all, asJSON   bool
}

func (d *decision) add(cmd *cobra.Command) {
	d.pick.add(cmd)
	cmd.Flags().BoolVar(&d.all, "all", false, "all that match, where they are several")
	cmd.Flags().StringVar(&d.actor, "actor", actor(), "who decides, for the audit")
	cmd.Flags().StringVar(&d.reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&d.asJSON, "json", false, "print JSON")
}

func (d *decision) check() error {
	switch {
	case d.reason == "":
		return &usageError{problem: fmt.Sprintf("%s needs a --reason", d.verb), hint: `say why, for those who read the audit later: --reason "provider's log has it"`}
	case d.actor == "":
		return &usageError{problem: "--actor is empty", hint: "say who decides, or leave it out"}
	}
	return nil
}

func (p *process) ledgerResolveCommand() *cobra.Command {
	d := decision{verb: "resolve", from: []string{"uncertain"}}
	var verdict string
	verdicts := []string{"delivered", "failed", "dead"}
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "resolve KEY", short: "Decide about an uncertain delivery", args: oneKey, need: needOperator,
		long: `Decide about an uncertain delivery: its effect began, and nobody knows whether it happened. Find out from the
provider, by its own reference or by the provider key, then say so: delivered, it arrived; failed, it did not, and it is
due again now; dead, it did not and nobody shall try again.`,
		check: func([]string) error {
			if !slices.Contains(verdicts, verdict) {
				return &usageError{problem: "resolve needs a --verdict", hint: "say delivered, failed (it did not arrive, try again) or dead (it did not arrive, give up)"}
			}
			d.wants = []string{verdict}
			return d.check()
		},
		do: func(ctx context.Context, conn *pgx.Conn, args []string) error {
			return p.decide(ctx, conn, args[0], &d, func(row *ledgerDecided) error {
				return conn.QueryRow(ctx, `SELECT ledger.resolve(id => $1::bigint, fence => $2::bigint, verdict => $3::text, actor => $4::text, note => $5::text)`,
					row.ID, row.fence, verdict, d.actor, d.reason).Scan(&row.Outcome)
			})
		},
	})
	cmd.Flags().StringVar(&verdict, "verdict", "", "what is the case: "+strings.Join(verdicts, ", "))
	d.add(cmd)
	return cmd
}

func (p *process) ledgerRedriveCommand() *cobra.Command {
	d := decision{verb: "redrive", from: []string{"dead", "skipped", "uncertain"}, wants: []string{"redriven"}}
	var resend bool
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "redrive KEY", short: "Have a delivery tried again", args: oneKey, need: needOperator,
		long: `Have a dead, skipped or uncertain delivery tried again, with all its attempts before it and under the same provider
key, so that a provider that already has it can tell. With --resend a delivered, dead or uncertain one is made once more
under a new key: it may arrive twice, and that is what is asked for.`,
		check: func([]string) error {
			if resend {
				d.from = []string{"delivered", "dead", "uncertain"}
			}
			return d.check()
		},
		do: func(ctx context.Context, conn *pgx.Conn, args []string) error {
			return p.decide(ctx, conn, args[0], &d, func(row *ledgerDecided) error {
				return conn.QueryRow(ctx, `SELECT ledger.redrive(id => $1::bigint, actor => $2::text, reason => $3::text, resend => $4::boolean)`,
					row.ID, d.actor, d.reason, resend).Scan(&row.Outcome)
			})
		},
	})
	cmd.Flags().BoolVar(&resend, "resend", false, "make a delivery once more on purpose")
	d.add(cmd)
	return cmd
}

// decide finds the deliveries that are meant, has each decided about, and tells.
func (p *process) decide(ctx context.Context, conn *pgx.Conn, key string, d *decision, do func(*ledgerDecided) error) error {
	rows, err := d.find(ctx, conn, key)
	if err != nil {
		return err
	}
	done := ledgerDecisions{Deliveries: []ledgerDecided{}}
	var refused []string
	for _, row := range rows {
		if err := do(&row); err != nil {
			return errors.Join(err, p.tellDecided(d, done)) // what was decided before stays
		}
		done.Deliveries = append(done.Deliveries, row)
		if !slices.Contains(d.wants, row.Outcome) {
			refused = append(refused, fmt.Sprintf("%s by %s was answered %s", nobody(row.Recipient), row.Channel, row.Outcome))
		}
	}
	if err := p.tellDecided(d, done); err != nil {
		return err
	}
	if len(refused) > 0 {
		return &hintError{err: errors.New(strings.Join(refused, "; ")), hint: "somebody was there a moment before: look again with relay ledger show"}
	}
	return nil
}

func (p *process) tellDecided(d *decision, done ledgerDecisions) error {
	if d.asJSON {
		return printJSON(p.stdout, done)
	}
	for _, row := range done.Deliveries {
		if _, err := fmt.Fprintf(p.stdout, "%s\n", printable(fmt.Sprintf("%s by %s: was %s, now %s", nobody(row.Recipient), row.Channel, row.State, row.Outcome))); err != nil {
			return err
		}
	}
	return nil
}

// find returns the deliveries of the event that are meant and can be decided about: one, or with --all some.
func (d *decision) find(ctx context.Context, conn *pgx.Conn, key string) ([]ledgerDecided, error) {
	rows, err := conn.Query(ctx, `SELECT id, fence, recipient, channel, state FROM ledger.status(tenant => $1::text, event_key => $2::text)`, d.pick.tenant, key)
	if err != nil {
		return nil, err
	}
	var matching, fit []ledgerDecided
	var row ledgerDecided
	if _, err := pgx.ForEachRow(rows, []any{&row.ID, &row.fence, &row.Recipient, &row.Channel, &row.State}, func() error {
		if d.pick.matches(row.Recipient, row.Channel) {
			matching = append(matching, row)
			if slices.Contains(d.from, row.State) {
				fit = append(fit, row)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	switch {
	case len(matching) == 0:
		err := readLedger(ctx, conn, func(tx pgx.Tx) error { return notFound(ctx, tx, &d.pick, key, nil) })
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" { // an operator need not be a reader
			return nil, fmt.Errorf("the ledger has no such delivery of event %s%s", quoted(key), ofTenant(d.pick.tenant))
		}
		return nil, err
	case len(fit) == 0:
		return nil, d.unfit(matching)
	case len(fit) > 1 && !d.all:
		return nil, &usageError{problem: fmt.Sprintf("%d deliveries of the event can be meant, among them %s by %s", len(fit), nobody(fit[0].Recipient), fit[0].Channel),
			hint: "narrow them with --recipient and --channel, or say --all"}
	}
	return fit, nil
}

// unfit says why nothing can be decided about deliveries in these states.
func (d *decision) unfit(rows []ledgerDecided) error {
	states := map[string]string{
		"pending":   "it is tried by itself when it is due",
		"failed":    "it is retried by itself when it is due",
		"reserved":  "a worker holds it: wait for the end of its lease",
		"delivered": "to have it made once more on purpose, say redrive --resend",
		"skipped":   "to have it tried after all, say redrive",
		"dead":      "to have it tried again, say redrive",
		"uncertain": "say resolve with what is the case",
	}
	problem := fmt.Sprintf("%s by %s is %s, and %s takes %s", nobody(rows[0].Recipient), rows[0].Channel, rows[0].State, d.verb, strings.Join(d.from, ", "))
	if len(rows) > 1 {
		problem = fmt.Sprintf("none of %d deliveries is %s: %s", len(rows), strings.Join(d.from, " or "), problem)
	}
	return &hintError{err: errors.New(problem), hint: states[rows[0].State]}
}
