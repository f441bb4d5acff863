package cdc_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/cdc"
	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// lossy are changes after which everything looks as it was, and between which rows are not in the stream.
func lossy(b *bench) map[string][2]string {
	b.t.Helper()
	published := "outbox.events"
	if b.version() >= 150000 {
		var list string
		if err := b.app.QueryRow(b.t.Context(), `select array_to_string(attnames, ', ') from pg_publication_tables where pubname = 'relay'`).Scan(&list); err != nil {
			b.t.Fatal(err)
		}
		published += " (" + list + ")"
	}
	changes := map[string][2]string{
		"table dropped and added": {`alter publication relay drop table outbox.events`, `alter publication relay add table ` + published},
		"table set aside":         {`create table other (id int primary key); alter publication relay set table other`, `alter publication relay set table ` + published},
		"inserts switched off":    {`alter publication relay set (publish = 'update')`, `alter publication relay set (publish = 'insert')`},
	}
	if b.version() >= 150000 {
		changes["rows filtered"] = [2]string{`alter publication relay set table outbox.events where (tenant = 'nobody')`, `alter publication relay set table ` + published}
	}
	if b.version() >= 180000 { // earlier ones break off the stream where the publication is missing
		changes["publication made anew"] = [2]string{`drop publication relay`, `create publication relay for table ` + published + ` with (publish = 'insert', publish_via_partition_root = true)`}
	}
	return changes
}

func (b *bench) version() (num int) {
	b.t.Helper()
	if err := b.app.QueryRow(b.t.Context(), `select current_setting('server_version_num')::int`).Scan(&num); err != nil {
		b.t.Fatal(err)
	}
	return num
}

// settle waits until every event that came is confirmed: the record is then as new as it gets.
func (b *bench) settle(r *relay) {
	b.t.Helper()
	testenv.Eventually(b.t, 20*time.Second, func() (bool, string) {
		relay, slot := b.confirmed()
		seen := r.seen()
		last := seen[len(seen)-1].pos.LSN
		return relay == slot && relay > last, fmt.Sprintf("relay_state %s, slot %s, last event %s", relay, slot, last)
	})
}

// TestPublication_ChangedBehindTheRelay: rows that were written while the publication left them out, for a moment
// between two looks or while no relay ran, are named, and recovery brings each of them.
func TestPublication_ChangedBehindTheRelay(t *testing.T) {
	testenv.EachMajor(t, func(t *testing.T) {
		for name := range lossy(ensuredBench(t)) {
			for _, running := range []bool{true, false} {
				if !running && name != "table dropped and added" {
					continue // how it came about makes no difference to a start
				}
				t.Run(fmt.Sprintf("%s/running %v", name, running), func(t *testing.T) {
					b := ensuredBench(t)
					change := lossy(b)[name]
					r := b.start(nil)
					r.awaitState(state.Streaming)
					b.publish(1)
					r.awaitEvents(1)
					b.settle(r)
					if !running {
						r.stopCleanly()
					}
					b.exec(change[0])
					b.publish(2)
					b.exec(change[1])
					b.publish(3) // is in the stream, and brings the running relay to look
					want := []int{2, 3, 4}
					if running {
						// Two confirmations later safe_xid would have passed what is missing, had nobody looked.
						for n := range 3 {
							<-time.After(200 * time.Millisecond)
							b.publish(10 + n)
							want = append(want, 10+n)
						}
					} else {
						r = b.start(nil)
					}
					st := r.awaitState(state.PublicationMismatch)
					if !strings.Contains(st.Reason, "may not be in the stream") || !strings.Contains(st.Reason, "may not have been published") || !strings.Contains(st.Hint, "relay recover") {
						t.Errorf("reason %q, hint %q", st.Reason, st.Hint)
					}
					if seen := r.seen(); running && len(seen) != 1 {
						t.Errorf("%d events were handed on, of them %d that overtook what is missing", len(seen), len(seen)-1)
					}
					testenv.Eventually(t, 10*time.Second, func() (bool, string) { // the walsender of the session that found it
						var active bool
						err := b.app.QueryRow(t.Context(), `select active from pg_replication_slots where slot_name = $1`, b.cfg.Slot).Scan(&active)
						return err == nil && !active, "the relay holds the slot"
					})
					b.recover(cdc.Scope{}, state.PublicationMismatch)
					r.awaitState(state.Streaming)
					b.publish(4)
					b.mustBring(r, want...)
				})
			}
		}
	})
}

