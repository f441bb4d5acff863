package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testenv"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	migrate := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		var o, e bytes.Buffer
		code := testProcess([]string{"RELAY_POSTGRES_URL=" + db.URL}, &o, &e).execute(t.Context(), append([]string{"migrate"}, args...))
		if code != want {
			t.Fatalf("migrate %v: exit code %d, want %d: %s", args, code, want, e.String())
		}
		return o.String(), e.String()
	}
	if out, _ := migrate(exitOK, "status"); !strings.Contains(out, "outbox/00001_") || !strings.Contains(out, "not applied") {
		t.Errorf("status before: %s", out)
	}
	if out, _ := migrate(exitOK, "up", "--tables-only"); !strings.Contains(out, "applied outbox/00001_") || strings.Contains(out, "slot") {
		t.Errorf("up: %s", out)
	}
	if out, _ := migrate(exitOK, "up", "--tables-only"); out != "schema outbox is up to date\n" {
		t.Errorf("up again: %s", out)
	}
	slot := "--postgres-slot=" + db.Name
	if out, _ := migrate(exitOK, "up", slot); !strings.Contains(out, "made publication relay") || !strings.Contains(out, "made slot "+db.Name) {
		t.Errorf("up with slot: %s", out)
	}
	if out, _ := migrate(exitOK, "up", slot); !strings.Contains(out, "are there") || strings.Contains(out, "made") {
		t.Errorf("up with slot again: %s", out)
	}
	if out, _ := migrate(exitOK, "status"); strings.Contains(out, "not applied") || !strings.Contains(out, "applied 20") {
		t.Errorf("status after: %s", out)
	}
	sql, _ := migrate(exitOK, "print")
	conn, err := pgx.Connect(t.Context(), testenv.NewDatabase(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Errorf("what print prints does not apply: %v", err)
	}
	if out, _ := migrate(exitOK, "print", "--roles"); !strings.Contains(out, "GRANT") || out == sql {
		t.Errorf("print --roles: %s", out)
	}
}

// TestMigrate_NoRights shows that a refusal comes with a hint and not with the connection string.
func TestMigrate_NoRights(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE "+db.Name+"_poor LOGIN PASSWORD '"+canary+"'"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, db.URL)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "DROP ROLE "+db.Name+"_poor"); err != nil {
			t.Error(err)
		}
	})
	cfg := conn.Config()
	var out bytes.Buffer
	dsn := "postgres://" + db.Name + "_poor:" + canary + "@" + hostPorts(cfg)[0] + "/" + db.Name + "?sslmode=disable"
	code := testProcess([]string{"RELAY_POSTGRES_URL=" + dsn}, &out, &out).execute(t.Context(), []string{"migrate", "up"})
	if code != exitFailed || !strings.Contains(out.String(), "\nhint: ") {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	if strings.Contains(out.String(), canary) {
		t.Errorf("the password is shown: %s", out.String())
	}
}

func TestSlotWatch(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	slot := db.Name + "_watch"
	var open atomic.Int32
	fail := make(chan bool, 1)
	fail <- false
	w := newSlotWatch(func() (*pgx.ConnConfig, error) {
		broken := <-fail
		fail <- broken
		if broken {
			return nil, errors.New("no way in")
		}
		cfg, err := pgx.ParseConfig(db.URL)
		if err != nil {
			return nil, err
		}
		cfg.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, c net.Conn) (net.Conn, error) {
			open.Add(1)
			return &countedConn{Conn: c, open: &open}, nil
		}
		return cfg, nil
	}, slot)
	w.interval = 5 * time.Millisecond
	failures := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, func(err error) {
			select {
			case failures <- err:
			default:
			}
		})
	}()

	if _, ok := w.Reading(); ok {
		t.Error("a slot that is not there has a reading")
	}
	exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		r, ok := w.Reading()
		return ok && !r.Active, "no reading of the new slot"
	})
	exec("SELECT pg_logical_emit_message(false, 'x', repeat('x', 300000))")
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		r, ok := w.Reading()
		return ok && r.LagBytes > 300000 && r.RetainedBytes >= r.LagBytes, "lag does not show what was written"
	})

	// A lost connection is told, and replaced once that is possible again.
	<-fail
	fail <- true
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1", "relay "+slot+" watch")
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		select {
		case err := <-failures:
			return strings.Contains(err.Error(), "no way in"), err.Error()
		default:
			return false, "no failure was told"
		}
	})
	<-fail
	fail <- false
	exec("SELECT pg_drop_replication_slot($1)", slot)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		_, ok := w.Reading()
		return !ok, "a slot that is gone still has a reading"
	})
	cancel()
	<-ended
	if n := open.Load(); n != 0 {
		t.Errorf("the watch left %d connections", n)
	}
}

// countedConn counts itself out when it is closed.
type countedConn struct {
	net.Conn
	open *atomic.Int32
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// TestSlotWatch_Stale shows that an old reading is not taken for a present one.
func TestSlotWatch_Stale(t *testing.T) {
	t.Parallel()
	w := newSlotWatch(nil, "relay")
	w.reading, w.readAt = slotReading{LagBytes: 1}, time.Now().Add(-slotValidity+time.Minute/2)
	if _, ok := w.Reading(); !ok {
		t.Error("a fresh reading is not given")
	}
	w.readAt = time.Now().Add(-slotValidity)
	if _, ok := w.Reading(); ok {
		t.Error("a stale reading is given")
	}
}
