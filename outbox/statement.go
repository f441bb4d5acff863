package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// insertSQL writes any number of events: a parameter a column, each an array in text form, so that the number of
// parameters does not grow with the events. Each is declared text and cast by the server. That way a parameter is
// one Go string to every driver in every mode of its protocol, with a statement prepared or not, and no driver's
// idea of arrays, bytea, json or time comes between. ORDER BY makes the order of the events the order of the rows.
const insertSQL = `INSERT INTO outbox.events (id, tenant, event_key, aggregate_type, aggregate_id, event_type, payload,
  payload_bytes, headers, topic, partition_key, occurred_at)
SELECT e.id, e.tenant, e.event_key, e.aggregate_type, e.aggregate_id, e.event_type, e.payload,
  e.payload_bytes, e.headers, e.topic, e.partition_key, coalesce(e.occurred_at, now())
FROM unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
  $7::text::json[], $8::text::bytea[], $9::text::jsonb[], $10::text::text[], $11::text::text[], $12::text::timestamptz[])
  WITH ORDINALITY AS e (id, tenant, event_key, aggregate_type, aggregate_id, event_type, payload,
  payload_bytes, headers, topic, partition_key, occurred_at, n)
ORDER BY e.n`

// timestampForm is read the same under every DateStyle and TimeZone.
const timestampForm = "2006-01-02 15:04:05.999999+00"

// prepare checks the events, gives IDs to those that have none, and returns the IDs with insertSQL's arguments.
func prepare(events []Event) (ids []uuid.UUID, args []any, err error) {
	ids = make([]uuid.UUID, len(events))
	seen := make(map[uuid.UUID]int, len(events))
	var errs []error
	for i, e := range events {
		if err := e.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("event %d: %w", i, err))
		}
		if ids[i] = e.ID; e.ID == uuid.Nil {
			if ids[i], err = uuid.NewV7(); err != nil {
				return nil, nil, fmt.Errorf("make event ID: %w", err)
			}
		}
		if first, ok := seen[ids[i]]; ok {
			errs = append(errs, fmt.Errorf("event %d: %w: %s, by event %d", i, ErrDuplicateID, ids[i], first))
		}
		seen[ids[i]] = i
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs...)
	}

	var columns [12]array
	for i, e := range events {
		columns[0].text(ids[i].String())
		columns[1].text(e.Tenant)
		columns[2].text(e.EventKey)
		columns[3].text(e.AggregateType)
		columns[4].text(e.AggregateID)
		columns[5].text(e.EventType)
		columns[6].optional(string(e.Payload)) // nil only: empty is not JSON
		columns[7].bytes(e.PayloadBytes)
		columns[8].object(e.Headers)
		columns[9].optional(e.Topic)
		columns[10].optional(e.PartitionKey)
		if e.OccurredAt.IsZero() {
			columns[11].null()
		} else {
			columns[11].text(e.OccurredAt.UTC().Truncate(time.Microsecond).Format(timestampForm))
		}
	}
	args = make([]any, len(columns))
	for i := range columns {
		args[i] = columns[i].String()
	}
	return ids, args, nil
}

// explain turns what a driver said about insertSQL into the error of this package.
func explain(err error, ids []uuid.UUID) error {
	if !violatesPrimaryKey(err) {
		return fmt.Errorf("write %d events: %w", len(ids), err)
	}
	if len(ids) == 1 {
		return fmt.Errorf("write event %s: %w: %w", ids[0], ErrDuplicateID, err)
	}
	return fmt.Errorf("write %d events: %w: %w", len(ids), ErrDuplicateID, err)
}