// TestPublication_HarmlessChanges stop nothing: where no row can be missing, none was written meanwhile, or it is only
// another table that is concerned.
func TestPublication_HarmlessChanges(t *testing.T) {
	testenv.EachMajor(t, func(t *testing.T) {
		b := ensuredBench(t)
		changes := lossy(b)
		var heard int
		b.listener.PublicationChanged = func(what []string) { heard++ }
		n, streamed := 0, []string{}
		for _, change := range changes {
			r := b.start(nil)
			r.awaitState(state.Streaming)
			// A transaction of another database holds back what is known; then the next event tells more.
			for sure, first := false, n; !sure; {
				n++
				b.publish(n)
				r.awaitEvents(n - first)
				b.settle(r)
				if err := b.app.QueryRow(t.Context(), `
					select not exists (select from outbox.events where xact_id >= s.publication_xid) from outbox.relay_state s where slot = $1`, b.cfg.Slot).Scan(&sure); err != nil {
					t.Fatal(err)
				}
			}
			r.stopCleanly()
			streamed = append(streamed, payloads(r.seen())...)
			b.exec(change[0])
			b.exec(change[1])
		}
		r := b.start(nil)
		r.awaitState(state.Streaming)
		before := n
		b.exec(`create table more (id int primary key)`)
		for _, sql := range []string{
			`alter publication relay add table more`, `comment on publication relay is 'x'`, `vacuum full pg_publication_rel`, `vacuum freeze pg_publication`,
			`alter table outbox.events replica identity full`, `analyze outbox.events`, `vacuum full outbox.events`,
		} {
			n++
			b.publish(n)
			b.exec(sql)
		}
		n++
		b.publish(n)
		r.awaitEvents(n - before)
		b.settle(r)
		r.stopCleanly()
		var want []string
		for i := range n {
			want = append(want, fmt.Sprintf(`{"n" : %d}`, i+1))
		}
		if diff := cmp.Diff(want, append(streamed, payloads(r.seen())...)); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if heard != len(changes) {
			t.Errorf("told of %d changes, want %d", heard, len(changes))
		}
		if st := r.lastState(); st.State != state.Draining {
			t.Errorf("last state %+v", st)
		}
	})
}

