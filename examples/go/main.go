// Command go is both ends of an event's way: a service that writes business rows with an event, and a consumer that
// makes each delivery once.
//
//	DATABASE_URL=... LISTEN=127.0.0.1:8080 go run ./examples/go serve
//	relay run --sink-type stdout | DATABASE_URL=... MAIL_URL=... go run ./examples/go consume
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return errors.New("DATABASE_URL is not a connection string") // err may show the password
	}
	defer pool.Close()
	switch {
	case len(args) == 1 && args[0] == "serve":
		return serve(ctx, pool)
	case len(args) == 1 && args[0] == "consume":
		return consume(ctx, pool, os.Stdin, os.Stdout)
	}
	return errors.New("say serve or consume")
}

func serve(ctx context.Context, pool *pgxpool.Pool) error {
	listener, err := net.Listen("tcp", os.Getenv("LISTEN"))
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	mux := http.NewServeMux()
	mux.Handle("PUT /posts/{id}", publisher{pool})
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	end := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer end()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
