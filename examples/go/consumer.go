package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
)

// record is a line that relay run --sink-type stdout prints.
type record struct {
	Headers map[string]string `json:"headers"`
	Value   post              `json:"value"`
}

// consume notifies the subscribers of each post that was published, and prints each delivery with its outcome.
func consume(ctx context.Context, pool *pgxpool.Pool, in io.Reader, out io.Writer) error {
	l, err := ledger.New(ledger.Pgx(pool), ledger.DefaultConfig())
	if err != nil {
		return err
	}
	for lines := json.NewDecoder(in); ; {
		var r record
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read record: %w", err)
		}
		if r.Headers["event_type"] != "PostPublished" {
			continue
		}
		at, err := time.Parse(time.RFC3339, r.Headers["occurred_at"])
		if err != nil {
			return fmt.Errorf("read record: %w", err)
		}
		if err := postPublished(ctx, pool, l, r.Value, at, out); err != nil {
			return err // not acknowledged: it comes again
		}
	}
}

// postPublished is the service; listener, backfill and command line all call it.
func postPublished(ctx context.Context, pool *pgxpool.Pool, l *ledger.Ledger, what post, at time.Time, out io.Writer) error {
	eventKey, err := ledger.EventKey("scheduled-post-published", strconv.FormatInt(what.ID, 10))
	if err != nil {
		return err
	}
	for _, user := range what.Subscribers {
		to, err := ledger.Recipient("user", strconv.FormatInt(user, 10))
		if err != nil {
			return err
		}
		key := ledger.Key{EventKey: eventKey, Recipient: to, Channel: "database", OccurredAt: at}
		outcome, err := notify(ctx, pool, l, key, what)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, eventKey, to, key.Channel, outcome)

		key.Channel = "email"
		outcome, err = l.Deliver(ctx, key, mail(user, what))
		if outcome.Acknowledge() == ledger.TryAgain {
			return fmt.Errorf("deliver %s to %s: %q: %w", eventKey, to, outcome, err)
		}
		fmt.Fprintln(out, eventKey, to, key.Channel, outcome)
	}
	return nil
}

// notify writes the database notification, once, in one transaction with its row in the ledger.
func notify(ctx context.Context, pool *pgxpool.Pool, l *ledger.Ledger, key ledger.Key, what post) (outcome ledger.Outcome, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		outcome, err = l.Once(ctx, ledger.Pgx(tx), key, func(db ledger.DBTX) error {
			_, err := db.Exec(ctx, `INSERT INTO ledger.notifications (event_key, recipient, type, data) VALUES ($1, $2, 'post', jsonb_build_object('post', $3::bigint))`,
				key.EventKey, key.Recipient, what.ID)
			return err
		})
		return err
	})
	return outcome, err
}

// mail sends to those who are subscribed now.
func mail(user int64, what post) ledger.Handler {
	var address string
	return ledger.Handler{
		Eligible: func(ctx context.Context, _ ledger.Key, db ledger.DBTX) (ok bool, reason string, err error) {
			err = db.QueryRow(ctx, `SELECT email, subscribed FROM subscribers WHERE id = $1`, user).Scan(&address, &ok)
			return ok, "not subscribed", err
		},
		Effect: func(ctx context.Context, r ledger.Reservation) (ref string, err error) {
			body, err := json.Marshal(map[string]string{"to": address, "subject": what.Title})
			if err != nil {
				return "", ledger.Permanent(err)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("MAIL_URL"), bytes.NewReader(body))
			if err != nil {
				return "", err
			}
			req.Header.Set("Idempotency-Key", r.ProviderKey) // and no client repeats it without being told to
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				return "", ledger.Ambiguous(err)
			}
			defer resp.Body.Close()
			var sent struct{ ID string }
			switch err := fmt.Errorf("mail API answered %d", resp.StatusCode); {
			case resp.StatusCode == http.StatusTooManyRequests:
				return "", err // it was not taken: try again later
			case resp.StatusCode >= 500:
				return "", ledger.Ambiguous(err)
			case resp.StatusCode >= 300:
				return "", ledger.Permanent(err)
			case json.NewDecoder(resp.Body).Decode(&sent) != nil:
				return "", ledger.Ambiguous(errors.New("mail API's answer is cut off"))
			}
			return sent.ID, nil
		},
	}
}
