package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/outbox"
)

// order is a row of shop.orders, and the payload of its events.
type order struct {
	ID       int64  `json:"order"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
	Version  int    `json:"version"`
	Status   string `json:"status"`
}

// Both statements leave a line in the history with the event's ID.
const (
	placeSQL = `
		WITH o AS (
			INSERT INTO shop.orders (customer, cents) VALUES ($2, $3) RETURNING id, customer, cents, version, status
		), h AS (
			INSERT INTO shop.order_history (order_id, version, event_id) SELECT id, version, $1 FROM o
		)
		SELECT id, customer, cents, version, status FROM o`

	// The order that has waited longest and that nobody else is changing.
	advanceSQL = `
		WITH o AS (
			UPDATE shop.orders
			SET version = version + 1, changed_at = clock_timestamp(),
			    status = (ARRAY['placed', 'paid', 'packed', 'shipped', 'delivered'])[version + 1]
			WHERE id = (SELECT id FROM shop.orders WHERE status <> 'delivered'
			            ORDER BY changed_at LIMIT 1 FOR UPDATE SKIP LOCKED)
			RETURNING id, customer, cents, version, status
		), h AS (
			INSERT INTO shop.order_history (order_id, version, event_id) SELECT id, version, $1 FROM o
		)
		SELECT id, customer, cents, version, status FROM o`
)

// changeOrders makes n changes of orders and writes their events, all in tx.
func changeOrders(ctx context.Context, tx pgx.Tx, n int) ([]uuid.UUID, error) {
	var events []outbox.Event
	for range n {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("make event ID: %w", err)
		}
		o, err := changeOrder(ctx, tx, id)
		if err != nil {
			return nil, err
		}
		payload, err := outbox.Marshal(o)
		if err != nil {
			return nil, err
		}
		events = append(events, outbox.Event{
			ID:            id,
			EventKey:      fmt.Sprintf("order-%s:%d", o.Status, o.ID),
			AggregateType: aggregateType,
			AggregateID:   strconv.FormatInt(o.ID, 10),
			EventType:     "Order" + strings.ToUpper(o.Status[:1]) + o.Status[1:],
			Payload:       payload,
		})
	}
	return outbox.Write(ctx, tx, events...)
}

// changeOrder takes an order to its next status, or places a new one: one time in five, as an order has five
// statuses, and whenever there is none to change.
func changeOrder(ctx context.Context, tx pgx.Tx, eventID uuid.UUID) (o order, err error) {
	scan := []any{&o.ID, &o.Customer, &o.Cents, &o.Version, &o.Status}
	if rand.IntN(5) > 0 {
		err = tx.QueryRow(ctx, advanceSQL, eventID).Scan(scan...)
		if !errors.Is(err, pgx.ErrNoRows) {
			if err != nil {
				err = fmt.Errorf("change an order: %w", err)
			}
			return o, err
		}
	}
	customers := []string{"Ada", "Barbara", "Edsger", "Grace", "Leslie", "Niklaus"}
	customer, cents := customers[rand.IntN(len(customers))], 500+rand.IntN(9500)
	if err = tx.QueryRow(ctx, placeSQL, eventID, customer, cents).Scan(scan...); err != nil {
		err = fmt.Errorf("place an order: %w", err)
	}
	return o, err
}

// readTruth returns the committed changes by the ID of their event.
func readTruth(ctx context.Context, url string) (map[uuid.UUID]change, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer disconnect(ctx, conn)
	rows, err := conn.Query(ctx, "SELECT event_id, order_id, version FROM shop.order_history")
	if err != nil {
		return nil, fmt.Errorf("read the shop's history: %w", err)
	}
	truth := map[uuid.UUID]change{}
	var id uuid.UUID
	var c change
	if _, err := pgx.ForEachRow(rows, []any{&id, &c.order, &c.version}, func() error {
		truth[id] = c
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the shop's history: %w", err)
	}
	return truth, nil
}
