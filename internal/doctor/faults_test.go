package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/testenv"
)

// fault is one thing that is broken, and the line that must say so.
type fault struct {
	name    string
	from    int      // PostgreSQL from this major version on; 0: each
	harm    []string // statements of a superuser
	more    func(*rig)
	section string
	check   string
	want    doctor.Status
	says    string
	mend    []string // where what the check says to run is not what mends it
	stays   bool     // nothing that can be run mends it
}

const (
	slotGone   = `SELECT pg_drop_replication_slot('{slot}')`
	recordGone = `DELETE FROM outbox.relay_state`
)

func databaseFaults() []fault {
	return []fault{
		{name: "no SELECT", harm: []string{`REVOKE SELECT ON outbox.events FROM {role}`}, section: "Rights", check: "grants", want: doctor.Fail, says: "SELECT on table outbox.events"},
		{name: "SELECT on some columns", harm: []string{`REVOKE SELECT ON outbox.events FROM {role}`, `GRANT SELECT (id, payload, event_key) ON outbox.events TO {role}`},
			section: "Rights", check: "grants", want: doctor.Fail, says: `"aggregate_type"`},
		{name: "no UPDATE of relay_state", harm: []string{`REVOKE UPDATE ON outbox.relay_state FROM {role}`}, section: "Rights", check: "grants", want: doctor.Fail, says: "UPDATE on table outbox.relay_state"},
		{name: "no INSERT into backlog", harm: []string{`REVOKE INSERT ON outbox.backlog FROM {role}`}, section: "Rights", check: "grants", want: doctor.Fail, says: "INSERT on table outbox.backlog"},
		{name: "no USAGE", harm: []string{`REVOKE USAGE ON SCHEMA outbox FROM {role}`}, section: "Rights", check: "grants", want: doctor.Fail, says: "USAGE on schema outbox"},
		{name: "no REPLICATION", harm: []string{`ALTER ROLE {role} NOREPLICATION`}, section: "PostgreSQL", check: "replication", want: doctor.Fail, says: "may not replicate"},
		{name: "superuser", harm: []string{`ALTER ROLE {role} SUPERUSER`}, section: "Rights", check: "role", want: doctor.Warn, says: "superuser", mend: []string{`ALTER ROLE {role} NOSUPERUSER`}},
		{name: "attributes", harm: []string{`ALTER ROLE {role} CREATEDB CREATEROLE`}, section: "Rights", check: "role", want: doctor.Warn, says: "CREATEDB, CREATEROLE"},
		{name: "INSERT", harm: []string{`GRANT INSERT, UPDATE ON outbox.events TO {role}`}, section: "Rights", check: "no more than needed", want: doctor.Warn, says: "INSERT, UPDATE on outbox.events"},
		{name: "CREATE", harm: []string{`GRANT CREATE ON DATABASE "{db}" TO {role}`, `GRANT CREATE ON SCHEMA outbox TO {role}`}, section: "Rights", check: "no more than needed", want: doctor.Warn, says: "CREATE on the database"},
		{name: "row security", harm: []string{`ALTER TABLE outbox.events ENABLE ROW LEVEL SECURITY`}, section: "Rights", check: "row security", want: doctor.Fail, says: "would miss rows"},

		{name: "no table", harm: []string{`DROP TABLE outbox.recoveries`}, section: "Schema", check: "migrations", want: doctor.Fail, says: "lacks table outbox.recoveries", mend: []string{`DELETE FROM outbox.migrations WHERE version_id > 1`, "relay migrate up", `GRANT SELECT, INSERT ON outbox.recoveries TO {role}`}},
		{name: "no function", harm: []string{`DROP FUNCTION outbox.publish`}, section: "Schema", check: "migrations", want: doctor.Fail, says: "lacks function outbox.publish", mend: []string{`DELETE FROM outbox.migrations WHERE version_id > 0`, "relay migrate up"}},
		{name: "renamed column", harm: []string{`ALTER TABLE outbox.events RENAME COLUMN aggregate_id TO other`}, section: "Schema", check: "table outbox.events", want: doctor.Fail, says: `"aggregate_id"`, mend: []string{`ALTER TABLE outbox.events RENAME COLUMN other TO aggregate_id`}},
		{name: "no publication", harm: []string{`DROP PUBLICATION relay`}, section: "Schema", check: "publication", want: doctor.Fail, says: "does not exist", stays: true},
		{name: "updates", harm: []string{`ALTER PUBLICATION relay SET (publish = 'insert, update')`}, section: "Schema", check: "publication inserts only", want: doctor.Warn, says: "updates"},
		{name: "no inserts", harm: []string{`ALTER PUBLICATION relay SET (publish = 'update')`}, section: "Schema", check: "publication", want: doctor.Fail, says: "does not publish inserts"},
		{name: "table left out", harm: []string{`CREATE TABLE public.other (id int PRIMARY KEY)`, `ALTER PUBLICATION relay SET TABLE public.other`}, section: "Schema", check: "publication", want: doctor.Fail, says: "does not contain table"},
		{name: "another table", harm: []string{`CREATE TABLE public.other (id int PRIMARY KEY)`, `ALTER PUBLICATION relay ADD TABLE public.other`}, section: "Schema", check: "publication tables", want: doctor.Warn, says: `"public"."other"`},
		{name: "replica identity", harm: []string{`CREATE PUBLICATION every FOR ALL TABLES`, `ALTER TABLE outbox.events DROP CONSTRAINT events_pkey`}, section: "Schema", check: "replica identity of outbox.events", want: doctor.Warn, says: "every"},

		{name: "no slot", harm: []string{slotGone}, section: "Slot", check: "slot", want: doctor.Fail, says: "1 events", mend: []string{"relay recover"}},
		{name: "rows and no slot", harm: []string{slotGone, recordGone}, section: "Slot", check: "backlog", want: doctor.Fail, says: "holds 1 rows", stays: true},
		{name: "another's slot", harm: []string{recordGone}, section: "Slot", check: "slot", want: doctor.Fail, says: "may not bring", mend: []string{`DELETE FROM outbox.events`}},
		{name: "slot moved", harm: []string{`SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())`}, section: "Slot", check: "slot", want: doctor.Fail, says: "events committed between", mend: []string{"relay recover"}},
		{name: "physical slot", harm: []string{slotGone, `SELECT pg_create_physical_replication_slot('{slot}')`}, section: "Slot", check: "slot", want: doctor.Fail, says: "physical", stays: true},
		{name: "temporary slot", harm: []string{slotGone, recordGone, `DELETE FROM outbox.events`, `SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', true)`}, section: "Slot", check: "slot's making", want: doctor.Fail, says: "temporary", stays: true},
		{name: "two_phase", harm: []string{slotGone, recordGone, `DELETE FROM outbox.events`, `SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)`}, section: "Slot", check: "slot's making", want: doctor.Warn, says: "two_phase",
			mend: []string{slotGone, `SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')`}},
		{name: "slot older than publication", harm: []string{recordGone, `DELETE FROM outbox.events`, `DROP PUBLICATION relay`, `CREATE PUBLICATION relay FOR TABLE outbox.events WITH (publish = 'insert')`},
			section: "Slot", check: "slot's age", want: doctor.Warn, says: "after the oldest", mend: []string{slotGone, `SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')`}},
		{name: "half a recovery", harm: []string{`UPDATE outbox.relay_state SET phase = 'creating'`}, section: "Slot", check: "slot", want: doctor.Fail, says: "begun and not finished", mend: []string{"relay recover"}},
		{name: "restored", harm: []string{`UPDATE outbox.relay_state SET system_identifier = '1'`}, section: "Slot", check: "slot", want: doctor.Fail, says: "is of server 1", mend: []string{"relay recover"}},
		{name: "publication changed", harm: []string{`ALTER PUBLICATION relay DROP TABLE outbox.events`, `SELECT outbox.publish('key', 'Order', '42', 'Placed', '{}')`, `ALTER PUBLICATION relay ADD TABLE outbox.events`},
			section: "Slot", check: "publication's past", want: doctor.Fail, says: `changed since the relay last looked ("outbox"."events")`, mend: []string{"relay recover"}},
		{name: "failover asked for", from: 17, more: func(r *rig) { r.doc.Failover = true }, section: "Slot", check: "failover", want: doctor.Warn, says: "without", stays: true},

		{name: "large row", harm: []string{`SELECT outbox.publish('key', 'Order', '42', 'Placed', payload_bytes => decode(repeat('ab', 1100000), 'hex'))`}, section: "Outbox", check: "record size of outbox.events", want: doctor.Warn, says: "1.0 MiB",
			mend: []string{`DELETE FROM outbox.events WHERE payload_bytes IS NOT NULL`}},
		{name: "topic not allowed", harm: []string{`SELECT outbox.publish('key', 'Order', '42', 'Placed', '{}', topic => 'elsewhere')`}, section: "Kafka", check: "routes", want: doctor.Warn, says: "elsewhere",
			mend: []string{`DELETE FROM outbox.events WHERE topic IS NOT NULL`}},
	}
}

