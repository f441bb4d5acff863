package sqltest_test

import "testing"

const once = "SELECT ledger.once('', 'k:1', 'user:1', $1, now())"

// T37
func TestOnce(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(b *bundle) int64{
		"pending": func(b *bundle) int64 {
			b.exec("SELECT ledger.register_batch('', 'k:1', ARRAY['user:1'], 'simple', now(), now() + interval '1 day')")
			return one[int64](b, "SELECT id FROM ledger.notification_dispatches")
		},
		"failed": func(b *bundle) int64 {
			id, fence := b.reserved("k:1", "user:1", "simple")
			b.answer("failed", "SELECT ledger.fail($1, $2, 'retry', 'x')", id, fence)
			return id
		},
		"lease over": func(b *bundle) int64 {
			id, _ := b.reserved("k:1", "user:1", "simple")
			b.age(id, "61 s")
			return id
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := prepare(b)
			fence := one[int64](b, "SELECT fence FROM ledger.notification_dispatches")
			b.answer("delivered", once, "simple")
			b.answer("already_delivered", once, "simple")
			if fence > 0 {
				b.answer("already_delivered", "SELECT ledger.complete($1, $2)", id, fence)
			}
			if got := b.reserve("k:1", "user:1", "simple").Outcome; got != "already_delivered" {
				t.Errorf("reserve: %q", got)
			}
			b.whole()
		})
	}
}

func TestOnce_heldAndSkipped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, fence := b.reserved("k:1", "user:1", "simple")
	b.answer("already_reserved", once, "simple")
	b.answer("delivered", "SELECT ledger.complete($1, $2)", id, fence)
	b.answer("skipped", "SELECT ledger.once('', 'k:2', '', 'listener:x', now(), skip_reason => 'not eligible')")
	b.answer("already_skipped", "SELECT ledger.once('', 'k:2', '', 'listener:x', now())")
	b.answer("not eligible", "SELECT reason FROM ledger.status('', 'k:2')")
}

// T8: the listener's rows and its ledger row stand or fall together.
func TestOnce_rolledBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("CREATE TABLE public.entries (n int)")
	run := func(commit bool) string {
		tx := b.begin(b.conn)
		outcome := oneOn[string](b, tx, once, "listener:entries")
		if outcome == "delivered" {
			if _, err := tx.Exec(t.Context(), "INSERT INTO public.entries VALUES (1)"); err != nil {
				t.Fatal(err)
			}
		}
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		return outcome
	}
	for _, step := range []struct {
		commit  bool
		outcome string
	}{{false, "delivered"}, {true, "delivered"}, {true, "already_delivered"}} {
		if got := run(step.commit); got != step.outcome {
			t.Errorf("commit %t: %q, want %q", step.commit, got, step.outcome)
		}
	}
	if n := one[int](b, "SELECT count(*) FROM public.entries"); n != 1 {
		t.Errorf("%d entries, want 1", n)
	}
}

