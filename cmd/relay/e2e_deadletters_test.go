package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// newSmallRig is newRig with a topic that takes no record beyond 10 kB.
func newSmallRig(t *testing.T, partitions int32) *rig {
	t.Helper()
	r := newRigWithoutTopic(t, sharedPostgres(t), testenv.Kafka(t))
	testenv.CreateTopic(t, r.brokers, r.topic, partitions, map[string]string{"max.message.bytes": "10000"})
	return r
}

// setTopic changes a setting of the topic.
func (r *rig) setTopic(name, value string) {
	r.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	res, err := kadm.NewClient(client).AlterTopicConfigs(r.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, r.topic)
	if err == nil {
		err = res[0].Err
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// noise is what no compression makes smaller.
func noise(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(b)
	return b
}

// publishNoise is publishOne with a value of n bytes that no compression makes smaller.
func (r *rig) publishNoise(aggregate string, n int) (id string, before outbox.LSN) {
	r.t.Helper()
	if err := r.conn.QueryRow(r.t.Context(), `
		SELECT outbox.publish('one', 'Order', $1, 'Made', payload_bytes => $2)::text, pg_current_wal_insert_lsn()::text`,
		aggregate, noise(n)).Scan(&id, &before); err != nil {
		r.t.Fatal(err)
	}
	return id, before
}

// letterStates counts the dead letters by state.
func (r *rig) letterStates() map[string]int {
	r.t.Helper()
	out := map[string]int{}
	rows, err := r.conn.Query(r.t.Context(), `select state, count(*) from outbox.dead_letters where slot = $1 group by state`, r.slot)
	if err != nil {
		r.t.Fatal(err)
	}
	var s string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&s, &n}, func() error { out[s] = n; return nil }); err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) awaitLetters(within time.Duration, why string, ok func(map[string]int) bool) {
	r.t.Helper()
	testenv.Eventually(r.t, within, func() (bool, string) {
		s := r.letterStates()
		return ok(s), fmt.Sprintf("%s: %v", why, s)
	})
}

// says runs a command and fails the test unless it ends so and says that.
func (r *rig) says(code int, want []string, args ...string) string {
	r.t.Helper()
	got, out := r.relayCommand(args...)
	if got != code {
		r.t.Fatalf("%v: exit code %d, want %d:\n%s", args, got, code, out)
	}
	for _, w := range want {
		if !strings.Contains(out, w) {
			r.t.Errorf("%v does not say %q:\n%s", args, w, out)
		}
	}
	return out
}

// TestE2E_DeadLetters goes the way of a person: an event is too large for its topic, the relay halts, the event is
// parked by request, seen, and published when the topic takes it.
func TestE2E_DeadLetters(t *testing.T) {
	t.Parallel()
	r := newSmallRig(t, 1)
	p := r.startStreaming()
	r.publishOne("before")
	bad, _ := r.publishNoise("order-1", 20_000)
	r.publishOne("behind")
	p.awaitState(state.Halted, 30*time.Second)
	if s := p.status(); !strings.Contains(s.Reason, bad) || !strings.Contains(s.Hint, "dead-letters park") {
		t.Errorf("state halted says %q, hint %q", s.Reason, s.Hint)
	}
	r.says(exitUsage, []string{"--reason"}, "dead-letters", "park", bad)
	r.says(exitFailed, []string{"not halted"}, "dead-letters", "park", "nonsense", "--reason", "try", "--wait")
	r.says(exitOK, []string{"parked"}, "dead-letters", "park", bad, "--reason", "too large for now", "--wait")
	r.drained(p, 30*time.Second)
	out := r.says(exitOK, []string{"parked", r.topic, "order-1", "refused"}, "dead-letters", "list")
	number := strings.Fields(strings.Split(out, "\n")[1])[0]
	r.says(exitOK, []string{bad, "too large for now", "relay_position", "20000 bytes"}, "dead-letters", "show", number)
	r.says(exitFailed, []string{"refused", "Too Large"}, "dead-letters", "requeue", number, "--reason", "again", "--wait")
	r.setTopic("max.message.bytes", "100000")
	r.says(exitOK, []string{"1 published", "done"}, "dead-letters", "requeue", number, "--reason", "limit raised", "--wait", "--actor", "somebody")
	r.says(exitOK, []string{"no dead letters"}, "dead-letters", "list")
	r.says(exitOK, []string{"published", "somebody"}, "dead-letters", "show", number)
	r.says(exitFailed, []string{"no letter that waits"}, "dead-letters", "discard", number, "--reason", "too late", "--wait")
	records := r.consume()
	if len(records) != 3 {
		t.Fatalf("%d records, want 3", len(records))
	}
	if id, _ := records[2].Header("id"); id != bad || len(records[2].Value) != 20_000 {
		t.Errorf("last record is %s with %d bytes, want %s", id, len(records[2].Value), bad)
	}
	if kind, _ := records[2].Header("relay_replay"); kind != "requeue" {
		t.Errorf("relay_replay is %q", kind)
	}
	p.stop()
	r.says(exitFailed, []string{"no relay holds the slot"}, "dead-letters", "requeue", number, "--reason", "nobody there", "--wait")
}

