package sqltest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testenv"
)

var writers = []string{
	"SELECT ledger.remember('', 'k:1', 'T', NULL, NULL, now(), NULL)",
	"SELECT ledger.reserve('', 'k:1', 'user:1', 'simple', 'w', now())",
	"SELECT ledger.reserve_batch('', 'k:1', ARRAY['user:1'], 'simple', 'w', now())",
	"SELECT ledger.register_batch('', 'k:1', ARRAY['user:1'], 'simple', now())",
	"SELECT ledger.once('', 'k:1', 'user:1', 'simple', now())",
	"SELECT ledger.once_batch('', 'k:1', ARRAY['user:1'], 'simple', now())",
	"SELECT ledger.claim_due('w', ARRAY['simple'], 1)",
	"SELECT ledger.claim_uncertain('w', ARRAY['simple'], 1, NULL)",
	"SELECT ledger.begin_effect(1, 1)", "SELECT ledger.renew(1, 1)", "SELECT ledger.complete(1, 1)",
	"SELECT ledger.complete_batch(ARRAY[1], ARRAY[1], NULL)", "SELECT ledger.fail(1, 1, 'retry', 'x')",
	"SELECT ledger.skip(1, 1, 'x')", "SELECT ledger.release(1, 1)", "SELECT ledger.resolve(1, 1, 'dead', 'ann', 'x')",
	"SELECT ledger.redrive(1, 'ann', 'x')", "SELECT ledger.sweep(1)", "SELECT ledger.purge(1)",
}

// T20: a snapshot older than the statement would hide what a concurrent delivery committed.
func TestIsolation(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		for _, sql := range append(writers, "SELECT ledger.reserve('', 'k:1', '', 'listener:x', 'w', now())") {
			tx, err := b.conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), sql)
			pg, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pg.Code != "25000" || !strings.Contains(pg.Message, strings.ToUpper(string(level))) || !strings.Contains(pg.Hint, "READ COMMITTED") {
				t.Errorf("%s in %s: %v, want SQLSTATE 25000 and a hint", sql, level, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if rows(b) != 0 {
		t.Error("a refused call left a row")
	}
}

// T20: no outcome depends on the language of the server's messages.
func TestMessages_otherLanguage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if bad := list[string](b, `SELECT proname::text FROM pg_proc WHERE pronamespace = 'ledger'::regnamespace AND prosrc ~* 'sqlerrm|message_text'`); len(bad) > 0 {
		t.Errorf("look at message texts: %v", bad)
	}
	busy := func(language string) {
		tx := b.begin(b.conn)
		if _, err := tryReserve(t.Context(), tx, "k:1", "user:1", "simple", "w", nil); err != nil {
			t.Fatal(err)
		}
		other := b.connect()
		if language != "" {
			if _, err := other.Exec(t.Context(), "SELECT set_config('lc_messages', $1, false)", language); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := tryReserve(t.Context(), other, "k:1", "user:1", "simple", "w", nil); err != nil || r.Outcome != "busy" || r.ID != nil {
			t.Errorf("in language %q: %q and %v, want busy", language, r.Outcome, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	busy("")
	for _, language := range []string{"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ja_JP.UTF-8"} {
		if _, err := b.pool.Exec(t.Context(), "SELECT set_config('lc_messages', $1, true)", language); err == nil {
			busy(language)
			return
		}
	}
	testenv.Require(t, "the server has no locale with another language")
}

// T20: transactions of many clients share few sessions.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		testenv.Require(t, "pgbouncer is not installed")
	}
	b := setup(t)
	pooled := startPgBouncer(t, program, b.db.URL)
	connect := func() *pgx.Conn {
		cfg, err := pgx.ParseConfig(pooled)
		if err != nil {
			t.Fatal(err)
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements belong to a session
		var conn *pgx.Conn
		testenv.Eventually(t, 10*time.Second, func() (bool, string) {
			conn, err = pgx.ConnectConfig(t.Context(), cfg)
			return err == nil, fmt.Sprint(err)
		})
		t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[string]int{}
	for range 12 {
		conn := connect()
		wg.Go(func() {
			for i := range 20 {
				var outcome string
				var id, fence *int64
				err := conn.QueryRow(t.Context(), "SELECT outcome, id, fence FROM ledger.reserve('', $1, 'user:1', 'hold', 'w', now(), '1 min'::interval)", fmt.Sprint("k:", i)).
					Scan(&outcome, &id, &fence)
				if err == nil && outcome == "reserved" {
					for _, sql := range []string{"SELECT ledger.begin_effect($1, $2)", "SELECT ledger.complete($1, $2)"} {
						if err = conn.QueryRow(t.Context(), sql, *id, *fence).Scan(&outcome); err != nil {
							break
						}
					}
				}
				if err != nil {
					outcome = err.Error()
				}
				mu.Lock()
				outcomes[outcome]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if outcomes["delivered"] != 20 || outcomes["delivered"]+outcomes["already_delivered"]+outcomes["already_reserved"]+outcomes["busy"] != 240 {
		t.Errorf("outcomes %v, want 20 delivered and nothing but duplicates else", outcomes)
	}
	if n := one[int](b, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'delivered' AND fence = 1"); n != 20 {
		t.Errorf("%d deliveries at the first attempt, want 20", n)
	}
}

// startPgBouncer starts a pooler of two server sessions before the database and returns its URL.
func startPgBouncer(t *testing.T, program, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal("parse URL")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	password := ""
	if p, ok := u.User.Password(); ok && p != "" {
		password = " password='" + p + "'"
	}
	dir, err := os.MkdirTemp("", "pgbouncer") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ini := fmt.Sprintf(`[databases]
%[1]s = host=%[2]s port=%[3]s dbname=%[1]s user=%[4]s%[5]s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[6]d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
ignore_startup_parameters = extra_float_digits
`, strings.TrimPrefix(u.Path, "/"), u.Hostname(), u.Port(), u.User.Username(), password, port)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-q", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 { // it refuses to run as root
		nobody, err := user.Lookup("nobody")
		if err != nil {
			testenv.Require(t, "no user nobody to run pgbouncer as")
		}
		uid, _ := strconv.Atoi(nobody.Uid)
		gid, _ := strconv.Atoi(nobody.Gid)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d%s?sslmode=disable", u.User.Username(), port, u.Path)
}
