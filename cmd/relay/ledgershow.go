package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// ledgerEvent is what is known of a business event and its deliveries. Its fields, and those of what it holds, are API.
type ledgerEvent struct {
	Tenant     string            `json:"tenant"`
	EventKey   string            `json:"event_key"`
	Event      *rememberedEvent  `json:"event"` // null: nobody remembered it
	Deliveries []*ledgerDelivery `json:"deliveries"`
	More       bool              `json:"more"` // there are deliveries that are not shown
}

// rememberedEvent is what the ledger keeps of an event for later attempts.
type rememberedEvent struct {
	Type         string    `json:"event_type"`
	OccurredAt   time.Time `json:"occurred_at"`
	RememberedAt time.Time `json:"remembered_at"`
	Source       *string   `json:"source"`         // topic, partition and offset, as the consumer wrote them
	Position     *string   `json:"relay_position"` // null also where the role may not read headers
}

// ledgerDelivery is one row of the ledger with its history.
type ledgerDelivery struct {
	ID          int64           `json:"id"`
	Recipient   string          `json:"recipient"`
	Channel     string          `json:"channel"`
	State       string          `json:"state"`
	Generation  int             `json:"generation"`
	Fence       int64           `json:"fence"`
	Attempts    int             `json:"attempts"`
	MaxAttempts int             `json:"max_attempts"`
	Worker      *string         `json:"worker"`
	Reason      *string         `json:"reason"`
	ProviderRef *string         `json:"provider_ref"`
	ProviderKey string          `json:"provider_key"` // what a provider was given to tell repetitions by
	CreatedAt   time.Time       `json:"created_at"`
	DueAt       *time.Time      `json:"due_at"`
	HeldSince   *time.Time      `json:"held_since"`
	LeaseUntil  *time.Time      `json:"lease_until"`
	EffectAt    *time.Time      `json:"effect_at"`
	FirstEffect *time.Time      `json:"first_effect_at"`
	ProbeUntil  *time.Time      `json:"probe_until"`
	Blocked     *time.Time      `json:"blocked_since"`
	DoneAt      *time.Time      `json:"done_at"`
	Next        ledgerNext      `json:"next"`
	History     []ledgerAttempt `json:"attempt_history"`
	Decisions   []ledgerAudit   `json:"decisions"`

	settings    channelInForce
	predecessor string // state of the delivery that has to come before, absent, or empty: there is none
}

// ledgerAttempt is a reservation or a probe that has ended.
type ledgerAttempt struct {
	Fence       int64      `json:"fence"`
	Generation  int        `json:"generation"`
	Attempt     int        `json:"attempt"`
	Worker      *string    `json:"worker"`
	StartedAt   *time.Time `json:"started_at"`
	EffectAt    *time.Time `json:"effect_at"`
	EndedAt     time.Time  `json:"ended_at"`
	LateSuccess *time.Time `json:"late_success_at"`
	Outcome     string     `json:"outcome"`
	Reason      *string    `json:"reason"`
	ProviderRef *string    `json:"provider_ref"`
}

// ledgerAudit is what somebody decided from outside.
type ledgerAudit struct {
	At     time.Time `json:"at"`
	Action string    `json:"action"`
	From   string    `json:"from_state"`
	To     string    `json:"to_state"`
	Fence  int64     `json:"fence"`
	Actor  string    `json:"actor"`
	Role   string    `json:"role"`
	Reason string    `json:"reason"`
}

// channelInForce holds those settings of a delivery's channel that its future hangs on.
type channelInForce struct {
	onUncertain    string
	providerWindow time.Duration
	after          *string
	retention      time.Duration // 0: for ever
	horizon        time.Duration // 0: none
}