// A caller that turned synchronous_commit off waits all the same for what must outlive a crash, and only there.
func TestDurableCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reserved("k:9", "user:1", "hold")
	for _, c := range []struct{ setting, sql, want string }{
		{"off", "SELECT ledger.once('', 'k:1', 'user:1', 'simple', now())", "on"},
		{"off", "SELECT ledger.once_batch('', 'k:1', ARRAY['user:2'], 'simple', now())", "on"},
		{"local", "SELECT ledger.begin_effect(1, 1)", "on"},
		{"off", "SELECT ledger.complete(1, 1)", "on"},
		{"off", "SELECT ledger.complete_batch(ARRAY[1], ARRAY[1], NULL)", "on"},
		{"remote_apply", "SELECT ledger.complete(1, 1)", "remote_apply"},
		{"off", "SELECT ledger.reserve('', 'k:2', 'user:1', 'simple', 'w', now())", "off"},
	} {
		tx := b.begin(b.conn)
		for _, sql := range []string{"SET LOCAL synchronous_commit = " + c.setting, c.sql} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		if got := oneOn[string](b, tx, "SHOW synchronous_commit"); got != c.want {
			t.Errorf("%s from %s: %s, want %s", c.sql, c.setting, got, c.want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// T38
func TestPredecessor(t *testing.T) {
	t.Parallel()
	type step struct{ predecessor, want string }
	blocked := []step{{"absent", "blocked"}, {"failed", "blocked"}, {"reserved", "blocked"}, {"uncertain", "blocked"}}
	skipped := map[string]string{"skipped": "after_skipped", "dead": "after_dead"}
	callers := map[string]func(b *bundle, user string) string{
		"reserve": func(b *bundle, user string) string { return b.reserve("k:1", user, "after").Outcome },
		"batch": func(b *bundle, user string) string {
			return one[string](b, "SELECT outcome FROM ledger.reserve_batch('', 'k:1', ARRAY[$1], 'after', 'w', now())", user)
		},
		"claim_due": func(b *bundle, user string) string {
			b.exec("SELECT ledger.register_batch('', 'k:1', ARRAY[$1], 'after', now())", user)
			b.exec("UPDATE ledger.notification_dispatches SET due_at = now() WHERE channel = 'after' AND due_at IS NOT NULL")
			if one[int](b, "SELECT count(*) FROM ledger.claim_due('w', ARRAY['after'], 10)") == 1 {
				return "reserved"
			}
			return map[string]string{"pending": "blocked", "skipped": "already_skipped"}[one[string](b, "SELECT state FROM ledger.notification_dispatches WHERE channel = 'after' AND recipient = $1", user)]
		},
	}
	for name, call := range callers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			predecessor := func(user, state string) {
				b.exec("DELETE FROM ledger.notification_dispatches WHERE channel = 'simple' AND recipient = $1", user)
				if state != "absent" {
					b.exec(`INSERT INTO ledger.notification_dispatches (event_key, recipient, channel, state, max_attempts, created_at, due_at, lease_until, held_since, probe_until, done_at)
SELECT 'k:1', $1, 'simple', $2, 9, now(), CASE WHEN $2 IN ('failed', 'reserved') THEN now() END, CASE $2 WHEN 'reserved' THEN now() END,
       CASE $2 WHEN 'reserved' THEN now() END, CASE $2 WHEN 'uncertain' THEN now() END, CASE WHEN $2 IN ('delivered', 'skipped', 'dead') THEN now() END`, user, state)
				}
			}
			for _, s := range blocked {
				predecessor("user:1", s.predecessor)
				if got := call(b, "user:1"); got != s.want {
					t.Errorf("predecessor %s: %q, want %q", s.predecessor, got, s.want)
				}
			}
			for state, reason := range skipped {
				user := "user:" + state
				predecessor(user, state)
				if got := call(b, user); got != "already_skipped" {
					t.Errorf("predecessor %s: %q, want already_skipped", state, got)
				}
				b.answer(reason, "SELECT reason FROM ledger.notification_dispatches WHERE channel = 'after' AND recipient = $1", user)
			}
			predecessor("user:3", "delivered")
			if got := call(b, "user:3"); got != "reserved" {
				t.Errorf("predecessor delivered: %q, want reserved", got)
			}
			b.whole()
		})
	}
}

// The wait doubles from one second to one minute, and ends with the horizon.
func TestPredecessor_wait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reserve("k:1", "user:1", "after")
	id := one[int64](b, "SELECT id FROM ledger.notification_dispatches")
	for i, want := range []int64{1, 2, 4, 8, 16, 32, 60, 60} {
		if i > 0 {
			b.reserve("k:1", "user:1", "after")
		}
		got := one[int64](b, "SELECT round(extract(epoch FROM due_at - clock_timestamp()))::bigint FROM ledger.notification_dispatches")
		if got < want-1 || got > want+1 {
			t.Errorf("wait %d: %d s, want %d", i+1, got, want)
		}
		b.exec(`UPDATE ledger.notification_dispatches SET blocked_since = blocked_since - (due_at - clock_timestamp()), due_at = clock_timestamp()`)
	}
	b.age(id, "31 days")
	if got := b.reserve("k:1", "user:1", "after").Outcome; got != "dead" {
		t.Errorf("past the horizon: %q", got)
	}
	b.answer("after_missing", "SELECT reason FROM ledger.notification_dispatches")
}