// TestE2E_DeadLetters_Stop stops a halted relay: it does not wait for what cannot be finished.
func TestE2E_DeadLetters_Stop(t *testing.T) {
	t.Parallel()
	r := newSmallRig(t, 1)
	p := r.startStreaming("RELAY_DRAIN_TIMEOUT=1h")
	good, _ := r.publishOne("order-1")
	bad, _ := r.publishNoise("order-1", 20_000)
	next, _ := r.publishOne("order-1")
	p.awaitState(state.Halted, 30*time.Second)
	p.signal(syscall.SIGTERM)
	if code := p.awaitExit(10 * time.Second); code != exitOK {
		t.Errorf("exit code %d:\n%s", code, tail(p.log(), 2000))
	}
	r.setTopic("max.message.bytes", "100000")
	p = r.startStreaming()
	r.drained(p, 30*time.Second)
	r.mustHave([]string{good, bad, next}, true)
}

// TestE2E_DeadLetters_Kill kills the relay again and again while one event in twenty is poison: each event is either in
// the topic once or has a letter, never both; with hold-key nothing behind a letter is in the topic. Then the limit is
// raised and all letters are requeued, under fire as well: nothing is missing, and each key is in order.
func TestE2E_DeadLetters_Kill(t *testing.T) {
	for _, policy := range []string{"park", "hold-key"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			seed := seed(t)
			rng := rand.New(rand.NewPCG(seed, 7))
			r := newSmallRig(t, 3)
			start := func() *relayProcess { return r.start("RELAY_ROUTE_POISON=" + policy) }
			p := start()
			p.awaitState(state.Streaming, 30*time.Second)
			rounds := 8
			if testing.Short() {
				rounds = 3
			}
			n := map[int]int{}
			for range rounds {
				for range 200 {
					key := rng.IntN(40)
					n[key]++
					var pad []byte
					if rng.IntN(20) == 0 {
						pad = noise(12_000)
					}
					r.exec(`select outbox.publish($1::text || ':' || $2::int, 'Order', $1, 'Made', payload_bytes => $3)`, fmt.Sprint("key-", key), n[key], append([]byte("x"), pad...))
				}
				p.proc.WaitFor(time.Duration(rng.IntN(300)) * time.Millisecond)
				p.kill()
				p = start()
			}
			p.awaitState(state.Streaming, 60*time.Second)
			r.drained(p, 60*time.Second)
			letters := r.letterKeys()
			seen := map[string]bool{}
			for _, rec := range r.consume() {
				id, _ := rec.Header("event_key")
				if seen[id] || letters[id] != "" {
					t.Errorf("event %s is in the topic again, or although it has a letter", id)
				}
				seen[id] = true
			}
			total := 0
			for key, last := range n {
				held := false
				for i := 1; i <= last; i++ {
					id := fmt.Sprintf("key-%d:%d", key, i)
					total++
					held = held || letters[id] != ""
					switch {
					case !seen[id] && letters[id] == "":
						t.Errorf("event %s is nowhere", id)
					case policy == "hold-key" && held && letters[id] == "":
						t.Errorf("event %s is in the topic, and one before it has a letter", id)
					}
				}
			}
			if len(letters) == 0 || len(letters) == total {
				t.Fatalf("%d of %d events have a letter", len(letters), total)
			}

			// While the requests are carried out, writers go on and the relay is killed.
			r.setTopic("max.message.bytes", "1000000")
			r.says(exitOK, nil, "dead-letters", "requeue", "--all-of-topic", r.topic, "--reason", "limit raised")
			for range 4 {
				p.proc.WaitFor(time.Duration(50+rng.IntN(1200)) * time.Millisecond)
				p.kill()
				for range 20 {
					key := rng.IntN(40)
					n[key]++
					r.exec(`select outbox.publish($1::text || ':' || $2::int, 'Order', $1, 'Made', '{}')`, fmt.Sprint("key-", key), n[key])
				}
				p = start()
			}
			p.awaitState(state.Streaming, 60*time.Second)
			r.awaitLetters(60*time.Second, "letters are left", func(s map[string]int) bool { return s["parked"]+s["requeued"]+s["held"] == 0 })
			testenv.Eventually(t, 30*time.Second, func() (bool, string) {
				var state string
				err := r.conn.QueryRow(t.Context(), `select state || ' ' || progress::text from outbox.requests where slot = $1`, r.slot).Scan(&state)
				return err == nil && strings.HasPrefix(state, "done"), fmt.Sprintf("the request is %q, %v", state, err)
			})
			r.drained(p, 60*time.Second)
			p.stop()
			first := map[string]int{}
			live := map[string]int{}
			for i, rec := range r.consume() {
				id, _ := rec.Header("event_key")
				if _, ok := first[id]; !ok {
					first[id] = i
				}
				if _, again := rec.Header("relay_replay"); !again {
					live[id]++
				}
			}
			for key, last := range n {
				before := -1
				for i := 1; i <= last; i++ {
					id := fmt.Sprintf("key-%d:%d", key, i)
					at, ok := first[id]
					switch {
					case !ok:
						t.Errorf("event %s is missing", id)
					case live[id] > 1:
						t.Errorf("event %s is %d times in the topic", id, live[id])
					case policy == "hold-key" && at < before:
						t.Errorf("event %s stands before an earlier one of its key", id)
					}
					before = at
				}
			}
		})
	}
}

