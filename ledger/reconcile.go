package ledger

import (
	"context"
	"errors"
	"fmt"
)

// DiscoverFunc finds business facts that should have been delivered, a page at a time: it returns the keys of the
// page that begins at cursor, "" being the first, and the cursor of the next one, "" after the last. It need not
// know what was delivered: the ledger does.
type DiscoverFunc func(ctx context.Context, cursor string) (keys []Key, next string, err error)

// RunReconciler goes once through all that discover finds and delivers what the ledger does not know yet or has due.
// A scheduler calls it as often as it likes, in as many processes as it likes: dedup is tied to the events and not
// to the run. A delivery that fails is the ledger's to retry and does not stop the pass.
//
// Errors: discover's, wrapped; the driver's, wrapped, when the ledger cannot be asked. Keys that the ledger refuses
// are passed over, and the first refusal is returned at the end.
func (l *Ledger) RunReconciler(ctx context.Context, discover DiscoverFunc, h Handler, opts ...Option) error {
	var refused error
	n := 0
	for cursor := ""; ; {
		keys, next, err := discover(ctx, cursor)
		if err != nil {
			return fmt.Errorf("discover deliveries: %w", err)
		}
		for _, key := range keys {
			outcome, err := l.Deliver(ctx, key, h, opts...)
			_, bad := errors.AsType[*KeyError](err)
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err == nil || outcome != "":
			case !bad && isTransient(err):
				return err
			default:
				if n++; refused == nil {
					refused = err
				}
			}
		}
		switch next {
		case "":
			if refused != nil {
				return fmt.Errorf("%d keys refused, the first: %w", n, refused)
			}
			return nil
		case cursor:
			return fmt.Errorf("discover deliveries: cursor %q does not advance", cursor)
		}
		cursor = next
	}
}
