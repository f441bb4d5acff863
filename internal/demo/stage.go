package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/kafkaserver"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/migrations"
)

const (
	aggregateType = "order"
	topic         = "outbox.event." + aggregateType
	partitions    = 6
)

// stage is the servers, with the tables made. Ready to be set up, or closed, as its zero value.
type stage struct {
	postgres *pgserver.Server
	kafka    *kafkaserver.Fake
	target   Target
}

// shopSQL makes the business tables. The history is what the demo takes for the truth.
const shopSQL = `
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer   text        NOT NULL,
    cents      integer     NOT NULL,
    version    integer     NOT NULL DEFAULT 1,
    status     text        NOT NULL DEFAULT 'placed',
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON shop.orders (changed_at) WHERE status <> 'delivered';
CREATE TABLE shop.order_history (
    order_id bigint  NOT NULL,
    version  integer NOT NULL,
    event_id uuid    NOT NULL UNIQUE,
    PRIMARY KEY (order_id, version)
);`

// setUp starts the servers and makes the tables; step is told what is being done. close is needed after an error as
// well.
func (s *stage) setUp(ctx context.Context, major int, step func(string, time.Duration)) (err error) {
	s.kafka, err = kafkaserver.StartFake(kafkaserver.FakeConfig{Topics: map[string]int32{topic: partitions}})
	if err != nil {
		return err
	}
	const start = "starting PostgreSQL (if none is installed, its binaries are downloaded once, some 15 MB)"
	s.postgres, err = during(start, step, func() (*pgserver.Server, error) {
		return pgserver.Start(ctx, pgserver.Config{Major: major, Password: rand.Text()})
	})
	if err != nil {
		return err
	}
	url := s.postgres.DSN("postgres", "")
	version, err := during("making the tables", step, func() (string, error) { return makeTables(ctx, url) })
	if err != nil {
		return err
	}
	port, err := child.FreePort()
	if err != nil {
		return err
	}
	s.target = Target{
		PostgresURL: url, PostgresVersion: version,
		Brokers: s.kafka.Brokers(), Topic: topic, Partitions: partitions,
		AdminAddress: child.Address(port),
	}
	return nil
}

// during calls do and tells step that it lasts.
func during[T any](name string, step func(string, time.Duration), do func() (T, error)) (T, error) {
	began := time.Now()
	step(name, 0)
	over, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(told)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				step(name, time.Since(began))
			case <-over:
				return
			}
		}
	}()
	defer func() {
		close(over)
		<-told
	}()
	return do()
}

// makeTables applies the migrations, makes the shop and returns the server's version.
func makeTables(ctx context.Context, url string) (version string, err error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return "", fmt.Errorf("parse URL of the demo's PostgreSQL: %w", err)
	}
	if _, err := migrations.Up(ctx, cfg, migrations.Outbox()); err != nil {
		return "", err
	}
	conn, err := connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer disconnect(ctx, conn)
	if _, err := conn.Exec(ctx, shopSQL); err != nil {
		return "", fmt.Errorf("make the shop's tables: %w", err)
	}
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", fmt.Errorf("ask for the server's version: %w", err)
	}
	return version, nil
}

// connect opens a session in which nothing can hang for long.
func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse URL of the demo's PostgreSQL: %w", err)
	}
	cfg.RuntimeParams["application_name"] = "relay demo"
	cfg.RuntimeParams["statement_timeout"] = "20s"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the demo's PostgreSQL: %w", err)
	}
	return conn, nil
}

// disconnect says goodbye if that goes quickly.
func disconnect(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the server goes anyway
}

// close ends the servers and removes what they left.
func (s *stage) close() error {
	if s.kafka != nil {
		s.kafka.Close()
	}
	if s.postgres != nil {
		return s.postgres.Close()
	}
	return nil
}