func (p *process) ledgerShowCommand() *cobra.Command {
	var pick deliveryFlags
	var limit int
	var asJSON bool
	cmd := p.ledgerSubcommand(ledgerAction{
		use: "show KEY", short: "Explain the deliveries of one business event", args: oneKey, need: needReader,
		long: `Explain the deliveries of one business event: in which state each is and why, what was attempted by whom and
how it ended, what people decided, and what happens next.`,
		check: func([]string) error { return checkLimit(limit) },
		do: func(ctx context.Context, conn *pgx.Conn, args []string) error {
			e, now, err := showEvent(ctx, conn, args[0], &pick, limit)
			switch {
			case err != nil:
				return err
			case asJSON:
				return printJSON(p.stdout, e)
			}
			return e.print(p.stdout, now)
		},
	})
	pick.add(cmd)
	cmd.Flags().IntVar(&limit, "limit", 20, "most deliveries to show")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// showEvent reads the event and up to limit of its deliveries. now is the database's clock.
func showEvent(ctx context.Context, conn *pgx.Conn, key string, pick *deliveryFlags, limit int) (e *ledgerEvent, now time.Time, err error) {
	e = &ledgerEvent{Tenant: pick.tenant, EventKey: key, Deliveries: []*ledgerDelivery{}}
	err = readLedger(ctx, conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		if e.Deliveries, err = readDeliveries(ctx, tx, pick, key, limit+1); err != nil {
			return err
		}
		if e.Event, err = readRemembered(ctx, tx, pick.tenant, key); err != nil {
			return err
		}
		if len(e.Deliveries) == 0 {
			return notFound(ctx, tx, pick, key, e.Event)
		}
		if e.More = len(e.Deliveries) > limit; e.More {
			e.Deliveries = e.Deliveries[:limit]
		}
		return readHistory(ctx, tx, e.Deliveries)
	})
	if err != nil {
		return nil, now, err
	}
	for _, d := range e.Deliveries {
		d.ProviderKey = providerKey(e.Tenant, e.EventKey, d.Recipient, d.Channel, d.Generation)
		d.Next = d.next(now, resolveLine(e.Tenant, e.EventKey, d))
	}
	return e, now, nil
}

func readDeliveries(ctx context.Context, tx pgx.Tx, pick *deliveryFlags, key string, limit int) ([]*ledgerDelivery, error) {
	const query = `SELECT d.id, d.recipient, d.channel, d.state, d.generation, d.fence, d.attempts, d.max_attempts, d.worker, d.reason,
    d.provider_ref, d.created_at, d.due_at, d.lease_until, d.effect_at, d.first_effect_at, d.probe_until, d.blocked_since, d.done_at,
    d.held_since, coalesce(c.on_uncertain, s.on_uncertain), extract(epoch FROM coalesce(c.provider_window, s.provider_window))::float8,
    c.after_channel, extract(epoch FROM coalesce(c.retention, s.retention))::float8, extract(epoch FROM coalesce(c.horizon, s.horizon))::float8,
    CASE WHEN c.after_channel IS NOT NULL THEN coalesce((SELECT a.state FROM ledger.notification_dispatches a
        WHERE a.tenant = d.tenant AND a.event_key = d.event_key AND a.recipient = d.recipient AND a.channel = c.after_channel), 'absent') ELSE '' END
FROM ledger.notification_dispatches d
JOIN ledger.channels s ON s.channel = '*' LEFT JOIN ledger.channels c ON c.channel = d.channel
WHERE d.tenant = $1::text AND d.event_key = $2::text AND ($3::text IS NULL OR d.recipient = $3::text) AND ($4::text IS NULL OR d.channel = $4::text)
ORDER BY d.recipient, d.channel LIMIT $5::int`
	rows, err := tx.Query(ctx, query, pick.tenant, key, given(pick.set, "recipient"), given(pick.set, "channel"), limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*ledgerDelivery, error) {
		d := &ledgerDelivery{History: []ledgerAttempt{}, Decisions: []ledgerAudit{}}
		s := &d.settings
		var window, retention, horizon float64
		err := row.Scan(&d.ID, &d.Recipient, &d.Channel, &d.State, &d.Generation, &d.Fence, &d.Attempts, &d.MaxAttempts, &d.Worker, &d.Reason,
			&d.ProviderRef, &d.CreatedAt, &d.DueAt, &d.LeaseUntil, &d.EffectAt, &d.FirstEffect, &d.ProbeUntil, &d.Blocked, &d.DoneAt,
			&d.HeldSince, &s.onUncertain, &window, &s.after, &retention, &horizon, &d.predecessor)
		s.providerWindow, s.retention, s.horizon = ofSeconds(window), ofSeconds(retention), ofSeconds(horizon)
		return d, err
	})
}

