package cdc

import "context"

// Published compares how the tables are published with how they were when a relay last noted it in the record, and
// lists what is published anew since; known is false where none has noted it. The error is that of a session which
// would not stream because rows written meanwhile may be missing. Server must have been called.
func (x *Examination) Published(ctx context.Context, rec Record) (changed []string, known bool, err error) {
	if rec.Publication == "" {
		return nil, false, nil
	}
	was, err := readPublished(rec)
	if err != nil {
		return nil, true, err
	}
	now, err := x.s.loadPublished(ctx, x.db)
	if err != nil {
		return nil, true, err
	}
	changed, err = x.s.checkStillPublished(ctx, x.db, x.sv.version, was, now)
	return changed, true, x.s.withGap(ctx, err)
}
