package cdc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxrelay/relay/internal/state"
	"github.com/outboxrelay/relay/internal/testenv"
)

// TestSafeXID: at every moment every row of a transaction below safe_xid is acknowledged, whatever is open, prepared
// or committing meanwhile; and safe_xid keeps rising.
func TestSafeXID(t *testing.T) {
	server := testenv.PostgresWith(t, 0, map[string]string{"max_prepared_transactions": "50"})
	b := setup(t, testenv.NewDatabaseOn(t, server.DSN("postgres", "")))
	b.cfg.ConfirmInterval = 2 * time.Millisecond
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	acknowledged := map[string]bool{}
	rng := rand.New(rand.NewPCG(seed, 0))
	r := b.start(func(m *memorySink) {
		// Acknowledged somewhat later than accepted, and noted before the stream hears of it.
		done := m.done
		var late [][]uint64
		byID := map[uint64]string{}
		m.done = func(seqs []uint64) {
			late = append(late, append([]uint64(nil), seqs...))
			if rng.IntN(3) != 0 {
				return
			}
			for _, some := range late {
				mu.Lock()
				for _, seq := range some {
					acknowledged[byID[seq]] = true
				}
				mu.Unlock()
				done(some)
			}
			late = nil
		}
		m.taken = func(g got) bool { byID[g.seq] = g.id; return true }
	})
	r.awaitState(state.Streaming)

	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 4 {
		conn := b.connect()
		rng := rand.New(rand.NewPCG(seed, uint64(w)+1))
		writers.Go(func() {
			do := func(sql string, args ...any) {
				if _, err := conn.Exec(context.Background(), sql, args...); err != nil {
					t.Errorf("%s: %v", sql, err)
				}
			}
			for i := 0; ctx.Err() == nil; i++ {
				do(`begin`)
				do(publishSQL, fmt.Sprint(i))
				<-time.After(time.Duration(rng.IntN(15)) * time.Millisecond)
				switch rng.IntN(6) {
				case 0:
					do(`rollback`)
				case 1, 2:
					name := fmt.Sprintf("%s-%d-%d", b.db.Name, w, i)
					do(`prepare transaction '` + name + `'`)
					<-time.After(time.Duration(rng.IntN(30)) * time.Millisecond)
					do([]string{`commit prepared '`, `rollback prepared '`}[rng.IntN(2)] + name + `'`)
				default:
					do(`commit`)
				}
			}
		})
	}
	defer writers.Wait()
	defer stop()
	rose, last, checked := 0, "", 0
	testenv.Eventually(t, 60*time.Second, func() (bool, string) {
		// What is below safe_xid at one moment must have been acknowledged by now.
		var safe *string
		var ids []string
		err := pgx.BeginTxFunc(t.Context(), b.app, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `
				select s.safe_xid::text, coalesce(array_agg(e.id::text) filter (where e.id is not null), '{}')
				from outbox.relay_state s left join outbox.events e on e.xact_id < s.safe_xid
				where s.slot = $1 group by 1`, b.cfg.Slot).Scan(&safe, &ids)
		})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			if !acknowledged[id] {
				t.Fatalf("row %s is of a transaction below safe_xid %s and not acknowledged", id, *safe)
			}
		}
		if safe != nil && *safe != last {
			rose, last = rose+1, *safe
		}
		checked = len(ids)
		return rose >= 40 && checked > 200, fmt.Sprintf("safe_xid rose %d times, %d rows are below", rose, checked)
	})
}

// TestSafeXID_WaitsForItsPosition: what was over when the horizon was taken counts only once all of it is confirmed.
func TestSafeXID_WaitsForItsPosition(t *testing.T) {
	b := setup(t, testenv.NewDatabase(t))
	b.cfg.ConfirmInterval = 10 * time.Millisecond
	sinks := make(chan *memorySink, 1)
	r := b.start(func(m *memorySink) { m.held = true; sinks <- m })
	r.awaitState(state.Streaming)
	sink := <-sinks
	for n := range 3 {
		b.publish(n)
	}
	r.awaitEvents(3)
	for seq := range uint64(2) { // the horizon is taken after the first and lies behind all three
		before, _ := b.confirmed()
		sink.done([]uint64{seq + 1})
		testenv.Eventually(t, 10*time.Second, func() (bool, string) {
			now, _ := b.confirmed()
			return now > before, "event is not confirmed"
		})
	}
	var fine bool
	if err := b.app.QueryRow(t.Context(), `
		select s.safe_xid is null or s.safe_xid <= e.xact_id from outbox.relay_state s, outbox.events e
		where s.slot = $1 and e.event_key = 'key:2'`, b.cfg.Slot).Scan(&fine); err != nil || !fine {
		t.Errorf("safe_xid vouches for a transaction that is not confirmed (%v)", err)
	}
}