// A sound relay has nothing to hear but what the server and the broker of a test are; then one thing is broken, one line
// says so, and what it says to do mends it.
func TestFaults(t *testing.T) {
	t.Parallel()
	// Sections that ask the catalog for what older versions have otherwise. The newest has them all.
	byVersion := map[int][]string{14: {"Schema", "Slot"}, 15: {"Schema"}}
	for _, major := range []int{14, 15, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			server := testenv.PostgresWith(t, major, quiet())
			t.Run("nothing", func(t *testing.T) {
				r := newRig(t, server)
				if w := wrong(r.examine()); len(w) > 0 {
					t.Errorf("of a sound relay:\n%s", strings.Join(w, "\n"))
				}
			})
			for _, f := range databaseFaults() {
				if major < f.from || major != 18 && !slices.Contains(byVersion[major], f.section) {
					continue
				}
				t.Run(f.name, func(t *testing.T) {
					f.run(t, newRig(t, server))
				})
			}
		})
	}
}

func (f fault) run(t *testing.T, r *rig) {
	t.Helper()
	r.exec(f.harm...)
	if f.more != nil {
		f.more(r)
	}
	rep := r.examine()
	c := worst(rep, f.section, f.check)
	if c.Status != f.want || !strings.Contains(c.Seen, f.says) {
		t.Fatalf("got %s %q, want %s with %q; all that is wrong:\n%s", c.Status, c.Seen, f.want, f.says, strings.Join(wrong(rep), "\n"))
	}
	if c.Fix == "" && len(c.Run) == 0 {
		t.Errorf("%s: it does not say what to do", c.Seen)
	}
	if f.stays {
		return
	}
	if f.mend == nil {
		r.follow(c)
	}
	for _, what := range f.mend {
		if strings.HasPrefix(what, "relay ") {
			r.follow(doctor.Check{Run: []string{what}})
		} else {
			r.exec(what)
		}
	}
	rep = r.examine()
	if c := worst(rep, "Slot", "publication's past"); c.Status == doctor.Fail && f.check != c.Name {
		r.vouch() // it was the publication that was mended
		rep = r.examine()
	}
	if c := worst(rep, f.section, f.check); c.Status == doctor.Warn || c.Status == doctor.Fail {
		t.Errorf("mended, and still: %s %s", c.Status, c.Seen)
	}
	if rep.Fail > 0 {
		t.Errorf("mended, and still:\n%s", strings.Join(wrong(rep), "\n"))
	}
}

