package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ledgerChannels is what relay ledger channels tells. Its fields are API; lengths of time are in seconds.
type ledgerChannels struct {
	Channels []ledgerChannel `json:"channels"`
}

// ledgerChannel holds the settings that are in force for one channel. Own names those that are not the defaults'.
type ledgerChannel struct {
	Channel        string   `json:"channel"`
	Mode           string   `json:"mode"`
	OnUncertain    string   `json:"on_uncertain"`
	AfterChannel   *string  `json:"after_channel"`
	MaxAttempts    int      `json:"max_attempts"`
	ProviderWindow float64  `json:"provider_window"`
	Lease          float64  `json:"lease"`
	HoldCap        float64  `json:"hold_cap"`
	BackoffMin     float64  `json:"backoff_min"`
	BackoffMax     float64  `json:"backoff_max"`
	Retention      float64  `json:"retention"` // 0: for ever
	Horizon        float64  `json:"horizon"`   // 0: none
	Own            []string `json:"own"`
}

// channelSetting is a column of ledger.channels as a flag.
type channelSetting struct{ column, sqlType, usage string }

func (s channelSetting) flag() string { return flagName(s.column) }

func channelSettings() []channelSetting {
	return []channelSetting{
		{"mode", "text", "guarded: no effect without begin_effect; simple: at least once, or a row of the ledger's database"},
		{"on_uncertain", "text", "what follows a lease that ended after its effect began: resend, probe or hold"},
		{"provider_window", "interval", "how long the provider knows its key; never resent after that"},
		{"after_channel", "text", "channel that must have delivered before; none takes it away"},
		{"max_attempts", "integer", "attempts before a delivery is dead"},
		{"lease", "interval", "how long a reservation holds"},
		{"hold_cap", "interval", "how long it holds at most, renewals included"},
		{"backoff_min", "interval", "wait after the first failure, doubling"},
		{"backoff_max", "interval", "longest wait after a failure"},
		{"retention", "interval", "how long a settled delivery stays; 0 is for ever"},
		{"horizon", "interval", "age beyond which an unknown event is refused; 0 is none"},
	}
}

func (p *process) ledgerChannelsCommand() *cobra.Command {
	var asJSON bool
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "channels", short: "List the channels' settings, or set them", args: noUnknownCommand, need: needReader,
		long: `List the settings that are in force for each channel, the defaults in channel *; what a channel has of its own is
marked. A channel listener:<name> works without a row, with the defaults.`,
		do: func(ctx context.Context, conn *pgx.Conn, _ []string) error {
			c, err := readChannels(ctx, conn, nil)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(p.stdout, c)
			}
			return c.print(p.stdout)
		},
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.AddCommand(p.ledgerChannelsSetCommand())
	return cmd
}

func (p *process) ledgerChannelsSetCommand() *cobra.Command {
	var all, asJSON bool
	var cmd *cobra.Command
	cmd = p.ledgerSubcommand(ledgerAction{
		use: "set CHANNEL...", short: "Set a channel's policy, or make a channel", args: cobra.ArbitraryArgs, need: needOwner,
		long: `Set a channel's policy; a channel that does not exist is made. Lengths of time are written like 90s, 15m, 24h or
30 days. The word default takes a setting back to that of channel *. This needs the rights of who migrates the ledger.
After a restore of the database: relay ledger channels set --all --on-uncertain hold`,
		check: func(args []string) error {
			switch {
			case all == (len(args) > 0):
				return &usageError{problem: "set needs the names of channels, or --all", hint: "relay ledger channels set email --on-uncertain probe"}
			case len(changedSettings(cmd.Flags())) == 0 && all:
				return &usageError{problem: "set needs a setting", hint: "relay ledger channels set --help lists them"}
			}
			return nil
		},
		do: func(ctx context.Context, conn *pgx.Conn, args []string) error {
			if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return setChannels(ctx, tx, args, cmd.Flags()) }); err != nil {
				return err
			}
			c, err := readChannels(ctx, conn, args)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(p.stdout, c)
			}
			return c.print(p.stdout)
		},
	})
	for _, s := range channelSettings() {
		cmd.Flags().String(s.flag(), "", s.usage)
	}
	cmd.Flags().BoolVar(&all, "all", false, "every channel, the defaults included")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func changedSettings(flags *pflag.FlagSet) []channelSetting {
	var list []channelSetting
	for _, s := range channelSettings() {
		if flags.Changed(s.flag()) {
			list = append(list, s)
		}
	}
	return list
}

