package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
)

const sectionSlot = "Slot"

func (p *patient) slot() []step {
	return []step{
		{sectionSlot, "slot", []string{"version", "primary", "tables", "grants"}, p.withDB(p.standing, "slot")},
		{sectionSlot, "slot's making", []string{"slot"}, p.withDB(p.making, "slot's making")},
		{sectionSlot, "publication's past", []string{"slot", "publication"}, p.withDB(p.published, "publication's past")},
		{sectionSlot, "slot's age", []string{"slot", "publication"}, p.withDB(p.order, "slot's age")},
		{sectionSlot, "slot's WAL", []string{"slot"}, p.withDB(p.wal, "slot's WAL")},
		{sectionSlot, "failover", []string{"version"}, p.withDB(p.failover, "failover")},
	}
}

// standing holds slot and record against each other, as a session does.
func (p *patient) standing(ctx context.Context, s *sheet, db cdc.DB) error {
	st, err := p.x.Standing(ctx)
	p.stand = st
	if err != nil {
		s.broken("slot", plain(ctx, err))
		if e := state.Of(err); e != nil && e.State == state.SlotMissing && !st.RecordFound {
			if err := p.x.Backlog(ctx); err != nil {
				s.broken("backlog", plain(ctx, err))
			}
		}
		return nil
	}
	switch {
	case !st.RecordFound:
		s.ok("slot", "%q stands at %s and was never served: relay run adopts it", p.cfg.Slot, st.Confirmed)
	case st.Record.Phase == cdc.PhaseBacklog:
		var left int64
		if err := db.QueryRow(ctx, `select count(*) from outbox.backlog where slot = $1`, p.cfg.Slot).Scan(&left); err != nil {
			return err
		}
		s.ok("slot", "%q, incarnation %d: %d events of the backlog go before the stream", p.cfg.Slot, st.Record.Incarnation, left)
	default:
		s.ok("slot", "%q goes on where the relay has confirmed, %s, incarnation %d", p.cfg.Slot, st.Record.Confirmed, st.Record.Incarnation)
	}
	if !st.Active {
		s.ok("held by", "nobody")
		return nil
	}
	var app, at string
	// Only pg_read_all_stats shows how far a walsender is; that it is at work everybody sees of sessions of their own role.
	err = db.QueryRow(ctx, `
		select coalesce((select coalesce(application_name, '') from pg_stat_activity where pid = $1), ''),
			coalesce((select state from pg_stat_replication where pid = $1), (select state from pg_stat_activity where pid = $1), 'of another role')`, st.PID).Scan(&app, &at)
	if err != nil {
		return err
	}
	s.ok("held by", "pid %d, %q, %s", st.PID, app, at)
	return nil
}

// slotColumns are what newer versions tell of a slot.
func (p *patient) slotColumns(ctx context.Context, db cdc.DB, names ...string) (map[string]string, error) {
	rows, err := db.Query(ctx, `
		select k.name, coalesce(to_jsonb(r) ->> k.name, '') from pg_replication_slots r, unnest($2::text[]) k(name) where slot_name = $1`, p.cfg.Slot, names)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		out[name] = value
		return nil
	})
	return out, err
}

// making is how the slot was made. None of it can be changed later on the servers that have it.
func (p *patient) making(ctx context.Context, s *sheet, db cdc.DB) error {
	c, err := p.slotColumns(ctx, db, "temporary", "two_phase", "conflicting", "invalidation_reason", "synced")
	if err != nil {
		return err
	}
	anew := do("drop it and make it anew; what was committed in between is published from the table", fmt.Sprintf("SELECT pg_drop_replication_slot('%s');", p.cfg.Slot), "relay recover")
	switch {
	case c["temporary"] == "true":
		s.fail("slot's making", anew, "%q is temporary: it goes with the session that made it", p.cfg.Slot)
	case c["conflicting"] == "true" || c["invalidation_reason"] != "":
		s.fail("slot's making", do("relay recover makes a new slot and publishes what may be missing", "relay recover"), "%q is invalid: %s", p.cfg.Slot, c["invalidation_reason"])
	case c["two_phase"] == "true":
		s.warn("slot's making", anew, "%q decodes prepared transactions (two_phase), which the relay does not read: it publishes what was committed", p.cfg.Slot)
	default:
		s.ok("slot's making", "pgoutput of this database, not temporary, without two_phase")
	}
	return nil
}

// order looks whether the publication was there before all that the slot will read. See the package's documentation.
func (p *patient) order(ctx context.Context, s *sheet, db cdc.DB) error {
	var before bool
	var wrote, needs string
	safe := "0"
	if p.stand.RecordFound {
		safe = fmt.Sprint(p.stand.Record.SafeXID)
	}
	err := db.QueryRow(ctx, `
		select coalesce(age(p.xmin) > age(s.catalog_xmin), false) or $3 <> '0' and age(p.xmin) > age($3::text::xid8::xid), p.xmin::text, coalesce(s.catalog_xmin::text, '')
		from pg_publication p, pg_replication_slots s where p.pubname = $1 and s.slot_name = $2`, p.cfg.Publication, p.cfg.Slot, safe).Scan(&before, &wrote, &needs)
	if err != nil {
		return err
	}
	switch {
	case before:
		s.ok("slot's age", "the publication is older than everything that the slot will read")
	case p.stand.Active:
		s.ok("slot's age", "the publication was made or changed in the time that the slot may read again (transaction %s, slot needs %s), and the stream runs", wrote, needs)
	default:
		s.warn("slot's age", do("nothing, if the publication was there when the slot was made and was only altered since. A relay that stops with publication_missing wants a slot made after it: drop the slot, then relay recover"),
			"the publication was made or changed (transaction %s) after the oldest that the slot may read (%s)", wrote, needs)
	}
	return nil
}