// What would be skipped for want of something says so, and nothing else is told of it.
func TestSkip(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 0, quiet()))
	r.db.URL = strings.Replace(r.db.URL, r.db.Name, r.db.Name+"_none", 1)
	rep := r.examine()
	if c := worst(rep, "PostgreSQL", "connection"); c.Status != doctor.Fail || !strings.Contains(c.Seen, "does not exist") || !strings.Contains(c.Fix, "postgres.url") {
		t.Errorf("got %+v", c)
	}
	if rep.Fail != 1 {
		t.Errorf("one cause, and %d failures:\n%s", rep.Fail, strings.Join(wrong(rep), "\n"))
	}
	for _, c := range rep.Find("Slot", "slot") {
		if c.Status != doctor.Skip || !strings.Contains(c.Seen, `"connection"`) {
			t.Errorf("got %+v", c)
		}
	}
	r.db.URL = strings.Replace(r.db.URL, r.db.Name+"_none", r.db.Name, 1)
}

// A publication that leaves out a column which the table may lack.
func TestColumnList(t *testing.T) {
	t.Parallel()
	server := testenv.PostgresWith(t, 18, quiet())
	r := newRig(t, server, func(c *cdc.Config) {
		c.Tables = []cdc.Mapping{{Table: cdc.Table{Schema: "outbox", Name: "events"}, Columns: []cdc.Column{
			{Field: cdc.FieldID, Name: "id"}, {Field: cdc.FieldAggregateID, Name: "aggregate_id"}, {Field: cdc.FieldAggregateType, Name: "aggregate_type"},
			{Field: cdc.FieldPayload, Name: "payload"}, {Field: cdc.FieldHeaders, Name: "headers", Optional: true},
		}}}
	})
	fault{harm: []string{`ALTER PUBLICATION relay SET TABLE outbox.events (id, aggregate_id, aggregate_type, payload)`}, section: "Schema",
		check: "columns of outbox.events", want: doctor.Warn, says: "leaves out headers"}.run(t, r)
}

