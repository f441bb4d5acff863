package doctor

import (
	"context"
	"strings"

	"github.com/outboxrelay/relay/cdc"
)

// published looks whether the tables are published as they were when a relay last looked: rows that were written while
// one was not are in no stream, though everything looks as before.
func (p *patient) published(ctx context.Context, s *sheet, _ cdc.DB) error {
	const name = "publication's past"
	changed, known, err := p.x.Published(ctx, p.stand.Record)
	switch {
	case err != nil:
		s.broken(name, plain(ctx, err))
	case !known:
		s.ok(name, "no relay has noted yet how the tables are published")
	case len(changed) > 0:
		s.ok(name, "changed since the relay last looked (%s), and no row is there that was written since", strings.Join(changed, ", "))
	default:
		s.ok(name, "the tables are published as they were when the relay last looked")
	}
	return nil
}
