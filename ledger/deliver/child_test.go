package deliver_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	procs "github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/ledger/deliver"
)

const envChild = "DELIVER_TEST_CHILD"

// childMain is a worker in a process of its own, to be killed. Its channel writes each effect as a row of the table
// effects, after its time has passed.
func childMain() int {
	ctx := context.Background()
	app, err := pgxpool.New(ctx, os.Getenv("CHILD_URL"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pool, err := pgxpool.New(ctx, os.Getenv("CHILD_URL"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	text, err := os.ReadFile(os.Getenv("CHILD_RULES"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	kind := deliver.Kind{Name: "test", Fields: []deliver.Field{{Name: "line"}}, New: func(deliver.Settings) (deliver.Channel, error) { return effects{app}, nil }}
	rules, err := deliver.ParseRules(text, append(deliver.Kinds(deliver.NewLineWriter(os.Stdout)), kind))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cfg := deliver.DefaultConfig()
	cfg.SameDatabase, cfg.Poll, cfg.Chunk = true, 50*time.Millisecond, 50
	cfg.Kafka.Brokers, cfg.Kafka.Topics = strings.Split(os.Getenv("CHILD_BROKERS"), ","), []string{os.Getenv("CHILD_TOPIC")}
	cfg.Kafka.Group, cfg.Kafka.SessionTimeout = os.Getenv("CHILD_GROUP"), 6*time.Second
	w, err := deliver.New(cfg, rules, app, pool)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := w.Run(ctx, ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type effects struct{ pool *pgxpool.Pool }

func (e effects) Send(ctx context.Context, d deliver.Delivery) (string, error) {
	timer := time.NewTimer(5 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	_, err := e.pool.Exec(ctx, "INSERT INTO effects VALUES ($1)", d.ProviderKey)
	return "", err
}

// child starts a worker as a process.
func (r *rig) child(t *testing.T, rules string) *procs.Process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envChild+"=1", "CHILD_URL="+r.url, "CHILD_RULES="+rules,
		"CHILD_BROKERS="+strings.Join(r.brokers, ","), "CHILD_TOPIC="+r.topic, "CHILD_GROUP=g-"+r.topic)
	cmd.Stderr = os.Stderr
	p, err := procs.Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
