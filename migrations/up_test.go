package migrations_test

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/migrations"
)

const firstFile = "00001_events_and_relay_state.sql"

func TestUp(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	conn := connect(t, cfg)

	before, err := migrations.Status(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	if len(before) == 0 || before[0].File != firstFile || before[0].Version != 1 || !before[0].AppliedAt.IsZero() {
		t.Fatalf("status of an empty database: %+v", before)
	}
	if query1[bool](t, conn, "SELECT to_regnamespace('outbox') IS NOT NULL") {
		t.Fatal("Status made the schema")
	}

	applied, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	if len(applied) != len(before) {
		t.Fatalf("applied %d files, want %d", len(applied), len(before))
	}
	shape := fingerprint(t, conn)

	after, err := migrations.Status(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	now := query1[float64](t, conn, "SELECT extract(epoch FROM clock_timestamp())::float8")
	for i, m := range after {
		if m.File != before[i].File {
			t.Errorf("file %d: got %q, want %q", i, m.File, before[i].File)
		}
		if age := now - float64(m.AppliedAt.Unix()); age < -1 || age > 60 {
			t.Errorf("%s: applied %v s ago by status", m.File, age)
		}
	}

	again, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	if len(again) != 0 {
		t.Errorf("second Up applied %+v", again)
	}
	if diff := cmp.Diff(shape, fingerprint(t, conn)); diff != "" {
		t.Errorf("second Up changed the schema (-first +second):\n%s", diff)
	}
}

// A role or a database may keep another time zone; the version table keeps none.
func TestStatus_foreignTimeZone(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	conn := connect(t, cfg)
	exec1(t, conn, "ALTER DATABASE "+db.Name+" SET timezone = 'Pacific/Auckland'")
	if _, err := migrations.Up(t.Context(), cfg, migrations.Outbox()); err != nil {
		t.Fatal(err)
	}
	list, err := migrations.Status(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	now := query1[float64](t, conn, "SELECT extract(epoch FROM clock_timestamp())::float8")
	if age := now - float64(list[0].AppliedAt.Unix()); age < -1 || age > 60 {
		t.Errorf("applied %v s ago by status", age)
	}
}

func TestUp_concurrently(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)

	const callers = 4
	counts := make([]int, callers)
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			applied, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
			counts[i], errs[i] = len(applied), err
		})
	}
	wg.Wait()

	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	list, err := migrations.Status(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	if total != len(list) {
		t.Errorf("%d callers applied %v files, want %d in all", callers, counts, len(list))
	}
}

func TestUp_afterPsql(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	conn := connect(t, cfg)

	psql(t, db.URL, printed(t))
	shape := fingerprint(t, conn)
	applied, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
	if err != nil {
		t.Fatal(err)
	}
	if len(applied) == 0 || applied[0].File != firstFile {
		t.Errorf("Up recorded %+v", applied)
	}
	if diff := cmp.Diff(shape, fingerprint(t, conn)); diff != "" {
		t.Errorf("Up after psql changed the schema (-psql +Up):\n%s", diff)
	}
	psql(t, db.URL, printed(t))
	if diff := cmp.Diff(shape, fingerprint(t, conn)); diff != "" {
		t.Errorf("psql after Up changed the schema (-psql +again):\n%s", diff)
	}
}

// Rows, rights and settings of an installation outlive the files being applied again.
func TestUp_keepsWhatIsThere(t *testing.T) {
	t.Parallel()
	_, conn := migrated(t)
	exec1(t, conn, "SELECT outbox.publish('key', 'order', '1', 'OrderPlaced', '{}')")
	exec1(t, conn, "INSERT INTO outbox.relay_state (slot, system_identifier, timeline, incarnation, phase) VALUES ('relay', '1', 1, 1, 'creating')")
	exec1(t, conn, "GRANT SELECT ON outbox.events TO pg_monitor; GRANT EXECUTE ON FUNCTION outbox.uuid_v7() TO pg_monitor")
	shape := fingerprint(t, conn)
	exec1(t, conn, printed(t))
	if diff := cmp.Diff(shape, fingerprint(t, conn)); diff != "" {
		t.Errorf("the files changed an installation (-before +after):\n%s", diff)
	}
	if n := query1[int](t, conn, "SELECT count(*) FROM outbox.events, outbox.relay_state"); n != 1 {
		t.Errorf("%d rows left, want 1", n)
	}
}

func TestUp_withoutRight(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	conn := connect(t, config(t, db.URL))
	role := newRole(t, conn, "LOGIN")
	cfg := asRole(t, db, conn, role)

	_, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
	e, ok := errors.AsType[*migrations.Error](err)
	if !ok {
		t.Fatalf("got %v, want a *migrations.Error", err)
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
		t.Errorf("cause %v, want SQLSTATE 42501", err)
	}
	if !strings.Contains(e.Hint, "CREATE") || e.Step != "create schema" {
		t.Errorf("step %q, hint %q", e.Step, e.Hint)
	}

	// The owner of the schema needs no right on the database.
	exec1(t, conn, "CREATE SCHEMA outbox AUTHORIZATION "+role)
	if _, err := migrations.Up(t.Context(), cfg, migrations.Outbox()); err != nil {
		t.Errorf("as the schema's owner: %v", err)
	}
}

func TestUp_fileFails(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	conn := connect(t, cfg)
	exec1(t, conn, "CREATE SCHEMA outbox; CREATE VIEW outbox.events AS SELECT 1 AS event_key")

	_, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
	e, ok := errors.AsType[*migrations.Error](err)
	if !ok {
		t.Fatalf("got %v, want a *migrations.Error", err)
	}
	if e.File != firstFile || !strings.Contains(err.Error(), strconv.Quote(firstFile)) || len(e.Applied) != 0 {
		t.Errorf("file %q, applied %q, text %q", e.File, e.Applied, err)
	}
	if n := query1[int](t, conn, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace"); n != 0 {
		t.Errorf("%d functions left of a file that failed", n)
	}
}

// A migration that waits for a lock would make every writer wait behind it.
func TestUp_lockTimeout(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	conn := connect(t, cfg)
	exec1(t, conn, printed(t))
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "LOCK TABLE outbox.events"); err != nil {
		t.Fatal(err)
	}

	cfg.RuntimeParams["lock_timeout"] = "100ms"
	_, err = migrations.Up(t.Context(), cfg, migrations.Outbox())
	e, ok := errors.AsType[*migrations.Error](err)
	if !ok || e.File != firstFile || !strings.Contains(e.Hint, "lock") {
		t.Errorf("got %+v, want an error with a hint about the lock", err)
	}
}

func TestUp_standby(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	cfg := config(t, db.URL)
	cfg.RuntimeParams["default_transaction_read_only"] = "on"
	_, err := migrations.Up(t.Context(), cfg, migrations.Outbox())
	if e, ok := errors.AsType[*migrations.Error](err); !ok || !strings.Contains(e.Hint, "primary") {
		t.Errorf("got %+v, want a hint about the primary", err)
	}
}

// The oldest and the newest server, whichever the other tests run on.
func TestUp_majors(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			db := testenv.NewDatabaseOn(t, testenv.PostgresMajor(t, major).DSN("postgres", ""))
			cfg := config(t, db.URL)
			if _, err := migrations.Up(t.Context(), cfg, migrations.Outbox()); err != nil {
				t.Fatal(err)
			}
			conn := connect(t, cfg)
			checkUUIDs(t, conn)
			checkPublish(t, conn)
		})
	}
}
