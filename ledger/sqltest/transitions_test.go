package sqltest_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/testenv"
)

// transition is a line of transitions.csv.
type transition struct {
	rule                              string
	state, situation, channel, call   []string
	to, outcome, fenceDelta, tryDelta string
}

func readTransitions(tb testing.TB) []transition {
	tb.Helper()
	f, err := os.Open("../testdata/transitions.csv")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	lines, err := r.ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	var all []transition
	for _, l := range lines[1:] {
		all = append(all, transition{l[0], strings.Fields(l[1]), strings.Fields(l[2]), strings.Fields(l[3]), strings.Fields(l[4]), l[5], l[6], l[7], l[8]})
	}
	return all
}

// situations are rows by name: what differs from a row of five fences, of which the first two are an earlier
// generation's, that has been tried three times out of ten and whose effect of this generation has begun once.
var situations = []struct{ name, state, columns string }{
	{"none", "none", ""},
	{"none_expired", "none", ""},
	{"pending", "pending", "due_at = now() - interval '1 s'"},
	{"pending_later", "pending", "due_at = now() + interval '1 h'"},
	{"pending_exhausted", "pending", "due_at = now() - interval '1 s', attempts = 10"},
	{"pending_missing", "pending", "due_at = now() - interval '1 s', created_at = now() - interval '31 days', blocked_since = now() - interval '31 days'"},
	{"failed", "failed", "due_at = now() - interval '1 s'"},
	{"failed_later", "failed", "due_at = now() + interval '1 h'"},
	{"failed_exhausted", "failed", "due_at = now() - interval '1 s', attempts = 10"},
	{"afresh_failed", "failed", "due_at = now() - interval '1 s', first_effect_at = NULL"},
	{"reserved", "reserved", held + ", first_effect_at = NULL"},
	{"reserved_last", "reserved", held + ", attempts = 10, first_effect_at = NULL"},
	{"capped", "reserved", "due_at = now() + interval '1 min', lease_until = now() + interval '1 min', held_since = now() - interval '14 min', first_effect_at = NULL"},
	{"begun", "reserved", held + begun},
	{"begun_last", "reserved", held + begun + ", attempts = 10"},
	{"over", "reserved", over + ", first_effect_at = NULL"},
	{"over_last", "reserved", over + ", attempts = 10, first_effect_at = NULL"},
	{"over_begun", "reserved", over + begun},
	{"over_begun_last", "reserved", over + begun + ", attempts = 10"},
	{"over_begun_window", "reserved", over + begun + ", first_effect_at = now() - interval '25 h'"},
	{"reheld", "reserved", held},
	{"reheld_begun", "reserved", held + begun},
	{"uncertain", "uncertain", "probe_until = now() - interval '1 s'" + begun},
	{"uncertain_last", "uncertain", "probe_until = now() - interval '1 s', attempts = 10" + begun},
	{"probed", "uncertain", "probe_until = now() + interval '1 min', held_since = now()" + begun},
	{"delivered", "delivered", "done_at = now()" + begun},
	{"skipped", "skipped", "done_at = now()"},
	{"dead", "dead", "done_at = now()"},
	{"delivered_old", "delivered", "done_at = now() - interval '91 days'"},
	{"skipped_old", "skipped", "done_at = now() - interval '91 days'"},
	{"dead_old", "dead", "done_at = now() - interval '91 days'"},
}

const (
	held  = "due_at = now() + interval '1 min', lease_until = now() + interval '1 min', held_since = now()"
	over  = "due_at = now() - interval '1 s', lease_until = now() - interval '1 s', held_since = now() - interval '1 min'"
	begun = ", effect_at = now() - interval '30 s'"
)

