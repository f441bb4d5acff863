package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/internal/faultproxy"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/ledger"
)

// journal makes the database write down every change of a dispatch row, for comparing with the state machine.
const journal = `
CREATE TABLE journal (n bigint GENERATED ALWAYS AS IDENTITY, id bigint, channel text, old_state text, new_state text, old_fence bigint,
  new_fence bigint, old_effect timestamptz, new_effect timestamptz, old_generation int, new_generation int);
CREATE FUNCTION journal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.state = NEW.state AND OLD.fence = NEW.fence AND OLD.effect_at IS NOT DISTINCT FROM NEW.effect_at THEN
    RETURN NULL; -- renewed, or moved in time by the test
  END IF;
  INSERT INTO public.journal (id, channel, old_state, new_state, old_fence, new_fence, old_effect, new_effect, old_generation, new_generation)
  VALUES (NEW.id, NEW.channel, CASE TG_OP WHEN 'INSERT' THEN 'none' ELSE OLD.state END, NEW.state,
    CASE TG_OP WHEN 'INSERT' THEN 0 ELSE OLD.fence END, NEW.fence, CASE TG_OP WHEN 'INSERT' THEN NULL ELSE OLD.effect_at END, NEW.effect_at,
    CASE TG_OP WHEN 'INSERT' THEN NEW.generation ELSE OLD.generation END, NEW.generation);
  RETURN NULL;
END $$;
CREATE TRIGGER journal AFTER INSERT OR UPDATE ON ledger.notification_dispatches FOR EACH ROW EXECUTE FUNCTION journal();
GRANT ALL ON journal TO PUBLIC`

// effectOf is one effect that arrived at the provider.
type effectOf struct {
	id, fence int64
	channel   string
	key       string
}

// flaky is a provider that fails, is slow, and is told of by workers that are paused.
type flaky struct {
	mu      sync.Mutex
	rng     *rand.Rand
	arrived []effectOf
	healthy bool
}

func (f *flaky) dice() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.healthy {
		return 0
	}
	return f.rng.IntN(100)
}

func (f *flaky) arrive(r ledger.Reservation) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrived = append(f.arrived, effectOf{r.ID, r.Fence, r.Key.Channel, r.ProviderKey})
}

func (f *flaky) has(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.arrived, func(e effectOf) bool { return e.key == key })
}

func (f *flaky) handler() ledger.Handler {
	return ledger.Handler{
		Eligible: func(context.Context, ledger.Key, ledger.DBTX) (bool, string, error) {
			if f.dice() >= 95 {
				return false, "", errors.New("check failed")
			}
			return true, "", nil
		},
		Effect: func(ctx context.Context, r ledger.Reservation) (string, error) {
			switch d := f.dice(); {
			case d < 60:
				f.arrive(r)
				return "ref", nil
			case d < 70:
				return "", errors.New("refused")
			case d < 78: // arrived, and the answer lost
				f.arrive(r)
				return "", ledger.Ambiguous(errors.New("no answer"))
			case d < 84:
				return "", ledger.Ambiguous(errors.New("no connection"))
			case d < 88:
				panic("bug")
			case d < 94: // arrives although the lease may be over by then: a worker that was paused in the middle
				stall(context.WithoutCancel(ctx), time.Duration(d)*10*time.Millisecond)
				f.arrive(r)
				return "", nil
			default:
				stall(ctx, time.Duration(d)*10*time.Millisecond)
				if ctx.Err() != nil {
					return "", ctx.Err()
				}
				f.arrive(r)
				return "", nil
			}
		},
		Probe: func(_ context.Context, r ledger.Reservation) (ledger.Verdict, error) {
			switch {
			case f.has(r.ProviderKey):
				return ledger.VerdictDelivered, nil
			case f.dice() > 80:
				return ledger.VerdictUnknown, nil
			}
			return ledger.VerdictNotSent, nil
		},
	}
}

