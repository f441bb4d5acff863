package relaystate

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/sink"
)

// Open implements sink.DeadLetters.
func (l *Letters) Open(ctx context.Context, sel sink.Selection, most, size int) (out []*sink.Letter, err error) {
	where, args := []string{"slot = $1", "state in ('parked', 'held', 'requeued')"}, []any{l.slot}
	and := func(cond string, arg any) {
		args = append(args, arg)
		where = append(where, fmt.Sprintf(cond, len(args)))
	}
	and("id > $%d", sel.After)
	if sel.IDs != nil {
		and("id = any($%d)", sel.IDs)
	}
	if sel.Topic != nil {
		and("topic = $%d", *sel.Topic)
	}
	if sel.Partition != nil {
		and("coalesce(partition, -1) = $%d", *sel.Partition)
	}
	if sel.Key != nil {
		and("sha256(coalesce(partition_key, '')) = sha256($%d::bytea)", sel.Key)
		and("partition_key = $%d::bytea", sel.Key)
	}
	if sel.Holds {
		where = append(where, "holds")
	}
	args = append(args, most)
	// The sizes first: a page is a page however large its values are.
	pick := fmt.Sprintf("select id, coalesce(length(value), 0) from outbox.dead_letters where %s order by id limit $%d", strings.Join(where, " and "), len(args))
	err = l.db.run(ctx, func(ctx context.Context, db *pgx.Conn) error {
		out = nil
		rows, err := db.Query(ctx, pick, args...)
		if err != nil {
			return err
		}
		var ids []int64
		var id int64
		var n, total int
		if _, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			if total += n; len(ids) == 0 || total <= size {
				ids = append(ids, id)
			} else {
				total = size + 1 // no smaller one behind it either
			}
			return nil
		}); err != nil || len(ids) == 0 {
			return err
		}
		rows, err = db.Query(ctx, `select `+letterColumns+` from outbox.dead_letters where slot = $1 and id = any($2) order by id`, l.slot, ids)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, ScanLetter)
		return err
	})
	return out, wrap("read dead letters", err)
}

// letterColumns are what ScanLetter reads.
const letterColumns = `id, source_table, event_id, position, coalesce(topic, ''), coalesce(partition, -1), partition_key, value, is_null, headers::text,
	event_key, event_type, class, reason, attempts, state, holds, coalesce(actor, ''), coalesce(note, '')`

// ScanLetter reads a row of letterColumns.
func ScanLetter(row pgx.CollectableRow) (*sink.Letter, error) {
	l := &sink.Letter{}
	var headers string
	var eventKey, eventType *string
	if err := row.Scan(&l.ID, &l.Source, &l.EventID, &l.Position, &l.Topic, &l.Partition, &l.Key, &l.Value, &l.Null, &headers,
		&eventKey, &eventType, &l.Class, &l.Reason, &l.Attempts, &l.State, &l.Holds, &l.Actor, &l.Note); err != nil {
		return nil, err
	}
	if eventKey != nil {
		l.EventKey = []byte(*eventKey)
	}
	if eventType != nil {
		l.EventType = []byte(*eventType)
	}
	return l, decodeHeaders(l, headers)
}

// columns are the letters of one statement, column by column.
type columns struct {
	source, id, position                    []string
	topic, eventKey, eventType, actor, note []*string
	partition                               []*int32
	key, value                              [][]byte
	null, holds                             []bool
	headers, class, reason, state           []string
	occurred                                []*time.Time
	attempts                                []int32
}

func (c *columns) add(l *sink.Letter) {
	c.source, c.id, c.position = append(c.source, l.Source), append(c.id, l.EventID), append(c.position, l.Position)
	c.topic = append(c.topic, orNull(plain(l.Topic)))
	c.eventKey, c.eventType = append(c.eventKey, textOrNull(l.EventKey)), append(c.eventType, textOrNull(l.EventType))
	c.actor, c.note = append(c.actor, orNull(l.Actor)), append(c.note, orNull(l.Note))
	var partition *int32
	if l.Partition >= 0 {
		partition = &l.Partition
	}
	c.partition = append(c.partition, partition)
	c.key, c.value, c.null, c.holds = append(c.key, l.Key), append(c.value, l.Value), append(c.null, l.Null), append(c.holds, l.Holds)
	c.headers, c.class, c.reason = append(c.headers, encodeHeaders(l)), append(c.class, l.Class), append(c.reason, plain(l.Reason))
	c.state, c.attempts = append(c.state, string(l.State)), append(c.attempts, int32(l.Attempts))
	var occurred *time.Time
	if t, err := time.Parse(time.RFC3339Nano, string(l.OccurredAt)); err == nil {
		occurred = &t
	}
	c.occurred = append(c.occurred, occurred)
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func textOrNull(b []byte) *string {
	if b == nil {
		return nil
	}
	s := plain(string(b))
	return &s
}

// plain makes text that PostgreSQL can hold of any bytes. What is looked for again has no others.
func plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// base64Text is the value of a header that is no text.
type base64Text struct {
	Base64 string `json:"base64"`
}

// unreadable stands for headers of which none could be made.
type unreadable struct {
	Unreadable any      `json:"unreadable"` // string or base64Text
	Headers    [][2]any `json:"headers"`
}

// headerText is what a header becomes in JSON.
func headerText(b []byte) any {
	if utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 {
		return string(b)
	}
	return base64Text{base64.StdEncoding.EncodeToString(b)}
}

func encodeHeaders(l *sink.Letter) string {
	pairs := make([][2]any, len(l.Headers))
	for i, h := range l.Headers {
		pairs[i] = [2]any{headerText([]byte(h.Name)), headerText(h.Value)}
	}
	var v any = pairs
	if l.Unreadable != nil {
		v = unreadable{headerText(l.Unreadable), pairs}
	}
	out, err := json.Marshal(v) // of strings only
	if err != nil {
		return "[]"
	}
	return string(out)
}

func decodeHeaders(l *sink.Letter, text string) error {
	var pairs [][2]json.RawMessage
	if strings.HasPrefix(text, "{") {
		var u struct {
			Unreadable json.RawMessage
			Headers    [][2]json.RawMessage
		}
		if err := json.Unmarshal([]byte(text), &u); err != nil {
			return fmt.Errorf("read headers of letter %d: %w", l.ID, err)
		}
		b, err := headerBytes(u.Unreadable)
		if err != nil {
			return fmt.Errorf("read headers of letter %d: %w", l.ID, err)
		}
		l.Unreadable, pairs = b, u.Headers
	} else if err := json.Unmarshal([]byte(text), &pairs); err != nil {
		return fmt.Errorf("read headers of letter %d: %w", l.ID, err)
	}
	for _, p := range pairs {
		name, err := headerBytes(p[0])
		if err != nil {
			return fmt.Errorf("read headers of letter %d: %w", l.ID, err)
		}
		value, err := headerBytes(p[1])
		if err != nil {
			return fmt.Errorf("read headers of letter %d: %w", l.ID, err)
		}
		l.Headers = append(l.Headers, sink.Header{Name: string(name), Value: value})
	}
	return nil
}

func headerBytes(v json.RawMessage) ([]byte, error) {
	if len(v) > 0 && v[0] == '{' {
		var b base64Text
		if err := json.Unmarshal(v, &b); err != nil {
			return nil, err
		}
		return base64.StdEncoding.DecodeString(b.Base64)
	}
	var s string
	err := json.Unmarshal(v, &s)
	return append([]byte{}, s...), err
}