// calls by name. $1 is the row's id, $2 the current fence; $3 channel, $4 event_time.
var calls = []struct{ name, sql string }{
	{"reserve", "SELECT outcome FROM ledger.reserve('', 'key', 'user:1', $3, 'worker', $4::timestamptz)"},
	{"reserve_batch", "SELECT outcome FROM ledger.reserve_batch('', 'key', ARRAY['user:1', 'user:1'], $3, 'worker', $4::timestamptz)"},
	{"register_batch", `SELECT CASE WHEN inserted = 1 THEN 'registered' WHEN known = 1 THEN 'known' WHEN expired = 1 THEN 'expired' END
		FROM ledger.register_batch('', 'key', ARRAY['user:1', 'user:1'], $3, $4::timestamptz)`},
	{"once", "SELECT ledger.once('', 'key', 'user:1', $3, $4::timestamptz)"},
	{"once_skip", "SELECT ledger.once('', 'key', 'user:1', $3, $4::timestamptz, skip_reason => 'left')"},
	{"once_batch", "SELECT outcome FROM ledger.once_batch('', 'key', ARRAY['user:1', 'user:1'], $3, $4::timestamptz)"},
	{"claim_due", "SELECT coalesce((SELECT 'reserved' FROM ledger.claim_due('worker', ARRAY[$3::text], 10)), '-')"},
	{"claim_uncertain", "SELECT coalesce((SELECT 'row' FROM ledger.claim_uncertain('prober', ARRAY[$3::text], 10, '1 min')), '-')"},
	{"sweep", `SELECT CASE WHEN to_uncertain = 1 THEN 'uncertain' WHEN to_dead = 1 THEN 'dead' WHEN to_skipped = 1 THEN 'skipped' ELSE '-' END
		FROM ledger.sweep(10)`},
	{"purge", "SELECT CASE ledger.purge(10) WHEN 1 THEN 'purged' WHEN 0 THEN '-' END"},
	{"begin_effect", "SELECT ledger.begin_effect($1, $2)"},
	{"begin_effect@late", "SELECT ledger.begin_effect($1, $2 - 1)"},
	{"begin_effect@invented", "SELECT ledger.begin_effect($1, $2 + 1)"},
	{"begin_effect_short", "SELECT ledger.begin_effect($1, $2, '1 hour')"},
	{"renew", "SELECT outcome FROM ledger.renew($1, $2, '2 min')"},
	{"renew@late", "SELECT outcome FROM ledger.renew($1, $2 - 1)"},
	{"renew@invented", "SELECT outcome FROM ledger.renew($1, $2 + 1)"},
	{"complete", `SELECT ledger.complete($1, $2, 'ref', '{"a": 1}')`},
	{"complete@late", "SELECT ledger.complete($1, $2 - 1, 'ref')"},
	{"complete@old", "SELECT ledger.complete($1, $2 - 3, 'ref')"},
	{"complete@invented", "SELECT ledger.complete($1, $2 + 1, 'ref')"},
	{"complete_batch", "SELECT outcome FROM ledger.complete_batch(ARRAY[$1::bigint], ARRAY[$2::bigint], ARRAY['ref'])"},
	{"fail_retry", "SELECT ledger.fail($1, $2, 'retry', 'timeout')"},
	{"fail_retry@late", "SELECT ledger.fail($1, $2 - 1, 'retry', 'timeout')"},
	{"fail_permanent", "SELECT ledger.fail($1, $2, 'permanent', 'no such address')"},
	{"fail_permanent@late", "SELECT ledger.fail($1, $2 - 1, 'permanent', 'no such address')"},
	{"fail_ambiguous", "SELECT ledger.fail($1, $2, 'ambiguous', 'reset')"},
	{"fail_ambiguous@invented", "SELECT ledger.fail($1, $2 + 1, 'ambiguous', 'reset')"},
	{"skip", "SELECT ledger.skip($1, $2, 'left')"},
	{"skip@late", "SELECT ledger.skip($1, $2 - 1, 'left')"},
	{"release", "SELECT ledger.release($1, $2)"},
	{"release@late", "SELECT ledger.release($1, $2 - 1)"},
	{"resolve_delivered", "SELECT ledger.resolve($1, $2, 'delivered', 'ann', 'seen in the log')"},
	{"resolve_failed", "SELECT ledger.resolve($1, $2, 'failed', 'ann', 'not in the log')"},
	{"resolve_dead", "SELECT ledger.resolve($1, $2, 'dead', 'ann', 'too late')"},
	{"resolve@late", "SELECT ledger.resolve($1, $2 - 1, 'failed', 'ann', 'not in the log')"},
	{"redrive", "SELECT ledger.redrive($1, 'ann', 'asked for')"},
	{"redrive_resend", "SELECT ledger.redrive($1, 'ann', 'asked for', true)"},
}

