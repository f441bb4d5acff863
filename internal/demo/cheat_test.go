package demo_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/demo"
)

// cheat is a relay that reads the shop's history instead of the log. publish is given the nth change and returns what
// to produce for it; last returns what to produce when it has been told to stop.
type cheat struct {
	publish func(nth int, e record) []record
	last    func() []record // nil: nothing
}

type record struct {
	id      uuid.UUID
	order   int64
	version int
}

// run has the signature of demo.Config.Relay.
func (c *cheat) run(soft, hard context.Context, target demo.Target) error {
	ln, err := net.Listen("tcp", target.AdminAddress)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ReadHeaderTimeout: time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	defer func() {
		server.Close()
		<-served
	}()
	conn, err := pgx.Connect(hard, target.PostgresURL)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(hard))
	client, err := kgo.NewClient(kgo.SeedBrokers(target.Brokers...), kgo.DefaultProduceTopic(target.Topic))
	if err != nil {
		return err
	}
	defer client.Close()

	produce := func(records []record) error {
		for _, out := range records {
			r := &kgo.Record{
				Key:     []byte(strconv.FormatInt(out.order, 10)),
				Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(out.id.String())}},
			}
			if err := client.ProduceSync(hard, r).FirstErr(); err != nil {
				return fmt.Errorf("produce: %w", err)
			}
		}
		return nil
	}
	nth := 0
	seen := map[uuid.UUID]bool{}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		events, err := history(hard, conn)
		if err != nil {
			return err
		}
		for _, e := range events {
			if seen[e.id] {
				continue
			}
			seen[e.id] = true
			nth++
			if err := produce(c.publish(nth, e)); err != nil {
				return err
			}
		}
		select {
		case <-soft.Done():
			if c.last == nil {
				return nil
			}
			return produce(c.last())
		case <-hard.Done():
			return context.Cause(hard)
		case <-tick.C:
		}
	}
}

func history(ctx context.Context, conn *pgx.Conn) ([]record, error) {
	rows, err := conn.Query(ctx, "SELECT event_id, order_id, version FROM shop.order_history ORDER BY order_id, version")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r record, err error) {
		return r, row.Scan(&r.id, &r.order, &r.version)
	})
}
