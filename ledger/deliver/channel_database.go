package deliver

import (
	"context"
	"fmt"

	"github.com/outboxrelay/relay/ledger"
)

// databaseKind is the durable notification: a row of ledger.notifications, exactly once, before any broadcast.
func databaseKind() Kind {
	return Kind{
		Name:      "database",
		Fields:    []Field{{Name: "type", Required: true}, {Name: "data", Object: true}},
		NewWriter: func(Settings) (Writer, error) { return notifications{}, nil },
	}
}

type notifications struct{}

// Write inserts the notification. The unique constraint is the last defence: the answer of complete was the first.
func (notifications) Write(ctx context.Context, tx ledger.DBTX, d Delivery) error {
	data := d.Fields["data"]
	if data == "" {
		data = "{}"
	}
	k := d.Key
	if k.Recipient == "" {
		return ledger.Permanent(fmt.Errorf("a database notification needs a recipient"))
	}
	_, err := tx.Exec(ctx, `INSERT INTO ledger.notifications (tenant, event_key, recipient, generation, type, data)
VALUES ($1::text, $2::text, $3::text, ledger.generation($1::text, $2::text, $3::text, $4::text), $5::text, $6::text::jsonb)`,
		k.Tenant, k.EventKey, k.Recipient, k.Channel, d.Fields["type"], data)
	if err != nil {
		return fmt.Errorf("insert notification: %w", err)
	}
	return nil
}
