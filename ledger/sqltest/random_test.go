package sqltest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// LI1 to LI7 after workers, probes, operators and housekeeping did at random what each may do, with fences right, stale
// and invented, and leases so short that everybody is a zombie before long. A trigger keeps every change of every row,
// so that what must hold at each step is tested for each step.
func TestInvariants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`UPDATE ledger.channels SET max_attempts = 4, backoff_min = '1 ms', backoff_max = '5 ms', provider_window = '1 s' WHERE channel = '*';
CREATE TABLE public.steps (n bigserial, id bigint, predecessor text, old ledger.notification_dispatches, new ledger.notification_dispatches);
CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO public.steps (id, predecessor, old, new)
    VALUES (NEW.id, ledger.predecessor(NEW.tenant, NEW.event_key, NEW.recipient, 'simple'), CASE TG_OP WHEN 'UPDATE' THEN OLD END, NEW);
    RETURN NULL; END $$;
CREATE TRIGGER keep AFTER INSERT OR UPDATE ON ledger.notification_dispatches FOR EACH ROW EXECUTE FUNCTION public.keep()`)

	channel := func(rng *rand.Rand) string {
		return []string{"hold", "probe", "resend", "simple", "after"}[rng.IntN(5)]
	}
	key := func(rng *rand.Rand) (string, string) {
		return fmt.Sprintf("k:%d", rng.IntN(4)), fmt.Sprintf("user:%d", rng.IntN(4))
	}
	type work = func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error
	exec := func(sql string, args func(rng *rand.Rand) []any) work {
		return func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error {
			_, err := conn.Exec(ctx, sql, args(rng)...)
			return err
		}
	}
	// A call on some row with its fence, or one that is a little off.
	onRow := func(call string, more func(rng *rand.Rand) []any) work {
		return func(ctx context.Context, conn *pgxpool.Conn, rng *rand.Rand) error {
			off := []int{0, 0, 0, 0, 0, 0, -1, -1, -2, 1}[rng.IntN(10)]
			_, err := conn.Exec(ctx, "SELECT "+call+" FROM (SELECT id, fence + $1::int AS fence FROM ledger.notification_dispatches ORDER BY random() LIMIT 1) d",
				append([]any{off}, more(rng)...)...)
			return err
		}
	}
	none := func(*rand.Rand) []any { return nil }
	pick := func(values ...string) func(rng *rand.Rand) []any {
		return func(rng *rand.Rand) []any { return []any{values[rng.IntN(len(values))]} }
	}
	keyed := func(rng *rand.Rand) []any {
		k, u := key(rng)
		return []any{k, u, channel(rng)}
	}
	reserve := exec("SELECT ledger.reserve('', $1, $2, $3, 'w', now(), (1 + random() * 20) * interval '1 ms')", keyed)
	begin := onRow("ledger.begin_effect(id, fence, '0')", none)
	complete := onRow("ledger.complete(id, fence, 'ref')", none)
	fail := onRow("ledger.fail(id, fence, $2, 'x', '1 ms')", pick("retry", "retry", "permanent", "ambiguous"))
	span := 10 * time.Second
	if testing.Short() {
		span = 4 * time.Second
	}
	failed := b.hammer(8, span,
		reserve, reserve, reserve, begin, begin, begin, complete, complete, fail, fail,
		exec("SELECT ledger.once('', $1, $2, $3, now())", keyed),
		exec("SELECT ledger.register_batch('', $1, ARRAY[$2], $3, now())", keyed),
		exec("SELECT ledger.claim_due('w', ARRAY['hold', 'probe', 'resend', 'simple', 'after'], 3, '10 ms')", none),
		exec("SELECT ledger.claim_uncertain('p', ARRAY['hold', 'probe', 'resend', 'simple', 'after'], 2, '5 ms')", none),
		exec("SELECT ledger.sweep(3)", none),
		onRow("ledger.skip(id, fence, 'x')", none), onRow("ledger.release(id, fence)", none), onRow("ledger.renew(id, fence, '20 ms')", none),
		onRow("ledger.resolve(id, fence, $2, 'p', 'x')", pick("delivered", "failed", "dead")),
		// Not the predecessors: a delivered one then stays so, and LI7 can be read off each step.
		exec("SELECT ledger.redrive(id, 'ann', 'x', $1::boolean) FROM (SELECT id FROM ledger.notification_dispatches WHERE channel <> 'simple' ORDER BY random() LIMIT 1) d", pick("false", "true")),
	)
	for what, n := range failed {
		t.Errorf("%d times %s", n, what)
	}
	if n := one[int](b, "SELECT count(*) FROM public.steps"); n < 500 {
		t.Fatalf("%d steps only", n)
	}
	if n := one[int](b, "SELECT count(*) FROM public.steps WHERE (new).channel = 'after' AND (new).state = 'reserved'"); n < 10 {
		t.Errorf("%d steps of reserved successors only", n)
	}
	b.whole()
	for _, law := range []struct{ name, broken string }{
		{"LI1 one row a boundary", "SELECT event_key FROM ledger.notification_dispatches GROUP BY tenant, event_key, recipient, channel HAVING count(*) > 1"},
		{"LI2 the fence never falls", "SELECT n::text FROM public.steps WHERE (new).fence < (old).fence OR (new).gen_fence < (old).gen_fence OR (new).generation < (old).generation"},
		{"LI3 one open effect", "SELECT n::text FROM public.steps WHERE (old).effect_at IS NOT NULL AND (new).effect_at IS NOT NULL AND (new).effect_at <> (old).effect_at"},
		{"LI3 a new holder has begun nothing", "SELECT n::text FROM public.steps WHERE (new).state = 'reserved' AND (new).fence > (old).fence AND (new).effect_at IS NOT NULL"},
		{"LI4 how terminal states are left", `SELECT (old).state || ' to ' || (new).state FROM public.steps WHERE (old).state IN ('delivered', 'skipped', 'dead') AND NOT (
	(old).state = 'dead' AND (new).state = 'delivered' AND (new).fence = (old).fence + 1
	OR (new).state = 'pending' AND (new).attempts = 0 AND ((old).state = 'delivered') <= ((new).generation = (old).generation + 1))`},
		{"LI4 every step is one of the table", `SELECT DISTINCT coalesce((old).state, 'none') || ' to ' || (new).state FROM public.steps WHERE coalesce((old).state, 'none') || ' ' || (new).state NOT IN (
	'none pending', 'none reserved', 'none delivered', 'none skipped',
	'pending pending', 'pending reserved', 'pending delivered', 'pending skipped', 'pending dead',
	'failed pending', 'failed reserved', 'failed delivered', 'failed skipped', 'failed dead',
	'reserved reserved', 'reserved pending', 'reserved failed', 'reserved uncertain', 'reserved delivered', 'reserved skipped', 'reserved dead',
	'uncertain uncertain', 'uncertain failed', 'uncertain dead', 'uncertain delivered', 'uncertain pending',
	'dead delivered', 'dead pending', 'skipped pending', 'delivered pending')`},
		{"LI5 one attempt for each fence that ended", `SELECT s.id || '/' || s.fence FROM (
	SELECT DISTINCT id, (new).fence AS fence FROM public.steps WHERE (new).state = 'reserved' OR (new).state = 'uncertain' AND (new).held_since IS NOT NULL) s
	JOIN ledger.notification_dispatches d USING (id)
	LEFT JOIN ledger.dispatch_attempts a ON a.dispatch_id = s.id AND a.fence = s.fence
	WHERE a.dispatch_id IS NULL <> (s.fence = d.fence AND (d.state = 'reserved' OR d.state = 'uncertain' AND d.held_since IS NOT NULL))`},
		{"LI5 no attempt for a fence never handed out", `SELECT a.dispatch_id || '/' || a.fence FROM ledger.dispatch_attempts a WHERE NOT EXISTS (
	SELECT FROM public.steps s WHERE s.id = a.dispatch_id AND (new).fence = a.fence AND ((new).state = 'reserved' OR (new).state = 'uncertain' AND (new).held_since IS NOT NULL))`},
		{"LI6 nothing completed on guarded channels without a beginning", `SELECT n::text FROM public.steps WHERE (new).state = 'delivered' AND (old).state IS NOT NULL AND (new).channel <> 'simple'
	AND (new).first_effect_at IS NULL AND (new).provider_ref IS NOT NULL`},
		{"LI7 nothing is handed out before its predecessor delivered", `SELECT n || ' ' || predecessor FROM public.steps WHERE (new).channel = 'after' AND (new).state = 'reserved'
	AND (new).fence > coalesce((old).fence, 0) AND predecessor <> 'delivered'`},
	} {
		if bad := list[string](b, law.broken); len(bad) > 0 {
			t.Errorf("%s: broken %d times, first by %s", law.name, len(bad), bad[0])
		}
	}
}
