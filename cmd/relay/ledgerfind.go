package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// notFound says that the ledger has no such delivery, and what it has that is near.
func notFound(ctx context.Context, tx pgx.Tx, pick *deliveryFlags, key string, known *rememberedEvent) error {
	var there, elsewhere bool
	var tenant string
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM ledger.notification_dispatches WHERE tenant = $1::text AND event_key = $2::text)`,
		pick.tenant, key).Scan(&there)
	if err != nil {
		return err
	}
	if there {
		return &hintError{err: errors.New("the event has no such delivery"), hint: "leave out --recipient and --channel to see those it has"}
	}
	missing := fmt.Errorf("the ledger has no delivery of event %s%s", quoted(key), ofTenant(pick.tenant))
	if tenant, elsewhere, err = findTenant(ctx, tx, pick.tenant, key); err != nil {
		return err
	}
	if elsewhere {
		return &hintError{err: missing, hint: fmt.Sprintf("tenant %q has one: say --tenant %s", tenant, shellWord(tenant))}
	}
	if known != nil {
		return &hintError{err: fmt.Errorf("%w: it is remembered, and nothing was to be delivered, or all of it is forgotten", missing), hint: "relay ledger channels shows retention and horizon"}
	}
	near, err := neighbours(ctx, tx, pick.tenant, key)
	if err != nil {
		return err
	}
	return &hintError{err: missing, hint: suggest(key, near, "relay ledger list shows what there is")}
}

func ofTenant(tenant string) string {
	if tenant == "" {
		return ""
	}
	return fmt.Sprintf(" of tenant %q", tenant)
}

// findTenant looks for the event with the first hundred other tenants. Each step reads one entry of the index.
func findTenant(ctx context.Context, tx pgx.Tx, not, key string) (tenant string, ok bool, err error) {
	const query = `WITH RECURSIVE t (tenant, n) AS (
    SELECT min(tenant), 1 FROM ledger.notification_dispatches
    UNION ALL
    SELECT (SELECT min(d.tenant) FROM ledger.notification_dispatches d WHERE d.tenant > t.tenant), n + 1 FROM t WHERE t.tenant IS NOT NULL AND n < 100
)
SELECT t.tenant FROM t WHERE t.tenant <> $1::text
AND EXISTS (SELECT FROM ledger.notification_dispatches d WHERE d.tenant = t.tenant AND d.event_key = $2::text) LIMIT 1`
	err = tx.QueryRow(ctx, query, not, key).Scan(&tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	return tenant, err == nil, err
}

// neighbours returns event keys that sort next to one, ten on either side, by steps through the index: one event may
// have a row for each of a million recipients.
func neighbours(ctx context.Context, tx pgx.Tx, tenant, key string) ([]string, error) {
	const query = `WITH RECURSIVE down (k, n) AS (
    SELECT $2::text COLLATE "C", 0
    UNION ALL
    SELECT (SELECT max(d.event_key) FROM ledger.notification_dispatches d WHERE d.tenant = $1::text AND d.event_key < down.k), n + 1 FROM down WHERE k IS NOT NULL AND n < 10
), up (k, n) AS (
    SELECT $2::text COLLATE "C", 0
    UNION ALL
    SELECT (SELECT min(d.event_key) FROM ledger.notification_dispatches d WHERE d.tenant = $1::text AND d.event_key > up.k), n + 1 FROM up WHERE k IS NOT NULL AND n < 10
)
SELECT k FROM down WHERE n > 0 AND k IS NOT NULL UNION ALL SELECT k FROM up WHERE n > 0 AND k IS NOT NULL`
	rows, err := tx.Query(ctx, query, tenant, key)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// resolveLine is the command line with which a person decides about a delivery.
func resolveLine(tenant, key string, d *ledgerDelivery) string {
	verb, rest := "redrive", ""
	if d.State == "uncertain" {
		verb, rest = "resolve", " --verdict delivered|failed|dead"
	}
	line := fmt.Sprintf("relay ledger %s %s --recipient %s --channel %s%s --reason ...", verb, shellWord(key), shellWord(d.Recipient), shellWord(d.Channel), rest)
	if tenant != "" {
		line += " --tenant " + shellWord(tenant)
	}
	return line
}

// shellWord quotes a word for a shell where it needs that.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:/@%+=,", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
