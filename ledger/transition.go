package ledger

import "context"

// Transition makes a listener's work idempotent where that work is a change of state, without a row in the ledger.
// In one short transaction of its own, change runs a conditional update, such as
//
//	UPDATE claims SET state = 'pending_data' WHERE id = $1 AND state = 'open'
//
// and returns how many rows it changed; followUp runs in the same transaction, only if any were. So the state that
// the row has says whether the work was done, and not a history of calls: a second run, another worker, a retry
// after a crash changes no row and starts nothing. A follow-up is written with Write or RegisterBatch and leaves the
// database after the commit. Nothing outside the database belongs in either function; both may run again, after a
// serialization failure or a deadlock.
//
// It returns the number of changed rows; 0 is the answer "already done". Errors: those of the functions, as they
// are, and the driver's.
func (l *Ledger) Transition(ctx context.Context, change func(DBTX) (changed int64, err error), followUp func(DBTX) error) (int64, error) {
	var changed int64
	err := l.inTx(ctx, func(db DBTX) (err error) {
		if changed, err = change(db); err != nil || changed == 0 {
			return err
		}
		return followUp(db)
	})
	if err != nil {
		return 0, err
	}
	return changed, nil
}
