package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// seam stops whoever is about to change a row, until the test lets it on.
type seam struct {
	r    *rig
	conn *pgx.Conn // holds the lock
}

// stopBefore makes one where a dead letter is given a state.
func (r *rig) stopBefore(letterState string) *seam {
	r.t.Helper()
	return r.stopAt("outbox.dead_letters", fmt.Sprintf("new.state = '%s' and old.state <> new.state", letterState))
}

// stopAt makes one where a row of a table is updated so that a condition holds.
func (r *rig) stopAt(table, condition string) *seam {
	r.t.Helper()
	s := &seam{r: r, conn: r.connect()}
	if _, err := s.conn.Exec(r.t.Context(), `select pg_advisory_lock(4711)`); err != nil {
		r.t.Fatal(err)
	}
	r.exec(fmt.Sprintf(`
		create function public.seam() returns trigger language plpgsql as $$ begin if %s then perform pg_advisory_xact_lock(4711); end if; return new; end $$;
		create trigger seam before update on %s for each row execute function public.seam()`, condition, table))
	return s
}

// kill waits until the relay is stopped there, and kills it. What it was writing is not written.
func (s *seam) kill(p *relayProcess) {
	t := s.r.t
	t.Helper()
	waits := `from pg_locks where locktype = 'advisory' and objid = 4711 and not granted and database = (select oid from pg_database where datname = current_database())`
	testenv.Eventually(t, 40*time.Second, func() (bool, string) {
		n := 0
		err := s.r.conn.QueryRow(t.Context(), `select count(*) `+waits).Scan(&n)
		return err == nil && n > 0, fmt.Sprintf("nobody comes to the seam: %v, letters %v", err, s.r.letterStates())
	})
	p.kill()
	s.r.exec(`select pg_terminate_backend(pid) ` + waits)
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		n := 1
		err := s.r.conn.QueryRow(t.Context(), `select count(*) `+waits).Scan(&n)
		return err == nil && n == 0, fmt.Sprintf("somebody still waits: %v", err)
	})
}

// open lets everybody on.
func (s *seam) open() {
	s.r.t.Helper()
	s.r.exec(`drop function public.seam() cascade`)
	_ = s.conn.Close(context.WithoutCancel(s.r.t.Context()))
}

// awaitRequest waits until the rig's only request is over and well.
func (r *rig) awaitRequest() {
	r.t.Helper()
	testenv.Eventually(r.t, 60*time.Second, func() (bool, string) {
		var state, progress string
		err := r.conn.QueryRow(r.t.Context(), `select state, progress::text from outbox.requests where slot = $1`, r.slot).Scan(&state, &progress)
		return err == nil && state == "done", fmt.Sprintf("the request is %q, %s, %v", state, progress, err)
	})
}

// keyRecords returns the IDs of a key's records in order, and how often each is there.
func (r *rig) keyRecords(key string) (order []string, count map[string]int) {
	r.t.Helper()
	count = map[string]int{}
	for _, rec := range r.consume() {
		if string(rec.Key) != key {
			continue
		}
		id, _ := rec.Header("id")
		if count[id]++; count[id] == 1 {
			order = append(order, id)
		}
	}
	return order, count
}

// TestE2E_DeadLetters_RequeueSeam kills the relay when the broker has acknowledged requeued records and their letters do
// not say so: the records are there once more at most, and in order; the letters are published in the end.
func TestE2E_DeadLetters_RequeueSeam(t *testing.T) {
	for _, policy := range []string{"park", "hold-key"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			r := newSmallRig(t, 1)
			p := r.startStreaming("RELAY_ROUTE_POISON=" + policy)
			var want []string
			for i := range 3 {
				id, _ := r.publishNoise("order-1", 20_000+i)
				want = append(want, id)
			}
			r.drained(p, 30*time.Second)
			r.setTopic("max.message.bytes", "100000")
			s := r.stopBefore("published")
			r.says(exitOK, nil, "dead-letters", "requeue", "--all-of-topic", r.topic, "--reason", "limit raised")
			s.kill(p)
			if _, count := r.keyRecords("order-1"); len(count) != 3 {
				t.Fatalf("the broker has %d of 3 records", len(count))
			}
			if got := r.letterStates(); got["requeued"] != 3 {
				t.Errorf("letters: %v, want 3 requeued", got)
			}
			s.open()
			next, _ := r.publishOne("order-1")
			p = r.startStreaming("RELAY_ROUTE_POISON=" + policy)
			r.awaitLetters(60*time.Second, "not published", func(s map[string]int) bool { return s["published"] >= 3 && len(s) == 1 }) // with hold-key the next one may wait, too
			r.awaitRequest()
			r.drained(p, 30*time.Second)
			order, count := r.keyRecords("order-1")
			if policy == "hold-key" {
				want = append(want, next)
			}
			if got := slices.DeleteFunc(slices.Clone(order), func(id string) bool { return policy == "park" && id == next }); !slices.Equal(want, got) {
				t.Errorf("records in order %v, want %v", got, want)
			}
			for id, n := range count {
				if n > 2 || id == next && n != 1 {
					t.Errorf("event %s is %d times in the topic", id, n)
				}
			}
			if count[next] == 0 {
				t.Errorf("event %s is missing", next)
			}
		})
	}
}