var createsRows = []string{"reserve", "reserve_batch", "register_batch", "once", "once_skip", "once_batch", "claim_due", "sweep"}

func TestTransitions(t *testing.T) {
	t.Parallel()
	walkTransitions(setup(t))
}

// The oldest and the newest server, whichever the other tests run on.
func TestTransitions_majors(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 18} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			walkTransitions(setupOn(t, testenv.NewDatabaseOn(t, testenv.PostgresMajor(t, major).DSN("postgres", ""))))
		})
	}
}

func walkTransitions(b *bundle) {
	b.Helper()
	table := readTransitions(b)
	used := make([]int, len(table))
	walked := 0
	for _, channel := range []string{"hold", "probe", "resend", "simple"} {
		for _, s := range situations {
			for _, c := range calls {
				used[b.walk(table, channel, s.name, c.name)]++
				walked++
			}
		}
	}
	for _, predecessor := range []string{"absent", "pending", "failed", "reserved", "uncertain", "skipped", "dead", "delivered"} {
		for _, s := range []string{"none", "none_expired", "pending", "pending_missing", "failed", "over", "over_begun", "delivered", "dead"} {
			for _, c := range createsRows {
				used[b.walk(table, "after:"+predecessor, s, c)]++
				walked++
			}
		}
	}
	for i, n := range used {
		if n == 0 {
			b.Errorf("no case fits line %+v", table[i])
		}
	}
	if walked < 5000 {
		b.Errorf("walked %d cases only", walked)
	}
}

type seen struct {
	state, row string
	fence      int64
	attempts   int
}