// TestPublication_NothingMissing goes on with the slot where somebody vouches that the change left out no row.
func TestPublication_NothingMissing(t *testing.T) {
	b := ensuredBench(t)
	r := b.start(nil)
	r.awaitState(state.Streaming)
	b.publish(1)
	r.awaitEvents(1)
	b.settle(r)
	b.exec(`begin`)
	b.publish(2)
	b.exec(`alter publication relay owner to current_user; alter publication relay set (publish = 'insert')`)
	b.exec(`commit`)
	b.publish(3)
	r.awaitState(state.PublicationMismatch)
	s := b.planner()
	p, err := s.PlanRecovery(t.Context(), cdc.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	outdated := p
	outdated.Record.Confirmed++
	if err := s.NothingMissing(t.Context(), outdated, "me"); !errors.Is(err, cdc.ErrPlanOutdated) {
		t.Errorf("an outdated plan: %v", err)
	}
	if err := s.NothingMissing(t.Context(), p, "me"); err != nil {
		t.Fatal(err)
	}
	r.awaitState(state.Streaming)
	b.publish(4)
	b.mustBring(r, 1, 2, 3, 4)
	var scope, actor string
	var events int
	if err := b.app.QueryRow(t.Context(), `select scope, events, actor from outbox.recoveries`).Scan(&scope, &events, &actor); err != nil || scope != "nothing" || events != 0 || actor != "me" {
		t.Errorf("audited scope %q, %d events, actor %q, %v", scope, events, actor, err)
	}
	r.stopCleanly()
	if err := s.NothingMissing(t.Context(), p, "me"); !errors.Is(err, cdc.ErrNothingToRecover) {
		t.Errorf("with nothing missing: %v", err)
	}
}

// TestPublication_RenamedTable: rows that were written while the table was called otherwise, or stood in another
// schema, are its rows.
func TestPublication_RenamedTable(t *testing.T) {
	testenv.EachMajor(t, func(t *testing.T) {
		for name, change := range map[string][3]string{
			"renamed": {`alter table outbox.events rename to aside`, `outbox.aside`, `alter table outbox.aside rename to events`},
			"moved":   {`alter table outbox.events set schema public`, `public.events`, `alter table public.events set schema outbox`},
		} {
			for _, running := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/running %v", name, running), func(t *testing.T) {
					b := ensuredBench(t)
					r := b.start(nil)
					r.awaitState(state.Streaming)
					if !running {
						r.stopCleanly()
					}
					b.exec(change[0])
					b.exec(`insert into ` + change[1] + ` (event_key, aggregate_type, aggregate_id, event_type, payload) values ('k', 'Order', 'a', 'Made', '{"n" : 1}')`)
					b.exec(change[2])
					b.publish(2)
					if !running {
						r = b.start(nil)
					}
					b.mustBring(r, 1, 2)
				})
			}
		}
	})
}

// TestPublication_StillInTheStream tries what sounds as if it kept rows out of the stream, and does not.
func TestPublication_StillInTheStream(t *testing.T) {
	testenv.EachMajor(t, func(t *testing.T) {
		b := ensuredBench(t)
		r := b.start(nil)
		r.awaitState(state.Streaming)
		if _, err := b.app.Exec(t.Context(), `alter table outbox.events set unlogged`); err == nil {
			t.Error("a published table can be made unlogged")
		}
		b.exec(`set session_replication_role = replica`)
		b.publish(1)
		b.exec(`reset session_replication_role`)
		b.exec(`create function public.note() returns trigger language plpgsql as $$begin insert into outbox.events (event_key, aggregate_type, aggregate_id, event_type, payload)
			values ('k', 'Order', 'a', 'Made', '{"n" : 3}'); return new; end$$`)
		b.exec(`create table business (id int primary key)`)
		b.exec(`create trigger note after insert on business for each row execute function public.note(); alter table business enable always trigger note`)
		b.exec(`set session_replication_role = replica`)
		b.publish(2)
		b.exec(`insert into business values (1)`)
		b.exec(`reset session_replication_role`)
		b.exec(`alter table outbox.events replica identity nothing`)
		b.publish(4)
		b.exec(`truncate outbox.events`)
		b.publish(5)
		b.mustBring(r, 1, 2, 3, 4, 5)
	})
}

// ensuredBench is a database with publication, slot and record.
func ensuredBench(t *testing.T) *bench {
	t.Helper()
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.RetryHuman = b.cfg.BackoffMin
	b.ensured()
	return b
}

// mustBring waits for the events with these payloads, and fails the test if there are others after the first of them.
func (b *bench) mustBring(r *relay, numbers ...int) {
	b.t.Helper()
	testenv.Eventually(b.t, 30*time.Second, func() (bool, string) {
		got := map[string]bool{}
		for _, p := range payloads(r.seen()) {
			got[p] = true
		}
		for _, n := range numbers {
			if !got[fmt.Sprintf(`{"n" : %d}`, n)] {
				return false, fmt.Sprintf("event %d did not come, %v did; state %+v", n, got, r.lastState())
			}
		}
		return true, ""
	})
}
