package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
)

const sectionDatabase = "PostgreSQL"

func (p *patient) database() []step {
	return []step{
		{sectionDatabase, "connection", nil, p.connection},
		{sectionDatabase, "version", []string{"connection"}, p.version},
		{sectionDatabase, "wal_level", []string{"version"}, func(_ context.Context, s *sheet) {
			s.decide("wal_level", p.server.WALLevelError, "logical")
		}},
		{sectionDatabase, "primary", []string{"version"}, func(_ context.Context, s *sheet) {
			s.decide("primary", p.server.PrimaryError, "the server is no standby")
		}},
		{sectionDatabase, "settings", []string{"version"}, p.withDB(p.settings, "settings")},
		{sectionDatabase, "slots and senders", []string{"version"}, p.withDB(p.room, "slots and senders")},
		{sectionDatabase, "transactions", []string{"version", "primary"}, p.withDB(p.transactions, "transactions")},
	}
}

// connection connects, and learns what the server is.
func (p *patient) connection(ctx context.Context, s *sheet) {
	if err := p.connect(ctx); err != nil {
		s.broken("connection", err)
		return
	}
	var err error
	if p.server, err = p.x.Server(ctx); err != nil {
		s.broken("connection", plain(ctx, err))
		return
	}
	var encrypted bool
	if err := p.x.DB().QueryRow(ctx, `select coalesce((select ssl from pg_stat_ssl where pid = pg_backend_pid()), false)`).Scan(&encrypted); err != nil {
		s.broken("connection", plain(ctx, err))
		return
	}
	how := "in the clear"
	if encrypted {
		how = "encrypted"
	}
	s.ok("connection", "database %q as role %q, %s", p.server.Database, p.server.Role, how)
}

// newest is the newest major version that the tests run against.
const newest = 18

func (p *patient) version(_ context.Context, s *sheet) {
	major := p.server.Version / 10000
	switch {
	case p.server.VersionError != nil:
		s.broken("version", p.server.VersionError)
	case major > newest:
		s.warn("version", do("watch for a newer relay"), "PostgreSQL %d, which this relay was not tested with", major)
	case major < 15:
		s.ok("version", "PostgreSQL %d; column lists of publications come with 15, failover slots with 17", major)
	case major < 17:
		s.ok("version", "PostgreSQL %d; failover slots come with 17", major)
	default:
		s.ok("version", "PostgreSQL %d", major)
	}
}

// setting is what the server says of a setting, in the unit that it counts in.
type setting struct {
	name  string
	value int64
	text  string // as SHOW has it
	known bool
}

func settings(ctx context.Context, db cdc.DB, names ...string) (map[string]setting, error) {
	rows, err := db.Query(ctx, `select name, setting, current_setting(name) from pg_settings where name = any($1)`, names)
	if err != nil {
		return nil, err
	}
	out := map[string]setting{}
	var name, raw, text string
	_, err = pgx.ForEachRow(rows, []any{&name, &raw, &text}, func() error {
		n, _ := strconv.ParseInt(raw, 10, 64) // those that are no numbers are not asked for theirs
		out[name] = setting{name, n, text, true}
		return nil
	})
	return out, err
}

// set is the statement that changes a setting, and the one that makes it count.
func set(name, value string) []string {
	return []string{fmt.Sprintf("ALTER SYSTEM SET %s = '%s';", name, value), "SELECT pg_reload_conf();"}
}

func (p *patient) settings(ctx context.Context, s *sheet, db cdc.DB) error {
	all, err := settings(ctx, db, "wal_sender_timeout", "max_slot_wal_keep_size", "idle_replication_slot_timeout", "synchronous_commit", "logical_decoding_work_mem")
	if err != nil {
		return err
	}
	switch t := p.server.SenderTimeout; {
	case t == 0:
		s.warn("wal_sender_timeout", do("", set("wal_sender_timeout", "60s")...), "0: where the relay's host vanishes, the slot stays held for ever and no standby relay takes over")
	case t < 5*time.Second:
		s.warn("wal_sender_timeout", do("", set("wal_sender_timeout", "60s")...), "%v: a short pause ends the stream", t)
	default:
		s.ok("wal_sender_timeout", "%v: that long after a host vanished another relay takes over", t)
	}
	switch k := all["max_slot_wal_keep_size"]; {
	case k.value == -1:
		s.warn("max_slot_wal_keep_size", do("choose what the disk can spare; a relay that is down for longer then loses its slot, and relay recover publishes from the table", set("max_slot_wal_keep_size", "10GB")...),
			"-1: a relay that is stopped makes PostgreSQL keep WAL until the disk is full")
	default:
		s.ok("max_slot_wal_keep_size", "%s", k.text)
	}
	if k := all["idle_replication_slot_timeout"]; k.known && k.value > 0 {
		s.warn("idle_replication_slot_timeout", do("max_slot_wal_keep_size bounds what a slot costs", set("idle_replication_slot_timeout", "0")...),
			"%s: the slot of a relay that is down for longer is lost", k.text)
	} else if k.known {
		s.ok("idle_replication_slot_timeout", "off")
	}
	switch k := all["synchronous_commit"]; k.text {
	case "off":
		s.warn("synchronous_commit", do("turn it on for the application's transactions with events", set("synchronous_commit", "on")...),
			"off: a crash of PostgreSQL takes back transactions that the application holds for committed, their events among them (the relay publishes none of those)")
	default:
		s.ok("synchronous_commit", "%s for this role; an application's own may differ", k.text)
	}
	s.ok("logical_decoding_work_mem", "%s: larger transactions go over the server's disk, not over the relay's memory", all["logical_decoding_work_mem"].text)
	return nil
}

