package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// deadLetter is a letter as relay dead-letters shows it. Its fields are API.
type deadLetter struct {
	ID         int64           `json:"id"`
	State      string          `json:"state"`
	Class      string          `json:"class"`
	Reason     string          `json:"reason"`
	EventID    string          `json:"event_id"`
	Source     string          `json:"source_table"`
	Position   string          `json:"position"`
	Topic      *string         `json:"topic"`
	Partition  *int32          `json:"partition"` // null: the key decides
	Key        []byte          `json:"key"`       // in base64
	Holds      bool            `json:"holds"`     // later events of the key wait
	EventKey   *string         `json:"event_key"`
	EventType  *string         `json:"event_type"`
	OccurredAt *string         `json:"occurred_at"`
	Attempts   int             `json:"attempts"`
	Actor      *string         `json:"actor"`
	Note       *string         `json:"note"`
	CreatedAt  time.Time       `json:"created_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
	ValueBytes *int64          `json:"value_bytes"` // null: no value is kept
	IsNull     bool            `json:"is_null"`
	Headers    json.RawMessage `json:"headers,omitempty"` // with show
	Value      []byte          `json:"value,omitempty"`   // with show; in base64
}

const deadLetterColumns = `id, state, class, reason, event_id, source_table, position, topic, partition, partition_key, holds, event_key, event_type,
	occurred_at::text, attempts, actor, note, created_at, updated_at, length(value)::bigint, is_null`

func (d *deadLetter) fields() []any {
	return []any{&d.ID, &d.State, &d.Class, &d.Reason, &d.EventID, &d.Source, &d.Position, &d.Topic, &d.Partition, &d.Key, &d.Holds, &d.EventKey, &d.EventType,
		&d.OccurredAt, &d.Attempts, &d.Actor, &d.Note, &d.CreatedAt, &d.UpdatedAt, &d.ValueBytes, &d.IsNull}
}

// parseKey reads a key from flags: as text, or in hexadecimal.
func parseKey(text, digits string) ([]byte, error) {
	switch {
	case text != "" && digits != "":
		return nil, &usageError{problem: "--key and --key-hex are given", hint: "choose one"}
	case text != "":
		return []byte(text), nil
	case digits != "":
		b, err := hex.DecodeString(strings.TrimPrefix(strings.TrimPrefix(digits, "0x"), `\x`))
		if err != nil || len(b) == 0 {
			return nil, &usageError{problem: "--key-hex is not hexadecimal", hint: "write two digits a byte"}
		}
		return b, nil
	}
	return nil, nil
}

func (p *process) deadLettersListCommand() *cobra.Command {
	var states []string
	var topic, key, keyHex string
	var limit int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, oldest first",
		Long:  `List dead letters, oldest first: those that wait for a decision, unless --state says otherwise.`,
	}
	all := []string{"parked", "held", "requeued", "published", "discarded"}
	cmd.Flags().StringSliceVar(&states, "state", []string{"parked", "held", "requeued"}, "states, of "+strings.Join(all, ", ")+"; or all")
	cmd.Flags().StringVar(&topic, "topic", "", "those that were meant for this topic")
	cmd.Flags().StringVar(&key, "key", "", "those of this record key")
	cmd.Flags().StringVar(&keyHex, "key-hex", "", "the same, for a key that is no text")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	var keyBytes []byte
	p.withDatabase(cmd, func(args []string) (err error) {
		if err := noArguments(cmd, args); err != nil {
			return err
		}
		if slices.Equal(states, []string{"all"}) {
			states = all
		}
		for _, s := range states {
			if !slices.Contains(all, s) {
				return &usageError{problem: fmt.Sprintf("--state %s is not a state", quoted(s)), hint: "the states are " + strings.Join(all, ", ") + ", and all"}
			}
		}
		if limit < 1 {
			return &usageError{problem: "--limit is below 1", hint: "give the most letters to list"}
		}
		keyBytes, err = parseKey(key, keyHex)
		return err
	}, func(ctx context.Context, db *pgx.Conn, c *Config, _ []string) error {
		where, params := "slot = $1 and state = any($2)", []any{c.Postgres.Slot, states}
		if topic != "" {
			params = append(params, topic)
			where += fmt.Sprintf(" and topic = $%d", len(params))
		}
		if keyBytes != nil {
			params = append(params, keyBytes)
			where += fmt.Sprintf(" and partition_key = $%d::bytea", len(params))
		}
		params = append(params, limit+1)
		rows, err := db.Query(ctx, fmt.Sprintf("select %s from outbox.dead_letters where %s order by id limit $%d", deadLetterColumns, where, len(params)), params...)
		if err != nil {
			return tableError("list dead letters", err)
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d deadLetter, err error) {
			return d, row.Scan(d.fields()...)
		})
		if err != nil {
			return tableError("list dead letters", err)
		}
		more := len(list) > limit
		list = list[:min(len(list), limit)]
		if asJSON {
			return printJSON(p.stdout, struct {
				Letters []deadLetter `json:"dead_letters"`
				More    bool         `json:"more"`
			}{append([]deadLetter{}, list...), more})
		}
		return printLetters(p.stdout, list, more, time.Now())
	})
	return cmd
}

// printLetters lists letters for a person.
func printLetters(w io.Writer, list []deadLetter, more bool, now time.Time) error {
	if len(list) == 0 {
		fmt.Fprintln(w, "no dead letters")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NUMBER\tSTATE\tAGE\tTOPIC\tKEY\tCLASS\tREASON")
	for _, d := range list {
		topic := "-"
		if d.Topic != nil {
			topic = *d.Topic
		}
		state := d.State
		if d.Holds && d.State == "parked" {
			state += ", holds its key"
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", d.ID, state, now.Sub(d.CreatedAt).Round(time.Second), printable(topic), keyText(d.Key), d.Class, printable(shorten(d.Reason, 80)))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print dead letters: %w", err)
	}
	if more {
		fmt.Fprintf(w, "there are more: see --limit\n")
	}
	return nil
}

func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}

// keyText writes a key as text where it is one.
func keyText(key []byte) string {
	switch {
	case key == nil:
		return "-"
	case utf8.Valid(key):
		return printable(shorten(string(key), 40))
	}
	return "0x" + shorten(hex.EncodeToString(key), 40)
}
