package deliver

import (
	"context"
	"sync"

	"github.com/outboxrelay/relay/ledger"
)

// asks reports whether uncertain deliveries are asked about.
func (c *ChannelSetting) asks() bool {
	_, ok := c.sender.(Prober)
	return ok
}

// probe asks about uncertain deliveries, some at a time.
func (p *pump) probe(ctx context.Context) {
	list, err := p.worker.ledger.ClaimUncertain(ctx, []string{p.channel.Name}, p.channel.Concurrency, 0)
	if err != nil {
		p.worker.notice(err)
		return
	}
	var asking sync.WaitGroup
	for _, r := range list {
		asking.Go(func() { p.ask(ctx, r) })
	}
	asking.Wait()
}

func (p *pump) ask(ctx context.Context, r ledger.Reservation) {
	bounded, cancel := context.WithDeadlineCause(ctx, r.Deadline, ledger.ErrLeaseOver)
	defer cancel()
	verdict, err := p.channel.sender.(Prober).Probe(bounded, r)
	outcome := ledger.Uncertain
	if err == nil && verdict != ledger.VerdictUnknown {
		outcome, err = p.worker.ledger.Resolve(context.WithoutCancel(ctx), r, verdict, p.worker.cfg.Name, "probe")
	}
	p.done(r, outcome, err)
}
