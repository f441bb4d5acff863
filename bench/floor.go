package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// floorConfig is what the process of a floor is told.
type floorConfig struct {
	dsn     string
	rows    int
	brokers []string
	topic   string
	linger  time.Duration
}

// runFloor is the process of a floor: "floor receive" or "floor pipe".
func runFloor(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: floor receive|pipe", errUsage)
	}
	var cfg floorConfig
	var brokers string
	fs := flag.NewFlagSet("bench floor", flag.ContinueOnError)
	fs.StringVar(&cfg.dsn, "dsn", "", "database")
	fs.IntVar(&cfg.rows, "rows", 0, "rows to expect")
	fs.StringVar(&brokers, "brokers", "", "brokers")
	fs.StringVar(&cfg.topic, "topic", "", "topic")
	fs.DurationVar(&cfg.linger, "linger", 0, "how long the producer waits for more")
	if err := fs.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	cfg.brokers = strings.Split(brokers, ",")
	switch args[0] {
	case "receive":
		return floorReceive(ctx, cfg, stdout)
	case "pipe":
		return floorPipe(ctx, cfg)
	}
	return fmt.Errorf("%w: floor receive|pipe", errUsage)
}

// startStream connects and starts the run's slot. binary asks for values in binary, which costs the server less.
func startStream(ctx context.Context, dsn string, binary bool, edit func(*pgconn.Config)) (*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse connection string: %w", err)
	}
	config.RuntimeParams["replication"] = "database"
	if edit != nil {
		edit(config)
	}
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	args := []string{"proto_version '1'", "publication_names '" + publication + "'"}
	if binary {
		args = append(args, "binary 'true'")
	}
	err = pglogrepl.StartReplication(ctx, conn, runSlot, 0, pglogrepl.StartReplicationOptions{PluginArgs: args})
	if err != nil {
		return nil, fmt.Errorf("start replication: %w", err)
	}
	return conn, nil
}

// floorReceive counts rows and looks at nothing else. It confirms nothing, and says when it has them all; then it
// stays, so that the walsender can be asked for its CPU time.
func floorReceive(ctx context.Context, cfg floorConfig, stdout io.Writer) error {
	var wire *patientConn
	conn, err := startStream(ctx, cfg.dsn, true, func(c *pgconn.Config) {
		dial := c.DialFunc
		c.DialFunc = wrapDial(dial, &wire)
	})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { wire.Close() })
	defer stop()
	wire.patient = true
	for left := cfg.rows; ; {
		// No context: pgconn would spend more on watching it than on the message.
		message, err := conn.ReceiveMessage(context.Background())
		if err != nil {
			return stopped(ctx, fmt.Errorf("receive: %w", err))
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok || len(data.Data) < 26 || data.Data[0] != 'w' || data.Data[25] != 'I' {
			continue
		}
		if left--; left == 0 {
			if _, err := fmt.Fprintln(stdout, "received"); err != nil {
				return fmt.Errorf("say so: %w", err)
			}
		}
	}
}

// stopped is nil once the floor was told to stop, else err.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
