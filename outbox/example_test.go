package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// order is the business row of the example.
type order struct {
	Number int    `json:"number"`
	Total  string `json:"total"`
}

var errNoCredit = errors.New("no credit")

// placeOrder writes the order and the event that tells of it, both or neither.
func placeOrder(ctx context.Context, conn *pgx.Conn, o order, hasCredit bool) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (number, total) VALUES ($1, $2::text::numeric)", o.Number, o.Total); err != nil {
			return err
		}
		payload, err := outbox.Marshal(o)
		if err != nil {
			return err
		}
		if _, err := outbox.Write(ctx, tx, outbox.Event{
			EventKey:      fmt.Sprintf("order-placed:%d", o.Number),
			AggregateType: "order",
			AggregateID:   fmt.Sprint(o.Number),
			EventType:     "OrderPlaced",
			Payload:       payload,
		}); err != nil {
			return err
		}
		if !hasCredit {
			return errNoCredit // rolls back: no order, and nothing is published
		}
		return nil
	})
}

// shop places one order that commits and one that does not, and prints what the outbox holds.
func shop(ctx context.Context, url string, out io.Writer) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE TABLE orders (number int PRIMARY KEY, total numeric NOT NULL)"); err != nil {
		return err
	}
	if err := placeOrder(ctx, conn, order{Number: 1, Total: "12.50"}, true); err != nil {
		return err
	}
	if err := placeOrder(ctx, conn, order{Number: 2, Total: "99.00"}, false); !errors.Is(err, errNoCredit) {
		return fmt.Errorf("order without credit: %w", err)
	}
	rows, err := conn.Query(ctx, "SELECT event_key, payload::text FROM outbox.events")
	if err != nil {
		return err
	}
	var key, payload string
	_, err = pgx.ForEachRow(rows, []any{&key, &payload}, func() error {
		_, err := fmt.Fprintln(out, key, payload)
		return err
	})
	return err
}

func Example() {
	if err := shop(context.Background(), os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		fmt.Println(err)
	}
	// prints: order-placed:1 {"number":1,"total":"12.50"}
}

func TestExample(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := shop(t.Context(), newOutbox(t), &out); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), `order-placed:1 {"number":1,"total":"12.50"}`+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