// readRemembered reads what the ledger kept of the event. The position is in the headers, which the reader role may
// not read by default: it is left out then.
func readRemembered(ctx context.Context, tx pgx.Tx, tenant, key string) (*rememberedEvent, error) {
	var mayRead bool
	if err := tx.QueryRow(ctx, `SELECT has_column_privilege('ledger.events', 'headers', 'SELECT')`).Scan(&mayRead); err != nil {
		return nil, err
	}
	position := "NULL::text"
	if mayRead {
		position = "headers ->> 'relay_position'"
	}
	rows, err := tx.Query(ctx, `SELECT event_type, occurred_at, remembered_at, source, `+position+`
FROM ledger.events WHERE tenant = $1::text AND event_key = $2::text`, tenant, key)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e *rememberedEvent, err error) {
		e = &rememberedEvent{}
		return e, row.Scan(&e.Type, &e.OccurredAt, &e.RememberedAt, &e.Source, &e.Position)
	})
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0], nil
}

// readHistory adds attempts and decisions.
func readHistory(ctx context.Context, tx pgx.Tx, deliveries []*ledgerDelivery) error {
	ids := make([]int64, len(deliveries))
	byID := map[int64]*ledgerDelivery{}
	for i, d := range deliveries {
		ids[i], byID[d.ID] = d.ID, d
	}
	rows, err := tx.Query(ctx, `SELECT dispatch_id, fence, generation, attempt, worker, started_at, effect_at, ended_at, late_success_at, outcome,
    reason, provider_ref FROM ledger.dispatch_attempts WHERE dispatch_id = ANY ($1::bigint[]) ORDER BY dispatch_id, fence`, ids)
	if err != nil {
		return err
	}
	var id int64
	var a ledgerAttempt
	if _, err := pgx.ForEachRow(rows, []any{&id, &a.Fence, &a.Generation, &a.Attempt, &a.Worker, &a.StartedAt, &a.EffectAt, &a.EndedAt, &a.LateSuccess,
		&a.Outcome, &a.Reason, &a.ProviderRef}, func() error {
		byID[id].History = append(byID[id].History, a)
		return nil
	}); err != nil {
		return err
	}
	rows, err = tx.Query(ctx, `SELECT dispatch_id, at, action, from_state, to_state, fence, actor, role, reason
FROM ledger.audit WHERE dispatch_id = ANY ($1::bigint[]) ORDER BY id`, ids)
	if err != nil {
		return err
	}
	var u ledgerAudit
	_, err = pgx.ForEachRow(rows, []any{&id, &u.At, &u.Action, &u.From, &u.To, &u.Fence, &u.Actor, &u.Role, &u.Reason}, func() error {
		byID[id].Decisions = append(byID[id].Decisions, u)
		return nil
	})
	return err
}

// providerKey is the key of docs/keys.md that a provider was given with each attempt: what to ask it for.
func providerKey(tenant, eventKey, recipient, channel string, generation int) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{tenant, eventKey, recipient, channel, strconv.Itoa(generation)}, "\x00")))
	return hex.EncodeToString(sum[:])
}

func ofSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func checkLimit(n int) error {
	if n < 1 || n > 10000 {
		return &usageError{problem: fmt.Sprintf("--limit %d is out of range", n), hint: "use 1 to 10000"}
	}
	return nil
}
