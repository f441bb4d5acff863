package sqltest_test

import "testing"

func TestConfigureChannel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.answer("made", "SELECT ledger.configure_channel('w-first', mode => 'simple')")
	b.answer("made", "SELECT ledger.configure_channel('w-second', mode => 'guarded', on_uncertain => 'resend', after_channel => 'w-first', max_attempts => 3, lease => '7 s', backoff_min => '1 s', backoff_max => '1 min')")
	b.answer("unchanged", "SELECT ledger.configure_channel('w-second', on_uncertain => 'resend', after_channel => 'w-first')")
	b.answer("changed", "SELECT ledger.configure_channel('w-second', max_attempts => 4)")
	// What a doubt leads to is not a worker's to change.
	b.answer("differs", "SELECT ledger.configure_channel('w-second', on_uncertain => 'hold', max_attempts => 4)")
	b.answer("differs", "SELECT ledger.configure_channel('w-second', mode => 'simple', max_attempts => 4)")
	// What is not said stays, except what it comes after.
	got := one[string](b, "SELECT concat_ws(' ', mode, on_uncertain, coalesce(after_channel, '-'), max_attempts, lease) FROM ledger.channels_in_force WHERE channel = 'w-second'")
	if got != "guarded resend - 4 00:00:07" {
		t.Errorf("in force: %s", got)
	}
	for sql, state := range map[string]string{
		"SELECT ledger.configure_channel('*')":                                  "22023",
		"SELECT ledger.configure_channel(NULL)":                                 "22023",
		"SELECT ledger.configure_channel('w-third', after_channel => 'w-none')": "22023",
		"SELECT ledger.configure_channel('w-third', mode => 'other')":           "23514",
	} {
		if _, err := b.conn.Exec(t.Context(), sql); sqlState(err) != state {
			t.Errorf("%s: %v, want %s", sql, err, state)
		}
	}
}

func TestParkRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		key, value any
		want       bool
	}{{nil, nil, true}, {nil, nil, false}, {"a", "b", true}, {"a", "b", false}, {"", "ab", true}} {
		if got := one[bool](b, "SELECT ledger.park_record('t', 0, 7, 'foreign', 'x', $1::text::bytea, $2::text::bytea, '{}')", c.key, c.value); got != c.want {
			t.Errorf("%v %v: %t, want %t", c.key, c.value, got, c.want)
		}
	}
	for _, sql := range []string{
		"SELECT ledger.park_record(NULL, 0, 7, 'foreign', 'x', NULL, NULL, '{}')",
		"SELECT ledger.park_record('t', 0, 7, '', 'x', NULL, NULL, '{}')",
		"SELECT ledger.park_record('t', 0, 7, 'foreign', 'x', NULL, NULL, '[]')",
		"SELECT ledger.park_record('t', 0, 7, 'foreign', 'x', NULL, NULL, NULL)",
	} {
		if _, err := b.conn.Exec(t.Context(), sql); sqlState(err) != "22023" {
			t.Errorf("%s: %v, want 22023", sql, err)
		}
	}
}

// Who is limited to tenants changes no channel and parks nothing, for both are everybody's.
func TestDeliver_limitedRole(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("SELECT ledger.remember('a', 'k:1', 'T', 'x', NULL, now(), NULL), ledger.remember('b', 'k:1', 'T', 'x', NULL, now(), NULL)")
	b.exec("INSERT INTO ledger.role_tenants VALUES (session_user, 'a')")
	if got := one[string](b, "SELECT ledger.remembered_type('a', 'k:1')"); got != "T" {
		t.Errorf("own tenant: %s", got)
	}
	for _, sql := range []string{
		"SELECT ledger.configure_channel('w')", "SELECT ledger.park_record('t', 0, 7, 'foreign', 'x', NULL, NULL, '{}')", "SELECT ledger.remembered_type('b', 'k:1')",
	} {
		if _, err := b.conn.Exec(t.Context(), sql); sqlState(err) != "42501" {
			t.Errorf("%s: %v, want 42501", sql, err)
		}
	}
}

// A delivery that waits for another is due as soon as that is at its end.
func TestWakeFollowers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec("SELECT ledger.configure_channel('w-first', mode => 'simple'), ledger.configure_channel('w-second', mode => 'simple', after_channel => 'w-first')")
	b.exec("SELECT ledger.register_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'w-first', now()), ledger.register_batch('', 'k:1', ARRAY['user:1', 'user:2'], 'w-second', now())")
	b.exec("UPDATE ledger.notification_dispatches SET due_at = due_at + interval '1 minute' WHERE channel = 'w-second'")
	for want, sql := range []string{
		"SELECT ledger.wake_followers('', 'k:1', 'user:1', 'w-second')", // nothing follows it
		"SELECT ledger.wake_followers('', 'k:1', 'user:1', 'w-first')",
	} {
		if got := one[int](b, sql); got != want {
			t.Errorf("%s: %d woken, want %d", sql, got, want)
		}
	}
	if got := list[string](b, "SELECT recipient FROM ledger.notification_dispatches WHERE channel = 'w-second' AND due_at <= clock_timestamp()"); len(got) != 1 || got[0] != "user:1" {
		t.Errorf("due: %v, want user:1", got)
	}
}
