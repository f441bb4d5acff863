package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

func (p *process) deadLettersShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NUMBER",
		Short: "Show one dead letter with its headers and its value",
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON; key and value in base64")
	var id int64
	p.withDatabase(cmd, func(args []string) (err error) {
		if len(args) != 1 {
			return &usageError{problem: "show takes the number of one letter", hint: "relay dead-letters list shows the numbers"}
		}
		if id, err = strconv.ParseInt(args[0], 10, 64); err != nil {
			return &usageError{problem: word(args[0]) + " is not the number of a letter", hint: "relay dead-letters list shows the numbers"}
		}
		return nil
	}, func(ctx context.Context, db *pgx.Conn, c *Config, _ []string) error {
		var d deadLetter
		var headers string
		err := db.QueryRow(ctx, `select `+deadLetterColumns+`, headers::text, value from outbox.dead_letters where slot = $1 and id = $2`, c.Postgres.Slot, id).
			Scan(append(d.fields(), &headers, &d.Value)...)
		if err == pgx.ErrNoRows {
			return &hintError{err: fmt.Errorf("slot %s has no dead letter %d", c.Postgres.Slot, id), hint: "relay dead-letters list --state all shows those that there are"}
		}
		if err != nil {
			return tableError("read dead letter", err)
		}
		d.Headers = json.RawMessage(headers)
		if asJSON {
			return printJSON(p.stdout, d)
		}
		return d.print(p.stdout)
	})
	return cmd
}

// print shows a letter to a person.
func (d *deadLetter) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", label, printable(fmt.Sprintf(format, args...)))
	}
	optional := func(label string, v *string) {
		if v != nil {
			row(label, "%s", *v)
		}
	}
	row("letter", "%d", d.ID)
	row("state", "%s since %s", d.State, d.UpdatedAt.UTC().Format(time.RFC3339))
	if d.Holds {
		row("holds", "later events of its topic and key wait for it")
	}
	row("class", "%s", d.Class)
	row("reason", "%s", d.Reason)
	row("attempts", "%d", d.Attempts)
	row("parked", "%s", d.CreatedAt.UTC().Format(time.RFC3339))
	optional("actor", d.Actor)
	optional("note", d.Note)
	row("event id", "%s", d.EventID)
	row("from", "%s", d.Source)
	row("position", "%s", d.Position)
	optional("topic", d.Topic)
	if d.Partition != nil {
		row("partition", "%d", *d.Partition)
	}
	row("key", "%s", keyText(d.Key))
	optional("event key", d.EventKey)
	optional("event type", d.EventType)
	optional("occurred at", d.OccurredAt)
	if err := d.printHeaders(row); err != nil {
		return err
	}
	switch {
	case d.IsNull:
		row("value", "null: a tombstone")
	case d.ValueBytes == nil:
		row("value", "not kept; it stands in %s", d.Source)
	default:
		row("value", "%d bytes:", *d.ValueBytes)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print dead letter: %w", err)
	}
	if d.ValueBytes == nil {
		return nil
	}
	text, cut := valueText(d.Value)
	fmt.Fprintln(w, text)
	if cut {
		fmt.Fprintln(w, "… the rest is left out: --json has all of it")
	}
	return nil
}

func (d *deadLetter) printHeaders(row func(label, format string, args ...any)) error {
	raw := d.Headers
	var object struct {
		Unreadable json.RawMessage
		Headers    json.RawMessage
	}
	if json.Unmarshal(raw, &object) == nil && object.Headers != nil {
		row("headers column", "%s", object.Unreadable)
		raw = object.Headers
	}
	var pairs [][2]any
	if err := json.Unmarshal(raw, &pairs); err != nil {
		return fmt.Errorf("read headers: %w", err)
	}
	for _, p := range pairs {
		row("header", "%v: %v", p[0], p[1])
	}
	return nil
}

// What of a value is shown to a person, at most.
const (
	maxShown  = 16 << 10
	maxDumped = 512
)

// valueText writes a value as text where it is text, else as a dump.
func valueText(v []byte) (text string, cut bool) {
	if cut = len(v) > maxShown; cut {
		v = v[:maxShown]
		for len(v) > 0 && !utf8.RuneStart(v[len(v)-1]) {
			v = v[:len(v)-1]
		}
		if r, n := utf8.DecodeLastRune(v); r == utf8.RuneError && n == 1 {
			v = v[:len(v)-1]
		}
	}
	plain := utf8.Valid(v) && !strings.ContainsFunc(string(v), func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' })
	if plain {
		return string(v), cut
	}
	cut = cut || len(v) > maxDumped
	return strings.TrimRight(hex.Dump(v[:min(len(v), maxDumped)]), "\n"), cut
}
