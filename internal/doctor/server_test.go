package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/outboxrelay/relay/internal/doctor"
	"github.com/outboxrelay/relay/internal/pgserver"
	"github.com/outboxrelay/relay/internal/testenv"
)

func configOf(major int) pgserver.Config {
	return pgserver.Config{Major: major, Settings: quiet()}
}

// Settings of the server, each made wrong and set right by what is printed.
func TestSettings(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testenv.Dedicated(t, configOf(major)))
			for _, f := range []struct {
				name, value, says string
				from              int
			}{
				{"wal_sender_timeout", "0", "no standby relay", 0},
				{"wal_sender_timeout", "2s", "short pause", 0},
				{"max_slot_wal_keep_size", "-1", "disk is full", 0},
				{"synchronous_commit", "off", "takes back", 0},
				{"idle_replication_slot_timeout", "1h", "is lost", 18},
			} {
				if major < f.from {
					continue
				}
				r.set(f.name, f.value)
				var c doctor.Check
				testenv.Eventually(t, 10*time.Second, func() (bool, string) { // the new value comes with a signal
					c = worst(r.examine(), "PostgreSQL", f.name)
					return c.Status == doctor.Warn && strings.Contains(c.Seen, f.says), fmt.Sprintf("%s = %s: %+v", f.name, f.value, c)
				})
				r.follow(c)
				testenv.Eventually(t, 10*time.Second, func() (bool, string) {
					c := worst(r.examine(), "PostgreSQL", f.name)
					return c.Status == doctor.OK, fmt.Sprintf("%s set right: %+v", f.name, c)
				})
			}
		})
	}
}

func (r *rig) set(name, value string) {
	r.t.Helper()
	r.exec(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value), "SELECT pg_reload_conf()")
}

// What takes a restart.
func TestRestartSettings(t *testing.T) {
	t.Parallel()
	cfg := configOf(18)
	cfg.Settings["max_replication_slots"], cfg.Settings["max_wal_senders"] = "1", "2"
	server := testenv.Dedicated(t, cfg)
	r := newRig(t, server)
	restart := func() {
		t.Helper()
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.super = r.connect()
	}
	mended := func(name string, c doctor.Check) {
		t.Helper()
		r.follow(c)
		restart()
		if c := worst(r.examine(), "PostgreSQL", name); c.Status != doctor.OK {
			t.Errorf("%s set right: %+v", name, c)
		}
	}

	r.exec(slotGone, recordGone, `SELECT pg_create_physical_replication_slot('other')`)
	c := worst(r.examine(), "PostgreSQL", "max_replication_slots")
	if c.Status != doctor.Fail || !strings.Contains(c.Seen, "all are in use") {
		t.Fatalf("got %+v", c)
	}
	mended("max_replication_slots", c)

	r.walsender()
	r.walsender()
	c = worst(r.examine(), "PostgreSQL", "max_wal_senders")
	if c.Status != doctor.Fail || !strings.Contains(c.Seen, "none is left") {
		t.Fatalf("got %+v", c)
	}
	mended("max_wal_senders", c)

	r.exec(`SELECT pg_drop_replication_slot('other')`, `ALTER SYSTEM SET wal_level = 'replica'`)
	restart()
	c = worst(r.examine(), "PostgreSQL", "wal_level")
	if c.Status != doctor.Fail || !strings.Contains(c.Seen, "replica") {
		t.Fatalf("got %+v", c)
	}
	mended("wal_level", c)
}

// The slot's WAL: near its limit, beyond it, lost.
func TestSlotWAL(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			cfg := configOf(major)
			cfg.Settings["max_slot_wal_keep_size"], cfg.Settings["max_wal_size"], cfg.Settings["min_wal_size"] = "64MB", "32MB", "32MB"
			r := newRig(t, testenv.Dedicated(t, cfg))
			grow := func(mb int) {
				t.Helper()
				for range mb {
					r.exec(`SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))`)
				}
			}
			if c := worst(r.examine(), "Slot", "slot's WAL"); c.Status != doctor.OK {
				t.Fatalf("at first: %+v", c)
			}
			var c doctor.Check
			for n := 0; c.Status != doctor.Warn && c.Status != doctor.Fail; n += 4 {
				if n > 100 {
					t.Fatalf("beyond the limit: %+v", c)
				}
				grow(4)
				c = worst(r.examine(), "Slot", "slot's WAL")
			}
			if !strings.Contains(c.Seen, "retained") {
				t.Errorf("near the limit: %+v", c)
			}
			r.follow(c)
			testenv.Eventually(t, 10*time.Second, func() (bool, string) {
				c := worst(r.examine(), "Slot", "slot's WAL")
				return c.Status == doctor.OK, fmt.Sprintf("with more room: %+v", c)
			})
			r.set("max_slot_wal_keep_size", "16MB")
			grow(20)
			r.exec("SELECT pg_switch_wal()", "CHECKPOINT", "CHECKPOINT")
			if c = worst(r.examine(), "Slot", "slot"); c.Status != doctor.Fail || !strings.Contains(c.Seen, "lost WAL") {
				t.Errorf("lost: %+v", c)
			}
			r.recover()
			if c := worst(r.examine(), "Slot", "slot"); c.Status != doctor.OK {
				t.Errorf("recovered: %+v", c)
			}
		})
	}
}

