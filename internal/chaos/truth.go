package chaos

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// Fact is one committed event and what its record must be.
type Fact struct {
	EventID   string
	Aggregate string
	Version   int64 // from 1 within the aggregate, in commit order
	Key       string
	Value     string            // Digest of the record's value
	Headers   map[string]string // all but relay_position; occurred_at compares as a time
	XID       string            // transaction that wrote it, for looking things up
}

// Digest names a value: NULL, the empty value and every other one differently.
func Digest(value []byte) string {
	if value == nil {
		return "null"
	}
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:])
}

// factOf says what the record of an event must be.
func factOf(e *outbox.Event, version int64) Fact {
	f := Fact{
		EventID: e.ID.String(), Aggregate: e.AggregateID, Version: version, Key: e.AggregateID,
		Headers: map[string]string{
			"id": e.ID.String(), "event_key": e.EventKey, "event_type": e.EventType,
			"aggregate_type": e.AggregateType, "occurred_at": e.OccurredAt.UTC().Format(time.RFC3339Nano),
		},
	}
	switch {
	case e.Payload != nil:
		f.Value = Digest(e.Payload)
	default:
		f.Value = Digest(e.PayloadBytes)
	}
	if e.PartitionKey != "" {
		f.Key = e.PartitionKey
	}
	if e.Tenant != "" {
		f.Headers["tenant"] = e.Tenant
	}
	maps.Copy(f.Headers, e.Headers)
	return f
}

// writeFacts adds facts to the truth, in the transaction that makes them true.
func writeFacts(ctx context.Context, tx pgx.Tx, facts []Fact) error {
	var ids, aggregates, keys, values, headers []string
	var versions []int64
	for _, f := range facts {
		h, err := json.Marshal(f.Headers)
		if err != nil {
			return fmt.Errorf("encode headers: %w", err)
		}
		ids, aggregates, versions = append(ids, f.EventID), append(aggregates, f.Aggregate), append(versions, f.Version)
		keys, values, headers = append(keys, f.Key), append(values, f.Value), append(headers, string(h))
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO chaos.truth (event_id, aggregate, version, key, value, headers)
		SELECT id::uuid, aggregate, version, key, value, headers::jsonb
		FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[]) AS t (id, aggregate, version, key, value, headers)`,
		ids, aggregates, versions, keys, values, headers)
	if err != nil {
		return fmt.Errorf("write truth: %w", err)
	}
	return nil
}

// Truth returns what has committed. Call it when no writer is left, see Quiesce. An aggregate whose versions are
// not 1, 2, 3 ... is an error: the workload itself would be wrong.
func Truth(ctx context.Context, conn *pgx.Conn) ([]Fact, error) {
	rows, err := conn.Query(ctx, `
		SELECT event_id::text, aggregate, version, key, value, headers, xid::text
		FROM chaos.truth ORDER BY aggregate, version`)
	if err != nil {
		return nil, fmt.Errorf("read truth: %w", err)
	}
	facts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Fact])
	if err != nil {
		return nil, fmt.Errorf("read truth: %w", err)
	}
	versions := map[string]int64{}
	for _, f := range facts {
		if versions[f.Aggregate]++; versions[f.Aggregate] != f.Version {
			return nil, fmt.Errorf("read truth: aggregate %q has version %d where %d is due", f.Aggregate, f.Version, versions[f.Aggregate])
		}
	}
	return facts, nil
}