// walk makes one call in one situation, in a transaction of its own, and returns the line that told what to expect.
func (b *bundle) walk(table []transition, channel, situation, call string) int {
	b.Helper()
	label := fmt.Sprintf("%s %s %s", channel, situation, call)
	settings, predecessor, waits := channel, "", false
	if settings, predecessor, waits = strings.Cut(channel, ":"); !waits {
		settings = channel
	}
	var s struct{ name, state, columns string }
	for _, s = range situations {
		if s.name == situation {
			break
		}
	}
	line := slices.IndexFunc(table, func(t transition) bool {
		return fits(t.state, s.state) && fits(t.situation, situation) && fits(t.channel, channel) && fits(t.call, call)
	})
	if line < 0 {
		b.Fatalf("%s: no line fits", label)
	}
	want := table[line]

	tx, err := b.conn.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback(b.Context())
	must := func(sql string, args ...any) {
		b.Helper()
		if _, err := tx.Exec(b.Context(), sql, args...); err != nil {
			b.Fatalf("%s: %s: %v", label, sql, err)
		}
	}
	if waits && predecessor != "absent" {
		put(must, predecessor, "simple", "")
	}
	id, fence, eventTime := int64(-1), int64(5), "now"
	if s.state != "none" {
		put(must, s.state, settings, s.columns)
		id = oneOn[int64](b, tx, "SELECT max(id) FROM ledger.notification_dispatches")
		// The attempts that ended before; the current one has not, in the states that somebody holds.
		must("INSERT INTO ledger.dispatch_attempts (dispatch_id, fence, ended_at, generation, attempt, outcome) SELECT $1, f, now(), 1, 1, 'lease_over' FROM generate_series(1, $2::int) f",
			id, map[bool]int{true: 4, false: 5}[s.state == "reserved" || situation == "probed"])
	}
	if situation == "none_expired" {
		eventTime = "2001-01-01"
	}
	before := b.look(tx, settings)

	var outcome string
	sql := ""
	for _, c := range calls {
		if c.name == call {
			sql = c.sql
		}
	}
	sql = "WITH args AS (SELECT $1::bigint, $2::bigint, $3::text, $4::text) " + sql
	if err := tx.QueryRow(b.Context(), sql, id, fence, settings, eventTime).Scan(&outcome); err != nil {
		b.Errorf("%s: %v", label, err)
		return line
	}
	after := b.look(tx, settings)

	if outcome != want.outcome {
		b.Errorf("%s: outcome %q, want %q by rule %s", label, outcome, want.outcome, want.rule)
	}
	switch {
	case want.to == "=":
		if after != before {
			b.Errorf("%s: changed, rule %s\n%+v\n%+v", label, want.rule, before, after)
		}
	case want.to == "gone":
		if after.state != "none" {
			b.Errorf("%s: state %q, want it gone", label, after.state)
		}
	default:
		if after.state != want.to {
			b.Errorf("%s: state %q, want %q by rule %s", label, after.state, want.to, want.rule)
		}
		if got, delta := after.fence-before.fence, number(want.fenceDelta, 0); got != delta {
			b.Errorf("%s: fence rose by %d, want %d by rule %s", label, got, delta, want.rule)
		}
		if got, delta := int64(after.attempts-before.attempts), number(want.tryDelta, -int64(before.attempts)); got != delta {
			b.Errorf("%s: attempts rose by %d, want %d by rule %s", label, got, delta, want.rule)
		}
	}
	if bad := oneOn[[]string](b, tx, wholeSQL); len(bad) > 0 {
		b.Errorf("%s: breaks the rules of its state: %s", label, after.row)
	}
	// Every fence that was handed out has ended, unless somebody holds it, and then it has not.
	if after.state != "none" && s.state != "none" {
		const open = `SELECT coalesce(array_agg(f), '{}') FROM ledger.notification_dispatches d, generate_series(1, d.fence) f
WHERE d.id = $1 AND NOT EXISTS (SELECT FROM ledger.dispatch_attempts a WHERE a.dispatch_id = d.id AND a.fence = f)`
		got := oneOn[[]int64](b, tx, open, id)
		holds := after.state == "reserved" || after.state == "uncertain" && (call == "claim_uncertain" && outcome == "row" || situation == "probed")
		// once and late_accepted raise the fence and hand it to nobody.
		raised := slices.Contains([]string{"late_accepted", "delivered", "skipped"}, outcome) && after.fence > fence
		if n := len(got); holds && (n != 1 || got[0] != after.fence) || !holds && !raised && n != 0 || raised && (n != 1 || got[0] != 6) {
			b.Errorf("%s: open fences %v at fence %d", label, got, after.fence)
		}
	}
	return line
}

func fits(list []string, value string) bool { return list[0] == "*" || slices.Contains(list, value) }

func number(text string, all int64) int64 {
	if text == "-all" {
		return all
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// put inserts a row in a state; what a state must have comes first, columns may say otherwise.
func put(must func(string, ...any), state, channel, columns string) {
	must(`INSERT INTO ledger.notification_dispatches (tenant, event_key, recipient, channel, state, fence, gen_fence, generation, attempts, max_attempts,
created_at, first_effect_at, worker) VALUES ('', 'key', 'user:1', $1, $2, 5, 2, 2, 3, 10, now() - interval '2 hours', now() - interval '1 hour', 'first')`, channel, state)
	if columns == "" {
		columns = map[string]string{
			"pending": "due_at = now()", "failed": "due_at = now()", "reserved": held,
			"uncertain": "probe_until = now(), effect_at = now()", "delivered": "done_at = now()", "skipped": "done_at = now()", "dead": "done_at = now()",
		}[state]
	}
	must("UPDATE ledger.notification_dispatches SET "+columns+" WHERE channel = $1", channel)
}

func (b *bundle) look(tx pgx.Tx, channel string) seen {
	b.Helper()
	var s seen
	err := tx.QueryRow(b.Context(), "SELECT state, d::text, fence, attempts FROM ledger.notification_dispatches d WHERE event_key = 'key' AND channel = $1", channel).
		Scan(&s.state, &s.row, &s.fence, &s.attempts)
	if err == pgx.ErrNoRows {
		return seen{state: "none"}
	}
	if err != nil {
		b.Fatal(err)
	}
	return s
}
