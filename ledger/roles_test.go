package ledger_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/migrations"
)

// A worker needs no more than the rights of its role, through retries and probes.
func TestDeliver_asWorkerRole(t *testing.T) {
	t.Parallel()
	psql, err := exec.LookPath("psql")
	if err != nil {
		testenv.Require(t, "psql is not installed")
	}
	r := setup(t)
	var script strings.Builder
	if err := migrations.Ledger().PrintRoles(&script); err != nil {
		t.Fatal(err)
	}
	id := "t" + strings.ReplaceAll(uuid.NewString(), "-", "")[:12] // roles are the whole server's
	names := []string{id + "_worker", id + "_operator", id + "_reader"}
	cmd := exec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", r.url,
		"-v", "worker_role="+names[0], "-v", "operator_role="+names[1], "-v", "reader_role="+names[2])
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		for _, name := range names {
			r.exec(t, "DROP OWNED BY "+name+"; DROP ROLE "+name)
		}
	})

	cfg, err := pgxpool.ParseConfig(r.url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.RuntimeParams["role"] = names[0]
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l := newLedger(t, p, func(c *ledger.Config) { c.Replay = 24 * time.Hour })
	if err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
	provider := newProvider()
	provider.fail = 2
	for _, outcome := range []ledger.Outcome{ledger.Failed, ledger.Failed} {
		want(t, "fails", outcome)(swallow(errProvider)(l.Deliver(t.Context(), keyOn("sms"), provider.handler(), ledger.WithContent(ledger.Content{Type: "T"}))))
		r.expire(t, r.id(t, keyOn("sms")))
	}
	r.killWorker(t, "email", whenReserved)
	r.expire(t, r.id(t, keyOn("email")))
	want(t, "takeover", ledger.Delivered)(l.Deliver(t.Context(), keyOn("email"), newProvider().handler()))
	if n := l.Stats().Takeovers; n != 1 {
		t.Errorf("%d takeovers counted, want 1 and no retry among them", n)
	}
	h := provider.handler()
	h.Probe = func(context.Context, ledger.Reservation) (ledger.Verdict, error) { return ledger.VerdictDelivered, nil }
	r.killWorker(t, "sms", whenBegun)
	r.expire(t, r.id(t, keyOn("sms")))
	stop := run(t, l, map[string]ledger.Handler{"sms": h})
	r.waitDelivered(t, 1)
	stop()
	if n := provider.arrived(); n != 0 {
		t.Errorf("%d effects, want none", n)
	}
}