func stall(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// T36: eight workers that are killed, paused, stalled and cut off at random. Every change of a row is one that the
// state machine has, no fence falls, no effect arrives without its stamp, a channel that holds sends at most once a
// stamp that nobody disowned, the provider's key is one for each delivery, and in the end everything is delivered.
func TestRun_random(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LEDGER_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LEDGER_TEST_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	f := &flaky{rng: rand.New(rand.NewPCG(seed, 2))}

	r := setup(t)
	r.exec(t, `UPDATE ledger.channels SET lease = '700 ms', hold_cap = '2 seconds', backoff_min = '20 ms', backoff_max = '200 ms', max_attempts = 1000
WHERE channel IN ('email', 'push', 'sms')`)
	r.exec(t, journal)
	const recipients = 60
	names := []string{"email", "push", "sms"}
	handlers := map[string]ledger.Handler{}
	for _, channel := range names {
		handlers[channel] = f.handler()
		if _, err := r.RegisterBatch(t.Context(), nil, event(channel), slices.Values(users(recipients)), 0); err != nil {
			t.Fatal(err)
		}
	}
	// Only sms asks its provider on its own.
	for _, channel := range []string{"email", "push"} {
		h := handlers[channel]
		h.Probe = nil
		handlers[channel] = h
	}

	var workers []*worker
	for i := range 8 {
		workers = append(workers, newWorker(t, r, handlers, rand.New(rand.NewPCG(seed, uint64(10+i)))))
	}
	chaosEnds := time.Now().Add(8 * time.Second)
	for time.Now().Before(chaosEnds) {
		w := workers[rng.IntN(len(workers))]
		switch d := rng.IntN(10); {
		case d < 4:
			w.proxy.Reset()
		case d < 6:
			w.proxy.Set(faultproxy.Both(faultproxy.Path{Pause: true}))
		case d < 8:
			w.kill()
			w.start()
		default:
			w.proxy.Heal()
		}
		stall(t.Context(), time.Duration(10+rng.IntN(80))*time.Millisecond)
	}
	for _, w := range workers {
		w.kill()
	}

	checkJournal(t, r)
	checkEffects(t, r, f, recipients*len(names))

	// A healthy worker, and an operator who asks the provider, bring the rest to its end.
	f.mu.Lock()
	f.healthy = true
	f.mu.Unlock()
	stop := run(t, r.Ledger, handlers)
	defer stop()
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		if _, err := r.Sweep(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		r.exec(t, "UPDATE ledger.notification_dispatches SET due_at = least(due_at, clock_timestamp()) WHERE state IN ('pending', 'failed')")
		list, err := r.ClaimUncertain(t.Context(), names, 100, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range list {
			verdict := ledger.VerdictNotSent
			if f.has(res.ProviderKey) {
				verdict = ledger.VerdictDelivered
			}
			if _, err := r.Resolve(t.Context(), res, verdict, "operator", "asked the provider"); err != nil {
				t.Fatal(err)
			}
		}
		n := query1[int](t, r, "SELECT count(*) FROM ledger.notification_dispatches WHERE state = 'delivered'")
		return n == recipients*len(names), fmt.Sprintf("%d delivered", n)
	})
	stop()
	checkJournal(t, r)
	checkEffects(t, r, f, recipients*len(names))
	keys := map[string]bool{}
	for _, e := range f.arrived {
		keys[e.key] = true
	}
	if len(keys) != recipients*len(names) {
		t.Errorf("the provider let %d through, want %d", len(keys), recipients*len(names))
	}
	// What the run has met, so that a change which makes it tame is seen.
	t.Log(query1[string](t, r, "SELECT string_agg(outcome || ' ' || n, ', ' ORDER BY n DESC) FROM (SELECT outcome, count(*) AS n FROM ledger.dispatch_attempts GROUP BY 1) a"))
	for _, outcome := range []string{"lease_over", "failed", "uncertain"} {
		if n := query1[int](t, r, "SELECT count(*) FROM ledger.dispatch_attempts WHERE outcome = $1", outcome); n == 0 {
			t.Errorf("no attempt ended %s in this run", outcome)
		}
	}
}

// checkJournal compares every change with the state machine (LI2, LI3, LI4).
func checkJournal(t *testing.T, r *rig) {
	t.Helper()
	type change struct{ from, to ledger.State }
	allowed := map[change]bool{}
	for _, s := range ledger.Machine() {
		for _, from := range s.From {
			allowed[change{from, s.To}] = true
		}
	}
	rows, err := r.pool.Query(t.Context(), `SELECT id, old_state, new_state, old_fence, new_fence, old_effect IS NOT NULL, new_effect IS NOT NULL,
  old_generation, new_generation, channel FROM journal ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	var id, oldFence, newFence int64
	var c change
	var oldBegun, newBegun bool
	var oldGeneration, newGeneration int
	var channel string
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&id, &c.from, &c.to, &oldFence, &newFence, &oldBegun, &newBegun, &oldGeneration, &newGeneration, &channel}, func() error {
		n++
		if !allowed[c] {
			t.Errorf("dispatch %d went from %s to %s", id, c.from, c.to)
		}
		if newFence < oldFence || newFence > oldFence+1 || newGeneration != oldGeneration {
			t.Errorf("dispatch %d: fence %d to %d, generation %d to %d", id, oldFence, newFence, oldGeneration, newGeneration)
		}
		if c.from == ledger.StateReserved && c.to == ledger.StateReserved && oldBegun && newFence > oldFence && channel != "push" {
			t.Errorf("dispatch %d of %s was taken over after its effect began", id, channel)
		}
		if c.to == ledger.StateReserved && newFence > oldFence && newBegun {
			t.Errorf("dispatch %d was handed out with a stamp", id)
		}
		return nil
	})
	if err != nil || n == 0 {
		t.Fatalf("%d changes, error %v", n, err)
	}
}

// checkEffects compares what arrived at the provider with the ledger (LI1, LI5, LI6).
func checkEffects(t *testing.T, r *rig, f *flaky, total int) {
	t.Helper()
	if n := r.rows(t); n != total {
		t.Errorf("%d rows, want %d", n, total)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	keyOf := map[int64]string{}
	begun := map[effectOf]int{}
	for _, e := range f.arrived {
		if k, ok := keyOf[e.id]; ok && k != e.key {
			t.Errorf("dispatch %d has two provider keys in one generation", e.id)
		}
		keyOf[e.id] = e.key
		begun[e]++
		if n := query1[int](t, r, "SELECT count(*) FROM journal WHERE id = $1 AND new_fence = $2 AND new_effect IS NOT NULL AND old_effect IS NULL", e.id, e.fence); n != 1 {
			t.Errorf("dispatch %d, fence %d: an effect arrived with %d stamps", e.id, e.fence, n)
		}
	}
	perHold := map[int64]int{}
	for e, n := range begun {
		if n != 1 {
			t.Errorf("dispatch %d, fence %d: %d effects under one stamp", e.id, e.fence, n)
		}
		if e.channel == "email" {
			perHold[e.id]++
		}
	}
	for id, n := range perHold {
		if n != 1 {
			t.Errorf("dispatch %d of a channel that holds: %d effects", id, n)
		}
	}
	// Every fence that is not the current hold has its attempt row.
	var missing []string
	rows, err := r.pool.Query(t.Context(), `SELECT j.id || '/' || j.new_fence FROM journal j JOIN ledger.notification_dispatches d ON d.id = j.id
WHERE j.new_state = 'reserved' AND j.new_fence > j.old_fence AND NOT (d.state = 'reserved' AND d.fence = j.new_fence)
  AND NOT EXISTS (SELECT FROM ledger.dispatch_attempts a WHERE a.dispatch_id = j.id AND a.fence = j.new_fence)`)
	if err != nil {
		t.Fatal(err)
	}
	if missing, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(missing) > 0 {
		t.Errorf("fences without an attempt: %s, error %v", strings.Join(missing, " "), err)
	}
}

// worker is a Run with a pool behind a proxy of its own.
type worker struct {
	t        *testing.T
	r        *rig
	handlers map[string]ledger.Handler
	rng      *rand.Rand
	proxy    *faultproxy.Proxy
	stop     func()
}

func newWorker(t *testing.T, r *rig, handlers map[string]ledger.Handler, rng *rand.Rand) *worker {
	t.Helper()
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := faultproxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	w := &worker{t: t, r: r, handlers: handlers, rng: rng, proxy: proxy}
	w.start()
	return w
}

func (w *worker) start() {
	w.proxy.Heal()
	u, err := url.Parse(w.r.url)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = w.proxy.Addr()
	cfg, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.MaxConns = 4
	p, err := pgxpool.NewWithConfig(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	l := newLedger(w.t, p, func(c *ledger.Config) {
		c.Workers = 3
		c.StopGrace = time.Millisecond
		c.FinishTimeout = 200 * time.Millisecond
	})
	stop := run(w.t, l, w.handlers)
	w.stop = func() { stop(); p.Close() }
}

// kill ends the worker while it can tell the database nothing any more.
func (w *worker) kill() {
	refuse(w.proxy)
	w.stop()
}