// letterKeys returns the states of letters by event key.
func (r *rig) letterKeys() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	rows, err := r.conn.Query(r.t.Context(), `select event_key, state from outbox.dead_letters where slot = $1`, r.slot)
	if err != nil {
		r.t.Fatal(err)
	}
	var key, state string
	if _, err := pgx.ForEachRow(rows, []any{&key, &state}, func() error { out[key] = state; return nil }); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// TestE2E_DeadLetters_Seams kills the relay where a letter is about to be committed, and where it just was.
func TestE2E_DeadLetters_Seams(t *testing.T) {
	t.Parallel()
	r := newSmallRig(t, 1)
	p := r.startStreaming("RELAY_ROUTE_POISON=park")
	r.publishOne("order-1")
	r.drained(p, 30*time.Second)

	other := r.connect()
	lock := func(sql string) (release func()) {
		t.Helper()
		tx, err := other.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Rollback(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
		}
	}
	release := lock("lock table outbox.dead_letters in share mode")
	bad, before := r.publishNoise("order-1", 20_000)
	r.publishOne("order-1")
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		n := 0
		err := r.conn.QueryRow(t.Context(), `select count(*) from pg_locks where relation = 'outbox.dead_letters'::regclass and not granted`).Scan(&n)
		return err == nil && n > 0, fmt.Sprintf("nobody writes a letter: %v", err)
	})
	r.mustNotConfirm(before)
	p.kill()
	r.exec(`select pg_terminate_backend(pid) from pg_locks where relation = 'outbox.dead_letters'::regclass and not granted`)
	release()
	if n := len(r.letterStates()); n != 0 {
		t.Errorf("letters before any was committed: %d", n)
	}
	p = r.startStreaming("RELAY_ROUTE_POISON=park")
	r.drained(p, 30*time.Second)
	r.awaitLetters(10*time.Second, "not parked", func(s map[string]int) bool { return s["parked"] == 1 })

	// Committed and not confirmed: a second bad one, with the topic's limit raised before the relay comes back. It has
	// a letter, so it is not published.
	second, _ := r.publishNoise("order-1", 20_000)
	r.awaitLetters(20*time.Second, "not parked", func(s map[string]int) bool { return s["parked"] == 2 })
	p.kill()
	r.setTopic("max.message.bytes", "100000")
	p = r.startStreaming("RELAY_ROUTE_POISON=halt")
	r.publishOne("order-1")
	r.drained(p, 30*time.Second)
	for _, rec := range r.consume() {
		if id, _ := rec.Header("id"); id == bad || id == second {
			t.Errorf("event %s has a letter and was published", id)
		}
	}
	if got := len(r.consume()); got != 3 {
		t.Errorf("%d records, want 3", got)
	}
}

