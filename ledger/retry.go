package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// conflictTries is how often a transaction of the ledger's own runs when others get in its way.
const conflictTries = 8

// sqlState returns the SQLSTATE of an error, whichever driver made it; empty: it came from no server.
func sqlState(err error) string {
	if e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return e.SQLState()
	}
	return ""
}

// isConflict reports whether the same transaction may succeed when it runs again: serialization failure, deadlock.
func isConflict(err error) bool {
	state := sqlState(err)
	return state == "40001" || state == "40P01"
}

// isTransient reports whether the same call may succeed later: the server or the way to it is at fault, not the
// call. It may have been carried out.
func isTransient(err error) bool {
	state := sqlState(err)
	if len(state) != 5 {
		return true // no server said anything
	}
	switch state[:2] {
	case "08", "40", "53", "57", "58": // connection, rollback, resources, intervention, system
		return true
	}
	return state == "55P03" || state == "25006" // a lock; a standby where the primary was
}

// pause waits for the n-th backoff, with jitter, from 5 ms doubling to at most most.
func pause(ctx context.Context, n int, most time.Duration) error {
	d := min(5*time.Millisecond<<min(n, 20), most)
	return pauseFor(ctx, d/2+rand.N(d/2+1))
}

// pauseFor waits for d.
func pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// inTx runs fn in a READ COMMITTED transaction of the ledger's own, again when others got in its way. Nothing that
// fn does outside the transaction is undone.
func (l *Ledger) inTx(ctx context.Context, fn func(DBTX) error) error {
	for n := 0; ; n++ {
		err := l.db.transact(ctx, fn)
		if err == nil || n+1 == conflictTries || !isConflict(err) {
			return err
		}
		if err := pause(ctx, n, time.Second); err != nil {
			return err
		}
	}
}

// call runs one statement: on db where the caller gave one, and then once, for only the caller can repeat its
// transaction; else on the ledger's pool, in READ COMMITTED, again after a conflict.
func (l *Ledger) call(ctx context.Context, db DBTX, fn func(DBTX) error) error {
	if db != nil {
		return fn(db)
	}
	if l.explicit.Load() {
		return l.inTx(ctx, fn)
	}
	for n := 0; ; n++ {
		err := fn(l.db)
		switch {
		case err == nil:
			return nil
		case isWrongIsolation(err):
			// The pool's sessions default to a stricter isolation than the functions can work in. From here on
			// each call says which one it wants, at the price of a BEGIN and a COMMIT.
			l.explicit.Store(true)
			return l.inTx(ctx, fn)
		case n+1 == conflictTries || !isConflict(err):
			return err
		}
		if err := pause(ctx, n, time.Second); err != nil {
			return err
		}
	}
}

// persist runs fn until it succeeds, fails for good, or Config.FinishTimeout has passed; the end of ctx does not
// stop it: what has happened must be recorded.
func (l *Ledger) persist(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.FinishTimeout)
	defer cancel()
	for n := 0; ; n++ {
		err := fn(ctx)
		if err == nil || !isTransient(err) || ctx.Err() != nil {
			return err
		}
		if pause(ctx, n, time.Second) != nil {
			return err
		}
	}
}

// isWrongIsolation reports whether a function refused to run under the session's isolation level.
func isWrongIsolation(err error) bool { return sqlState(err) == "25000" }