// Transactions that a new slot waits for are found by a role that may not read others' activity.
func TestTransactions(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			server := testenv.PostgresWith(t, major, map[string]string{"max_slot_wal_keep_size": "1GB", "max_prepared_transactions": "21"})
			r := newRig(t, server)
			r.exec(slotGone, recordGone)
			other := r.connect()
			tx, err := other.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `CREATE TABLE public.made_in_a_transaction (id int)`); err != nil {
				t.Fatal(err)
			}
			c := worst(r.examine(), "PostgreSQL", "transactions")
			if c.Status != doctor.Warn || !strings.Contains(c.Seen, fmt.Sprint(other.PgConn().PID())) {
				t.Fatalf("got %+v", c)
			}
			r.follow(c)
			if c := worst(r.examine(), "PostgreSQL", "transactions"); c.Status != doctor.OK {
				t.Errorf("with the right to see: %+v", c)
			}
			if _, err := tx.Exec(t.Context(), `PREPARE TRANSACTION 'it''s open'`); err != nil {
				t.Fatal(err)
			}
			c = worst(r.examine(), "PostgreSQL", "prepared transactions")
			if c.Status != doctor.Warn || !strings.Contains(c.Seen, "it's open") {
				t.Errorf("got %+v", c)
			}
			r.follow(c)
			if c := worst(r.examine(), "PostgreSQL", "prepared transactions"); c.Status != doctor.OK {
				t.Errorf("rolled back: %+v", c)
			}
		})
	}
}

// A large table is sampled, and says so; many dead rows are told.
func TestLargeTable(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	r.exec(`ALTER TABLE outbox.events SET (autovacuum_enabled = false)`,
		`INSERT INTO outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload) SELECT 'k', 'Order', '1', 't', '{}' FROM generate_series(1, 260000)`,
		`ANALYZE outbox.events`)
	rep := r.examine()
	for _, name := range []string{"rows of outbox.events", "record size of outbox.events"} {
		if c := worst(rep, "Outbox", name); c.Status != doctor.OK || !strings.Contains(c.Seen, "of a sample") {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := worst(rep, "Kafka", "topic outbox.event.Order"); c.Status != doctor.OK {
		t.Errorf("the topic of sampled rows: %+v", c)
	}
	r.exec(`DELETE FROM outbox.events`, `SELECT pg_stat_force_next_flush()`)
	c := worst(r.examine(), "Outbox", "rows of outbox.events")
	if c.Status != doctor.Warn || !strings.Contains(c.Seen, "dead rows") {
		t.Errorf("after deleting all: %+v", c)
	}
	r.follow(c)
	if c := worst(r.examine(), "Outbox", "rows of outbox.events"); c.Status != doctor.OK {
		t.Errorf("after vacuum: %+v", c)
	}
}

// footprint is all that doctor could have changed.
func (r *rig) footprint() []string {
	r.t.Helper()
	rows, err := r.super.Query(r.t.Context(), `
		select to_jsonb(s)::text || ctid || xmin from outbox.relay_state s
		union all select (to_jsonb(s) - '{active_pid,inactive_since,safe_wal_size}'::text[])::text from pg_replication_slots s where slot_name = $1
		union all select count(*)::text || ' backlog' from outbox.backlog union all select count(*)::text || ' recoveries' from outbox.recoveries
		union all select count(*)::text || ' sessions' from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
		union all select pg_current_xact_id_if_assigned()::text || pg_snapshot_xmax(pg_current_snapshot())::text`, r.slot)
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[*string])
	if err != nil {
		r.t.Fatal(err)
	}
	var lines []string
	for _, l := range out {
		if l != nil {
			lines = append(lines, *l)
		}
	}
	return lines
}

// Nothing is changed, not even a transaction ID is used.
func TestChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.Dedicated(t, configOf(18)))
	before := r.footprint()
	rep := r.examine()
	if rep.Fail > 0 {
		t.Errorf("%s", strings.Join(wrong(rep), "\n"))
	}
	testenv.Eventually(t, 5e9, func() (bool, string) { // a backend that ends is seen for a moment more
		after := r.footprint()
		return slices.Equal(before, after), fmt.Sprintf("before %q\nafter  %q", before, after)
	})
}