// TestE2E_DeadLetters_DiscardSeam kills the relay in the middle of a discard: before the letter that holds the key is
// given up, when it is and the request does not say so yet, and when those behind it go on. Nothing that waits is lost or discarded, and the key
// goes on.
func TestE2E_DeadLetters_DiscardSeam(t *testing.T) {
	for _, at := range []string{"discarded", "noted", "requeued", "published"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			r := newSmallRig(t, 1)
			p := r.startStreaming("RELAY_ROUTE_POISON=hold-key")
			bad, _ := r.publishNoise("order-1", 20_000)
			held := r.publish("order-1", 600) // more than one page
			other, _ := r.publishOne("order-2")
			r.drained(p, 60*time.Second)
			if got := r.letterStates(); got["parked"] != 1 || got["held"] != 600 {
				t.Fatalf("letters: %v", got)
			}
			var s *seam
			if at == "noted" {
				s = r.stopAt("outbox.requests", "exists (select from outbox.dead_letters where state = 'discarded')")
			} else {
				s = r.stopBefore(at)
			}
			var number string
			if err := r.conn.QueryRow(t.Context(), `select id::text from outbox.dead_letters where event_id = $1`, bad).Scan(&number); err != nil {
				t.Fatal(err)
			}
			r.says(exitOK, nil, "dead-letters", "discard", number, "--reason", "test data")
			s.kill(p)
			got := r.letterStates()
			if at == "discarded" && got["parked"] != 1 || at != "discarded" && got["discarded"] != 1 || got["published"] > 0 {
				t.Errorf("killed before %s, letters: %v", at, got)
			}
			s.open()
			next, _ := r.publishOne("order-1")
			p = r.start("RELAY_ROUTE_POISON=hold-key")
			p.awaitState(state.Streaming, 30*time.Second)
			r.awaitLetters(60*time.Second, "not settled", func(s map[string]int) bool { return s["discarded"] == 1 && s["parked"]+s["held"]+s["requeued"] == 0 })
			r.awaitRequest()
			last, _ := r.publishOne("order-1")
			r.drained(p, 30*time.Second)
			order, count := r.keyRecords("order-1")
			if want := append(held, next, last); !slices.Equal(want, order) {
				t.Errorf("%d records in order, want %d: those that waited, then what came since", len(order), len(want))
			}
			for id, n := range count {
				if n > 2 || id == last && n != 1 {
					t.Errorf("event %s is %d times in the topic", id, n)
				}
			}
			if count[bad] > 0 {
				t.Error("what was discarded is in the topic")
			}
			if _, count := r.keyRecords("order-2"); count[other] != 1 {
				t.Errorf("event of another key is %d times in the topic", count[other])
			}
		})
	}
}

// TestE2E_DeadLetters_Copies kills the relay again and again while dead letters are copied to a topic of their own: every
// copy has its row, the stream brings everything else, and in peace each letter has its copy.
func TestE2E_DeadLetters_Copies(t *testing.T) {
	t.Parallel()
	r := newSmallRig(t, 1)
	dead := r.topic + "-dead"
	testenv.CreateTopic(t, r.brokers, dead, 2, nil)
	environ := []string{"RELAY_ROUTE_POISON=park", "RELAY_ROUTE_DEAD_LETTER_TOPIC=" + dead}
	p := r.startStreaming(environ...)
	var good []string
	bad := map[string]bool{}
	publish := func() {
		for i := range 10 {
			id, _ := r.publishNoise(fmt.Sprint("order-", i), 20_000)
			bad[id] = true
			id, _ = r.publishOne(fmt.Sprint("order-", i))
			good = append(good, id)
		}
	}
	for i := range 3 {
		publish()
		p.proc.WaitFor(time.Duration(i*40) * time.Millisecond)
		p.kill()
		p = r.start(environ...)
	}
	p.awaitState(state.Streaming, 30*time.Second)
	r.drained(p, 60*time.Second)
	before := len(bad)
	publish()
	r.drained(p, 30*time.Second)
	p.stop() // which waits for copies
	r.mustHave(good, true)
	if got := r.letterStates(); got["parked"] != len(bad) {
		t.Errorf("letters: %v, want %d", got, len(bad))
	}
	copies := map[string]int{}
	for _, rec := range testenv.Consume(t, r.brokers, dead) {
		id, _ := rec.Header("id")
		copies[id]++
		class, _ := rec.Header("dead_letter_class")
		meant, _ := rec.Header("dead_letter_topic")
		if kind, _ := rec.Header("relay_replay"); !bad[id] || class != "refused" || meant != r.topic || kind != "dead_letter" || len(rec.Value) != 20_000 {
			t.Errorf("copy of event %s: class %q, topic %q, mark %q, %d bytes", id, class, meant, kind, len(rec.Value))
		}
	}
	if n := len(copies); n < len(bad)-before {
		t.Errorf("%d copies; of the last %d letters each must have one", n, len(bad)-before)
	}
}