// A failover slot needs standby servers that are waited for.
func TestFailover(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.Dedicated(t, configOf(18)))
	r.doc.Failover = true
	c := worst(r.examine(), "Slot", "failover")
	if c.Status != doctor.Warn {
		t.Fatalf("a slot without: %+v", c)
	}
	r.follow(c)
	look := func() doctor.Check { return worst(r.examine(), "Slot", "synchronized_standby_slots") }
	if c = look(); c.Status != doctor.Warn || !strings.Contains(c.Seen, "empty") {
		t.Fatalf("no standby: %+v", c)
	}
	r.exec(`SELECT pg_create_physical_replication_slot('standby', true)`)
	r.set("synchronized_standby_slots", "standby,gone")
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		c = look()
		return c.Status == doctor.Warn && strings.Contains(c.Seen, `"gone" does not exist`) && strings.Contains(c.Seen, `"standby" is not active`), fmt.Sprintf("%+v", c)
	})
	var lsn string
	if err := r.super.QueryRow(t.Context(), `SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = 'standby'`).Scan(&lsn); err != nil {
		t.Fatal(err)
	}
	standby := r.walsender()
	standby.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT standby PHYSICAL " + lsn})
	if err := standby.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		c = look()
		return strings.Contains(c.Seen, "gone") && !strings.Contains(c.Seen, "not active"), fmt.Sprintf("%+v", c)
	})
	r.follow(c)
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		c = look()
		return c.Status == doctor.OK, fmt.Sprintf("%+v", c)
	})
}

// A standby server is named, and what needs a primary is not looked at.
func TestStandby(t *testing.T) {
	t.Parallel()
	primary := testenv.Dedicated(t, configOf(18))
	r := newRig(t, primary)
	standby := testenv.Standby(t, primary, quiet())
	url := r.db.URL
	r.db.URL = strings.Replace(url, fmt.Sprint(primary.Port()), fmt.Sprint(standby.Port()), 1)
	var rep doctor.Report
	testenv.Eventually(t, 30*time.Second, func() (bool, string) {
		rep = r.examine()
		return worst(rep, "PostgreSQL", "connection").Status == doctor.OK, strings.Join(wrong(rep), "\n")
	})
	if c := worst(rep, "PostgreSQL", "primary"); c.Status != doctor.Fail || !strings.Contains(c.Fix, "primary") {
		t.Errorf("got %+v", c)
	}
	if c := rep.Find("Slot", "slot"); len(c) != 1 || c[0].Status != doctor.Skip {
		t.Errorf("got %+v", c)
	}
	r.db.URL = url
}

// An own session takes the slot: doctor says who, and does not come in its way.
func TestHeld(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	w := r.walsender()
	w.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + r.slot + " LOGICAL 0/0 (proto_version '1', publication_names 'relay')"})
	if err := w.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() (bool, string) {
		c := worst(r.examine(), "Slot", "held by")
		return strings.Contains(c.Seen, fmt.Sprint(w.PID())), c.Seen
	})
	if _, err := w.ReceiveMessage(t.Context()); err != nil {
		t.Errorf("the stream broke: %v", err)
	}
}

// The connection's errors are those of relay run.
func TestConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, testenv.PostgresWith(t, 18, quiet()))
	for _, f := range []struct {
		name   string
		change func(*pgx.ConnConfig)
		says   string
	}{
		{"port", func(c *pgx.ConnConfig) { c.Port = 1 }, "cannot be reached"},
		{"host", func(c *pgx.ConnConfig) { c.Host = "no-such-host.invalid" }, "look up"},
		{"role", func(c *pgx.ConnConfig) { c.User = "nobody_of_that_name" }, "refuses the relay's login"},
	} {
		cfg := r.cfg
		cfg.Connect = func() (*pgx.ConnConfig, error) {
			c, err := pgx.ParseConfig(r.db.URL)
			if err == nil {
				f.change(c)
			}
			return c, err
		}
		r.doc.Stream = r.stream(cfg)
		if c := worst(doctor.Examine(t.Context(), r.doc), "PostgreSQL", "connection"); c.Status != doctor.Fail || !strings.Contains(c.Seen, f.says) || c.Fix == "" {
			t.Errorf("%s: %+v", f.name, c)
		}
	}
}