// wal is what the slot costs and how near it is to being lost.
func (p *patient) wal(ctx context.Context, s *sheet, db cdc.DB) error {
	c, err := p.slotColumns(ctx, db, "safe_wal_size", "wal_status")
	if err != nil {
		return err
	}
	all, err := settings(ctx, db, "max_slot_wal_keep_size", "max_wal_size")
	if err != nil {
		return err
	}
	keep := all["max_slot_wal_keep_size"].value << 20
	soon := do("start relay run, or see why it does not get on: relay status. More room until then:", set("max_slot_wal_keep_size", fmt.Sprintf("%dMB", max(2*keep>>20, 1024)))...)
	var safe int64
	bounded := keep >= 0 && c["safe_wal_size"] != ""
	if bounded {
		if _, err := fmt.Sscan(c["safe_wal_size"], &safe); err != nil {
			return fmt.Errorf("read safe_wal_size: %w", err)
		}
	}
	switch {
	case p.stand.WALStatus == "unreserved":
		s.fail("slot's WAL", soon, "%s are retained, more than max_slot_wal_keep_size: the next checkpoint may take it, and the slot is lost", size(p.stand.Retained))
	case bounded && safe < keep/5:
		s.warn("slot's WAL", soon, "%s are retained, and %s more lose the slot", size(p.stand.Retained), size(max(0, safe)))
	case bounded:
		s.ok("slot's WAL", "%s are retained (%s), %s more are allowed", size(p.stand.Retained), p.stand.WALStatus, size(safe))
	case !p.stand.Active && p.stand.Retained > all["max_wal_size"].value<<20:
		s.warn("slot's WAL", do("start relay run; a slot that nobody needs any more is dropped with", fmt.Sprintf("SELECT pg_drop_replication_slot('%s');", p.cfg.Slot)), "%s are retained, and no relay streams", size(p.stand.Retained))
	default:
		s.ok("slot's WAL", "%s are retained (%s)", size(p.stand.Retained), p.stand.WALStatus)
	}
	return nil
}

// failover is whether a promoted standby will have the slot.
func (p *patient) failover(ctx context.Context, s *sheet, db cdc.DB) error {
	if p.server.Version < 170000 {
		if p.cfg.Failover {
			s.fail("failover", do("leave postgres.failover out; docs/recovery.md has the runbook for a promotion without it"), "postgres.failover is set, and failover slots come with PostgreSQL 17")
		}
		return nil
	}
	c, err := p.slotColumns(ctx, db, "failover")
	if err != nil {
		return err
	}
	is := c["failover"] == "true"
	switch {
	case len(c) == 0:
		return nil // there is no slot
	case p.cfg.Failover && !is:
		s.warn("failover", do("stop the relay for it; over a connection with replication=database:", fmt.Sprintf("ALTER_REPLICATION_SLOT %s (FAILOVER true);", p.cfg.Slot)), "postgres.failover is set, and the slot was made without: a promoted standby lacks it")
		return nil
	case !p.cfg.Failover && is:
		s.warn("failover", do("set postgres.failover: true, or relay recover makes the next one without"), "the slot is a failover slot, and postgres.failover is not set")
	case !is:
		s.ok("failover", "no failover slot: after a promotion relay recover is needed")
		return nil
	}
	return p.synchronized(ctx, s, db)
}

// synchronized looks at what holds the stream back until standby servers have it.
func (p *patient) synchronized(ctx context.Context, s *sheet, db cdc.DB) error {
	var list string
	if err := db.QueryRow(ctx, `select coalesce(current_setting('synchronized_standby_slots', true), '')`).Scan(&list); err != nil {
		return err
	}
	const sync = "on the standby: sync_replication_slots = on, hot_standby_feedback = on, primary_slot_name, and dbname in primary_conninfo"
	rows, err := db.Query(ctx, `select slot_name::text, active from pg_replication_slots where slot_type = 'physical' order by 1`)
	if err != nil {
		return err
	}
	var name string
	var active bool
	var physical []string
	running := map[string]bool{}
	if _, err := pgx.ForEachRow(rows, []any{&name, &active}, func() error {
		physical, running[name] = append(physical, name), active
		return nil
	}); err != nil {
		return err
	}
	if list = strings.TrimSpace(list); list == "" {
		f := do("make a physical slot for the standby and name it here; " + sync)
		if len(physical) > 0 {
			f = do("name the standby's physical slot; "+sync, set("synchronized_standby_slots", strings.Join(physical, ","))...)
		}
		s.warn("synchronized_standby_slots", f, "empty, and the slot is a failover slot: it may be ahead of a standby that is promoted, and events that were published are then not in its database")
		return nil
	}
	var wrong []string
	for _, n := range strings.Split(list, ",") {
		n = strings.Trim(strings.TrimSpace(n), `"`)
		switch up, there := running[n]; {
		case !there:
			wrong = append(wrong, fmt.Sprintf("%q does not exist", n))
		case !up:
			wrong = append(wrong, fmt.Sprintf("%q is not active", n))
		}
	}
	if len(wrong) > 0 {
		var up []string
		for _, n := range physical {
			if running[n] {
				up = append(up, n)
			}
		}
		s.warn("synchronized_standby_slots", do("bring the standby back, or name those that run", set("synchronized_standby_slots", strings.Join(up, ","))...), "%s: the stream stands still until it is", strings.Join(wrong, ", "))
		return nil
	}
	s.ok("synchronized_standby_slots", "%s; %s", list, sync)
	return nil
}
