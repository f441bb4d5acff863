package cdc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestStream_NamedStates: what keeps a relay from streaming is a state with a reason that names the object and a
// hint that says what to do, nothing is confirmed, and no event reaches the sink.
func TestStream_NamedStates(t *testing.T) {
	for _, c := range []struct {
		name   string
		since  int // server_version_num from which on there is such a thing
		broken func(b *bench)
		want   state.State
		reason []string
		heal   func(b *bench) // nil: not tried
	}{
		{
			name: "slot missing",
			broken: func(b *bench) {
				b.ensured()
				b.exec(`select pg_drop_replication_slot($1)`, b.cfg.Slot)
				b.publish(1)
			},
			want: state.SlotMissing, reason: []string{"slot", "does not exist"},
		},
		{
			name: "slot not made to its end",
			broken: func(b *bench) {
				b.ensured()
				b.exec(`update outbox.relay_state set phase = 'creating', confirmed_lsn = null`)
				b.cfg.Ensure = false
				b.publish(1)
			},
			want: state.SlotMissing, reason: []string{"not made to its end"},
		},
		{
			name: "slot recreated",
			broken: func(b *bench) {
				b.ensured()
				b.exec(`select pg_drop_replication_slot($1)`, b.cfg.Slot)
				b.publish(1)
				b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
			},
			want: state.SlotRecreated, reason: []string{"stands at", "confirmed"},
		},
		{
			name: "slot moved on by somebody",
			broken: func(b *bench) {
				b.ensured()
				b.publish(1)
				b.exec(`select pg_replication_slot_advance($1, pg_current_wal_lsn())`, b.cfg.Slot)
			},
			want: state.SlotRecreated, reason: []string{"stands at", "confirmed"},
		},
		{
			name: "slot with another plugin",
			broken: func(b *bench) {
				b.exec(`select pg_create_physical_replication_slot($1)`, b.cfg.Slot)
			},
			want: state.SlotWrongPlugin, reason: []string{"physical"},
		},
		{
			name: "slot of another database",
			broken: func(b *bench) {
				other := testenv.NewDatabase(b.t)
				conn, err := pgx.Connect(b.t.Context(), other.URL)
				if err != nil {
					b.t.Fatal(err)
				}
				defer conn.Close(context.Background())
				if _, err := conn.Exec(b.t.Context(), `select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot); err != nil {
					b.t.Fatal(err)
				}
			},
			want: state.SlotWrongPlugin, reason: []string{"belongs to database"},
		},
		{
			name: "another server's state",
			broken: func(b *bench) {
				b.ensured()
				b.exec(`update outbox.relay_state set system_identifier = '42'`)
			},
			want: state.HistoryChanged, reason: []string{"server 42"},
		},
		{
			name: "publication missing",
			broken: func(b *bench) {
				b.ensured()
				b.exec(`drop publication relay`)
				b.cfg.Ensure = false
			},
			want: state.PublicationMissing, reason: []string{`publication "relay" does not exist`},
		},
		{
			name: "publication without the table",
			broken: func(b *bench) {
				b.ensured()
				b.exec(`drop publication relay`)
				b.exec(`create table other (id int primary key)`)
				b.exec(`create publication relay for table other`)
			},
			want: state.PublicationMismatch, reason: []string{`"outbox"."events"`},
			heal: func(b *bench) { b.exec(`alter publication relay add table outbox.events`) },
		},
		{
			name: "publication of all tables",
			broken: func(b *bench) {
				b.exec(`create publication relay for all tables`)
			},
			want: state.PublicationMismatch, reason: []string{"FOR ALL TABLES"},
		},
		{
			name: "publication without inserts",
			broken: func(b *bench) {
				b.exec(`create publication relay for table outbox.events with (publish = 'update')`)
			},
			want: state.PublicationMismatch, reason: []string{"does not publish inserts"},
		},
		{
			name: "publication with a row filter", since: 150000,
			broken: func(b *bench) {
				b.exec(`create publication relay for table outbox.events where (tenant = 'x') with (publish = 'insert')`)
			},
			want: state.PublicationMismatch, reason: []string{"filters the rows"},
		},
		{
			name: "publication without a needed column", since: 150000,
			broken: func(b *bench) {
				b.exec(`create publication relay for table outbox.events (id, aggregate_id) with (publish = 'insert')`)
			},
			want: state.PublicationMismatch, reason: []string{`"event_key"`},
		},
		{
			name: "table missing",
			broken: func(b *bench) {
				b.cfg.Table = cdc.Table{Schema: "app", Name: "nowhere"}
			},
			want: state.TableMismatch, reason: []string{`"app"."nowhere"`, "does not exist"},
		},
		{
			name: "table without a column",
			broken: func(b *bench) {
				b.exec(`alter table outbox.events drop column aggregate_id`)
			},
			want: state.TableMismatch, reason: []string{`"aggregate_id"`},
		},
		{
			name: "column of the native table renamed",
			broken: func(b *bench) {
				b.exec(`alter table outbox.events rename column headers to meta`)
			},
			want: state.TableMismatch, reason: []string{`"headers"`},
			heal: func(b *bench) { b.exec(`alter table outbox.events rename column meta to headers`) },
		},
		{
			name: "column of another type",
			broken: func(b *bench) {
				b.exec(`alter table outbox.events alter column payload type xml using null`)
			},
			want: state.TableMismatch, reason: []string{`"payload"`, "xml"},
		},
		{
			name: "rows older than the slot",
			broken: func(b *bench) {
				b.publish(1)
				b.publish(2)
			},
			want: state.ConfigInvalid, reason: []string{"holds 2 rows"},
			heal: func(b *bench) { b.exec(`delete from outbox.events`) },
		},
		{
			name: "rows older than a foreign slot",
			broken: func(b *bench) {
				b.publish(1)
				b.exec(`create publication relay for table outbox.events with (publish = 'insert')`)
				b.exec(`select pg_create_logical_replication_slot($1, 'pgoutput')`, b.cfg.Slot)
			},
			want: state.ConfigInvalid, reason: []string{"holds 1 rows"},
		},
		{
			name: "role may not replicate",
			broken: func(b *bench) {
				b.exec(`create role ` + b.cfg.Slot + ` login`)
				b.t.Cleanup(func() { b.dropRole() })
				b.exec(`grant usage on schema outbox to ` + b.cfg.Slot)
				b.login(b.cfg.Slot, "")
			},
			want: state.PermissionDenied, reason: []string{"may not replicate"},
		},
		{
			name:   "database does not exist",
			broken: func(b *bench) { b.database("nowhere") },
			want:   state.ConfigInvalid, reason: []string{"nowhere"},
		},
		{
			name:   "nobody listens",
			broken: func(b *bench) { b.port(1) },
			want:   state.DatabaseUnreachable, reason: []string{"127.0.0.1:1", "refused"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := setup(t, testenv.NewDatabase(t))
			if b.version() < c.since {
				return
			}
			b.cfg.RetryHuman = b.cfg.BackoffMin
			c.broken(b)
			r := b.start(nil)
			st := r.awaitState(c.want)
			for _, part := range c.reason {
				if !strings.Contains(st.Reason, part) {
					t.Errorf("reason %q does not say %q", st.Reason, part)
				}
			}
			if st.Hint == "" {
				t.Errorf("state %q with reason %q has no hint", st.State, st.Reason)
			}
			if n := len(r.seen()); n != 0 {
				t.Errorf("%d events were handed on", n)
			}
			if c.heal != nil {
				c.heal(b)
				r.awaitState(state.Streaming)
				b.publish(7)
				r.awaitEvents(1)
			}
		})
	}
}

func TestStream_WrongPassword(t *testing.T) {
	const canary = "p4ss-canary%25"
	server := testenv.Dedicated(t, pgserver.Config{Password: "right"})
	db := testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres"))
	b := setup(t, db)
	b.login("postgres", canary)
	st := b.start(nil).awaitState(state.PermissionDenied)
	if st.Hint == "" || !strings.Contains(st.Reason, "28P01") {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
	if strings.Contains(st.Reason+st.Hint, canary) {
		t.Errorf("the password is in %q", st.Reason+st.Hint)
	}
}

func TestStream_WALLevel(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"wal_level": "replica"}})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
	st := b.start(nil).awaitState(state.ConfigInvalid)
	if !strings.Contains(st.Reason, `"replica"`) || !strings.Contains(st.Hint, "wal_level = logical") {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
}

// TestStream_SlotLost: WAL that the slot needs is thrown away while the relay is down.
func TestStream_SlotLost(t *testing.T) {
	server := testenv.Dedicated(t, pgserver.Config{Settings: map[string]string{"max_slot_wal_keep_size": "16MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "postgres")))
	r := b.start(nil)
	r.awaitState(state.Streaming)
	r.stopCleanly()
	b.publish(1)
	b.exec(`create table busy (x text)`)
	for range 12 {
		b.exec(`insert into busy select repeat('x', 1000) from generate_series(1, 10000)`)
		b.exec(`select pg_switch_wal()`)
	}
	b.exec(`checkpoint`)
	b.exec(`checkpoint`)
	r = b.start(nil)
	st := r.awaitState(state.SlotLost)
	if !strings.Contains(st.Reason, fmt.Sprintf("%q", b.cfg.Slot)) || st.Hint == "" {
		t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
	}
}

// ensured makes publication, slot and record, as relay migrate does.
func (b *bench) ensured() {
	b.t.Helper()
	s, err := cdc.NewStream(b.cfg, store, nil, cdc.Listener{})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := s.Ensure(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// login, database and port change how the relay connects.
func (b *bench) login(user, password string) {
	b.change(func(c *pgx.ConnConfig) { c.User, c.Password = user, password })
}

func (b *bench) database(name string) { b.change(func(c *pgx.ConnConfig) { c.Database = name }) }

func (b *bench) port(port uint16) {
	b.change(func(c *pgx.ConnConfig) { c.Host, c.Port = "127.0.0.1", port })
}

func (b *bench) change(f func(*pgx.ConnConfig)) {
	before := b.cfg.Connect
	b.cfg.Connect = func() (*pgx.ConnConfig, error) {
		c, err := before()
		if err == nil {
			f(c)
			c.Fallbacks = nil
		}
		return c, err
	}
}

func (b *bench) dropRole() {
	conn, err := pgx.Connect(context.Background(), b.db.URL)
	if err != nil {
		return // the database is gone, and the role owns nothing in it
	}
	defer conn.Close(context.Background())
	_, _ = conn.Exec(context.Background(), `drop owned by `+b.cfg.Slot+`; drop role `+b.cfg.Slot)
}