// room is whether a slot and a walsender are to be had, and proves that replication is let through.
func (p *patient) room(ctx context.Context, s *sheet, db cdc.DB) error {
	all, err := settings(ctx, db, "max_replication_slots", "max_wal_senders")
	if err != nil {
		return err
	}
	var slots, senders int64
	var exists, active bool
	err = db.QueryRow(ctx, `
		select (select count(*) from pg_replication_slots), (select count(*) from pg_stat_replication),
			exists (select from pg_replication_slots where slot_name = $1), exists (select from pg_replication_slots where slot_name = $1 and active)`, p.cfg.Slot).
		Scan(&slots, &senders, &exists, &active)
	if err != nil {
		return err
	}
	limit := func(name string, used int64, has bool, what string) {
		most := all[name].value
		more := do("restart PostgreSQL after it", fmt.Sprintf("ALTER SYSTEM SET %s = '%d';", name, most+5))
		switch free := most - used; {
		case free <= 0 && !has:
			s.fail(name, more, "%d, and all are in use: %s", most, what)
		case free <= 0:
			s.warn(name, more, "%d, and all are in use", most)
		default:
			s.ok(name, "%d, of which %d are free", most, free)
		}
	}
	limit("max_replication_slots", slots, exists, "none is left for this relay's slot")
	limit("max_wal_senders", senders, active, "none is left for this relay")
	switch free := all["max_wal_senders"].value - senders; {
	case p.server.ReplicationError != nil:
		s.broken("replication", p.server.ReplicationError)
	case free <= 0 && !active: // said
	case free < 2:
		s.ok("replication", "the role may replicate; no connection was tried, so as not to take the last walsender")
	default:
		system, _, err := p.x.IdentifySystem(ctx)
		p.system = system
		s.decide("replication", err, "a replication connection is let through, to server %s", system)
	}
	return nil
}

const oldTransaction = 5 * time.Minute

// transactions finds what a slot waits for: a new one until they all end, one that is there with the WAL that it gives
// free. Everybody sees which sessions have a transaction ID, and not everybody since when.
func (p *patient) transactions(ctx context.Context, s *sheet, db cdc.DB) error {
	var exists bool
	if err := db.QueryRow(ctx, `select exists (select from pg_replication_slots where slot_name = $1)`, p.cfg.Slot).Scan(&exists); err != nil {
		return err
	}
	rows, err := db.Query(ctx, `
		select pid, coalesce(application_name, ''), coalesce(extract(epoch from clock_timestamp() - xact_start), -1)::float8
		from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
		order by age(backend_xid) desc limit 20`)
	if err != nil {
		return err
	}
	var pid int32
	var app string
	var seconds float64
	var old, hidden []string
	count := 0
	_, err = pgx.ForEachRow(rows, []any{&pid, &app, &seconds}, func() error {
		count++
		d := time.Duration(seconds * float64(time.Second))
		switch {
		case seconds < 0:
			hidden = append(hidden, fmt.Sprint(pid))
		case d >= oldTransaction:
			old = append(old, fmt.Sprintf("pid %d (%s) for %s", pid, app, age(d)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	effect := "a slot cannot be made before they end"
	if exists {
		effect = "the slot keeps WAL for them"
	}
	switch {
	case len(old) > 0:
		s.warn("transactions", do("see pg_stat_activity for what they do; SELECT pg_terminate_backend(pid) ends one"), "open for long: %s; %s", strings.Join(old, ", "), effect)
	case len(hidden) > 0 && !exists:
		s.warn("transactions", do("see pg_stat_activity for these pids as a superuser, or let this role see them", "GRANT pg_read_all_stats TO "+quote(p.server.Role)+";"),
			"open, since when this role may not see: pids %s; %s", strings.Join(hidden, ", "), effect)
	case count == 0:
		s.ok("transactions", "none is open that has written")
	default:
		s.ok("transactions", "%d open that have written, none of them known to be older than %v", count, oldTransaction)
	}
	return p.prepared(ctx, s, db, effect, exists)
}

func (p *patient) prepared(ctx context.Context, s *sheet, db cdc.DB, effect string, slot bool) error {
	rows, err := db.Query(ctx, `
		select gid, database::text, extract(epoch from clock_timestamp() - prepared)::float8 from pg_prepared_xacts order by prepared limit 5`)
	if err != nil {
		return err
	}
	var gid, database string
	var seconds float64
	var list, run []string
	oldest := time.Duration(0)
	_, err = pgx.ForEachRow(rows, []any{&gid, &database, &seconds}, func() error {
		d := time.Duration(seconds * float64(time.Second))
		oldest = max(oldest, d)
		list = append(list, fmt.Sprintf("%q in database %s, %s old", gid, database, age(d)))
		run = append(run, fmt.Sprintf("ROLLBACK PREPARED '%s';", strings.ReplaceAll(gid, "'", "''")))
		return nil
	})
	if err != nil {
		return err
	}
	switch {
	case len(list) == 0:
		s.ok("prepared transactions", "none")
	case oldest >= oldTransaction || !slot:
		s.warn("prepared transactions", do("end what is forgotten, in its database: COMMIT PREPARED keeps it, this takes it back:", run...), "%s; %s", strings.Join(list, ", "), effect)
	default:
		s.ok("prepared transactions", "%s", strings.Join(list, ", "))
	}
	return nil
}