// TestE2E_DeadLetters_Backlog parks in the phase before the stream and after a recovery: what has a letter is not
// published again.
func TestE2E_DeadLetters_Backlog(t *testing.T) {
	t.Parallel()
	r := newSmallRig(t, 1)
	ids := r.publish("order-1", 19)
	ids = append(ids, r.publish("order-2", 1)...)
	r.publishNoise("order-2", 20_000)
	r.publish("order-1", 5)
	p := r.startStreaming("RELAY_ROUTE_POISON=hold-key", "RELAY_BACKLOG=publish")
	r.publish("order-2", 3)
	r.drained(p, 30*time.Second)
	want := func(records, parked, held int) {
		t.Helper()
		if got := len(r.consume()); got != records {
			t.Errorf("%d records, want %d", got, records)
		}
		r.awaitLetters(10*time.Second, "letters", func(s map[string]int) bool { return s["parked"] == parked && s["held"] == held })
	}
	want(len(ids)+5, 1, 3)
	p.kill()
	testenv.Eventually(t, 20*time.Second, func() (bool, string) {
		_, err := r.conn.Exec(t.Context(), `select pg_drop_replication_slot($1)`, r.slot)
		return err == nil, fmt.Sprint(err)
	})
	r.setTopic("max.message.bytes", "100000")
	r.says(exitOK, []string{"events go first"}, "recover", "--all", "--yes")
	p = r.startStreaming("RELAY_ROUTE_POISON=hold-key")
	r.publish("order-2", 2)
	r.drained(p, 30*time.Second)
	want(2*(len(ids)+5), 1, 5)
	r.says(exitOK, []string{"6 published"}, "dead-letters", "requeue", "--key", "order-2", "--reason", "limit raised", "--wait")
	r.publish("order-2", 1)
	r.drained(p, 30*time.Second)
	want(2*(len(ids)+5)+7, 0, 0)
	// What a recovery repeats of the key comes before the letter, as it did the first time.
	var got []bool
	for _, rec := range r.consume() {
		if string(rec.Key) == "order-2" {
			_, again := rec.Header("relay_replay")
			got = append(got, again)
		}
	}
	if want := []bool{false, false, true, true, true, true, true, true, false}; !slices.Equal(want, got) {
		t.Errorf("requeued among the records of the key: %v, want %v", got, want)
	}
}

// TestE2E_DeadLetters_TwoPolicies has one relay park the bad events of one table and halt at those of another.
func TestE2E_DeadLetters_TwoPolicies(t *testing.T) {
	t.Parallel()
	r := newSmallRig(t, 1)
	r.exec(`create schema shop; create table shop.events (like outbox.events including all)`)
	config := t.TempDir() + "/relay.yaml"
	if err := os.WriteFile(config, []byte("route: {poison: park}\ntables: [{name: outbox.events}, {name: shop.events, poison: halt}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := r.start("RELAY_CONFIG=" + config)
	p.awaitState(state.Streaming, 30*time.Second)
	r.publishNoise("order-1", 20_000)
	r.publishOne("order-1")
	r.drained(p, 30*time.Second)
	r.awaitLetters(10*time.Second, "not parked", func(s map[string]int) bool { return s["parked"] == 1 })
	r.exec(`insert into shop.events (event_key, aggregate_type, aggregate_id, event_type, payload_bytes) values ('k', 'Order', 'order-2', 'Made', $1)`, noise(20_000))
	p.awaitState(state.Halted, 30*time.Second)
	if s := r.letterStates(); s["parked"] != 1 {
		t.Errorf("letters: %v", s)
	}
}
