package ledger_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
)

// A worker that dies is this test binary run again, which works until it is where it shall be killed, says so and
// waits. What it sends goes to table sends.
const (
	envChild     = "LEDGER_TEST_CHILD" // where to wait
	envChildURL  = "LEDGER_TEST_CHILD_URL"
	envChannel   = "LEDGER_TEST_CHILD_CHANNEL"
	whenReserved = "reserved" // held, nothing begun
	whenBegun    = "begun"    // begun, nothing sent
	whenSent     = "sent"     // sent, nothing recorded
)

func childMain(stage string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := pgxpool.New(ctx, os.Getenv(envChildURL))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg := ledger.DefaultConfig()
	cfg.Worker = "child"
	l, err := ledger.New(ledger.Pgx(p), cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	at := func(now string) {
		if now == stage {
			fmt.Println(stage)
			<-ctx.Done()
		}
	}
	outcome, err := l.Deliver(ctx, keyOn(os.Getenv(envChannel)), ledger.Handler{
		Eligible: func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
			at(whenReserved)
			return true, "", nil
		},
		Effect: func(ctx context.Context, r ledger.Reservation) (string, error) {
			at(whenBegun)
			if _, err := p.Exec(ctx, "INSERT INTO sends VALUES ($1)", r.ProviderKey); err != nil {
				return "", err
			}
			at(whenSent)
			return "", nil
		},
	})
	fmt.Fprintln(os.Stderr, "not killed:", outcome, err)
	return 1
}

// killWorker lets another process work on the key of channel and kills it at the stage.
func (r *rig) killWorker(t *testing.T, channel, stage string) {
	t.Helper()
	r.exec(t, "CREATE TABLE IF NOT EXISTS sends (provider_key text)")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), envChild+"="+stage, envChildURL+"="+r.url, envChannel+"="+channel)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(out).ReadString('\n')
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if strings.TrimSpace(line) != stage {
		t.Fatalf("worker said %q, error %v\n%s", line, readErr, &stderr)
	}
}

// sends is how often the killed workers and this one have sent.
func (r *rig) sends(t *testing.T) int { return query1[int](t, r, "SELECT count(*) FROM sends") }

// sender is a handler that sends to the same table as the killed workers.
func (r *rig) sender() ledger.Handler {
	return ledger.Handler{Effect: func(ctx context.Context, res ledger.Reservation) (string, error) {
		_, err := r.pool.Exec(ctx, "INSERT INTO sends VALUES ($1)", res.ProviderKey)
		return "", err
	}}
}
