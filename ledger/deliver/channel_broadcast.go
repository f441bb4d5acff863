package deliver

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.yaml.in/yaml/v3"
)

// broadcastKind is the quick signal that a notification is there: those who serve recipients hear it and look into the
// list, see package inbox. It carries an id and no more, so repeating it adds nothing and losing it costs a moment. It
// comes after the row that it is about, so it may only follow a channel of kind database.
func broadcastKind() Kind {
	return Kind{
		Name:     "broadcast",
		After:    "database",
		Harmless: true,
		New:      func(Settings) (Channel, error) { return &broadcast{}, nil },
	}
}

type broadcast struct {
	pool *pgxpool.Pool // the ledger's, once a worker has the channel
}

// usePool implements poolUser.
func (b *broadcast) usePool(p *pgxpool.Pool) { b.pool = p }

// Send implements Channel. It is a transaction of its own, after the notification's: PostgreSQL lets transactions that
// notify commit one after the other only, and the one with the application's locks must not stand in that queue. A
// notification that its owner has deleted since has nothing to signal.
func (b *broadcast) Send(ctx context.Context, d Delivery) (string, error) {
	var id *int64
	err := b.pool.QueryRow(ctx, "SELECT ledger.announce_notification($1::text, $2::text, $3::text)", describe,
		d.Key.Tenant, d.Key.EventKey, d.Key.Recipient).Scan(&id)
	switch {
	case err != nil:
		return "", fmt.Errorf("announce notification: %w", err)
	case id == nil:
		return "", nil
	}
	return strconv.FormatInt(*id, 10), nil
}

// poolUser is a channel that works on the ledger's database. New gives it the pool.
type poolUser interface{ usePool(*pgxpool.Pool) }

// lendPool gives the ledger's pool to the channels that want it.
func lendPool(rules *Rules, pool *pgxpool.Pool) {
	for _, c := range rules.Channels {
		if u, ok := c.sender.(poolUser); ok {
			u.usePool(pool)
		}
	}
}

// checkAfter refuses a channel that does not follow one of the kind that it has to.
func (p *parser) checkAfter(n node) {
	for _, c := range p.rules.Channels {
		for _, k := range p.kinds {
			if k.Name != c.Kind || k.After == "" {
				continue
			}
			before := p.rules.setting(c.After)
			if c.After == "" || before != nil && before.Kind != k.After {
				p.bad(below(n, c.Name), fmt.Sprintf("a channel of kind %s comes after one of kind %s", k.Name, k.After),
					fmt.Sprintf("set after to a channel of kind %s: it signals the row that this one writes", k.After))
			}
		}
	}
}

// below is the value of a key of a mapping.
func below(n node, name string) node {
	if n.Kind == yaml.AliasNode {
		n.Node = n.Alias
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return node{n.Content[i+1], n.path + "." + name}
		}
	}
	return n
}
