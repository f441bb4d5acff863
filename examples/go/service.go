package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxrelay/relay/ledger"
	"github.com/outboxrelay/relay/outbox"
)

// post is what a client sends and, with its id, what the event carries.
type post struct {
	ID          int64   `json:"post"`
	Title       string  `json:"title"`
	Subscribers []int64 `json:"subscribers"`
}

// publisher publishes a post: its row and its event stand together or not at all.
type publisher struct{ pool *pgxpool.Pool }

func (p publisher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var what post
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&what) != nil {
		http.Error(w, "a post has a number, a title and subscribers", http.StatusBadRequest)
		return
	}
	what.ID = id
	if err := p.publish(r.Context(), what); err != nil {
		http.Error(w, "not published", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// publish may run again with the same post, for clients repeat what was not answered. That writes a second event of the
// same key, and those who consume tell by it that it is one.
func (p publisher) publish(ctx context.Context, what post) error {
	key, err := ledger.EventKey("scheduled-post-published", strconv.FormatInt(what.ID, 10))
	if err != nil {
		return err
	}
	payload, err := outbox.Marshal(what)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		const query = `INSERT INTO posts (id, title) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET title = excluded.title`
		if _, err := tx.Exec(ctx, query, what.ID, what.Title); err != nil {
			return err
		}
		_, err := outbox.Write(ctx, tx, outbox.Event{
			EventKey: key, AggregateType: "Post", AggregateID: strconv.FormatInt(what.ID, 10), EventType: "PostPublished", Payload: payload,
		})
		return err
	})
}