// setChannels updates the named channels, all if none is named, and makes those that are missing.
func setChannels(ctx context.Context, tx pgx.Tx, names []string, flags *pflag.FlagSet) error {
	var assignments, columns, places []string
	var values []any
	for i, s := range changedSettings(flags) {
		value := given(flags, s.flag())
		if *value == "default" || s.column == "after_channel" && *value == "none" {
			value = nil
		}
		place := fmt.Sprintf("$%d::text::%s", i+2, s.sqlType)
		assignments = append(assignments, s.column+" = "+place)
		columns, places, values = append(columns, ", "+s.column), append(places, ", "+place), append(values, value)
	}
	if len(names) == 0 {
		_, err := tx.Exec(ctx, "UPDATE ledger.channels SET "+strings.Join(assignments, ", ")+" WHERE $1::text IS NULL", append([]any{nil}, values...)...)
		return err
	}
	for _, name := range names {
		args := append([]any{name}, values...)
		if len(assignments) > 0 {
			done, err := tx.Exec(ctx, "UPDATE ledger.channels SET "+strings.Join(assignments, ", ")+" WHERE channel = $1::text", args...)
			if err != nil {
				return err
			}
			if done.RowsAffected() > 0 {
				continue
			}
		}
		if _, err := tx.Exec(ctx, "INSERT INTO ledger.channels (channel"+strings.Join(columns, "")+") VALUES ($1::text"+strings.Join(places, "")+") ON CONFLICT DO NOTHING", args...); err != nil {
			return err
		}
	}
	return nil
}

// readChannels reads the settings in force of the named channels, of all if none is named.
func readChannels(ctx context.Context, conn *pgx.Conn, names []string) (*ledgerChannels, error) {
	length := func(column string) string {
		return fmt.Sprintf("extract(epoch FROM coalesce(c.%s, d.%s))::float8", column, column)
	}
	var own []string
	for _, s := range channelSettings() {
		own = append(own, fmt.Sprintf("CASE WHEN c.%s IS NOT NULL THEN '%s' END", s.column, s.column))
	}
	query := `SELECT c.channel, coalesce(c.mode, d.mode), coalesce(c.on_uncertain, d.on_uncertain), c.after_channel, coalesce(c.max_attempts, d.max_attempts), ` +
		strings.Join([]string{length("provider_window"), length("lease"), length("hold_cap"), length("backoff_min"), length("backoff_max"), length("retention"), length("horizon")}, ", ") +
		`, CASE WHEN c.channel = '*' THEN '{}'::text[] ELSE array_remove(ARRAY[` + strings.Join(own, ", ") + `]::text[], NULL) END
FROM ledger.channels c JOIN ledger.channels d ON d.channel = '*'
WHERE $1::text[] IS NULL OR c.channel = ANY ($1::text[]) ORDER BY c.channel`
	if len(names) == 0 {
		names = nil // NULL
	}
	rows, err := conn.Query(ctx, query, names)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ledgerChannel])
	if err == nil && len(list) == 0 {
		err = errors.New("the ledger has no such channel")
	}
	return &ledgerChannels{Channels: list}, err
}

// print writes the settings for a person, with a mark behind those that are the channel's own.
func (c *ledgerChannels) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CHANNEL\tMODE\tON UNCERTAIN\tWINDOW\tAFTER\tATTEMPTS\tLEASE\tCAP\tBACKOFF\tRETENTION\tHORIZON")
	marked := false
	for _, ch := range c.Channels {
		mark := func(column, value string) string {
			for _, o := range ch.Own {
				if o == column {
					marked = true
					return value + "*"
				}
			}
			return value
		}
		length := func(column string, s float64, zero string) string {
			if s == 0 && zero != "" {
				return mark(column, zero)
			}
			return mark(column, span(ofSeconds(s)))
		}
		after := "-"
		if ch.AfterChannel != nil {
			after = mark("after_channel", *ch.AfterChannel)
		}
		cells := []string{ch.Channel, mark("mode", ch.Mode), mark("on_uncertain", ch.OnUncertain), length("provider_window", ch.ProviderWindow, ""), after,
			mark("max_attempts", fmt.Sprint(ch.MaxAttempts)), length("lease", ch.Lease, ""), length("hold_cap", ch.HoldCap, ""),
			length("backoff_min", ch.BackoffMin, "") + " to " + length("backoff_max", ch.BackoffMax, ""),
			length("retention", ch.Retention, "for ever"), length("horizon", ch.Horizon, "none")}
		for i, cell := range cells {
			cells[i] = printable(cell)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if marked {
		_, err := fmt.Fprintln(w, "* the channel's own, not the default")
		return err
	}
	return nil
}
