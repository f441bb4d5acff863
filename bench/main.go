package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errUsage marks mistakes of whoever typed the command line.
var errUsage = errors.New("bench: usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code := 0
	switch err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, err)
		code = 2
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	stop()
	os.Exit(code)
}

const synopsis = `usage: bench drain|latency|memory|ledger|write|check [flags]; bench <command> -h lists its flags`

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: %s", errUsage, synopsis)
	}
	name, args := args[0], args[1:]
	switch name {
	case "check":
		return check(args, stdin, stdout, stderr)
	case "floor": // what the floors run as: a process of their own
		return runFloor(ctx, args, stdout)
	}
	commands := map[string]func(context.Context, *bench) error{
		"drain": drain, "latency": latency, "memory": memory, "ledger": ledgerRates, "write": writeRates,
	}
	command, ok := commands[name]
	if !ok {
		return fmt.Errorf("%w: unknown command %q; %s", errUsage, name, synopsis)
	}
	b := &bench{command: name, opt: defaults(name), out: stdout, progress: stderr, began: time.Now()}
	if err := b.opt.parse(name, args, stderr); err != nil {
		return err
	}
	return errors.Join(command(ctx, b), b.close())
}
