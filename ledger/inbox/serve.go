package inbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// cookieName is the cookie that may hold a token.
const cookieName = "relay_inbox"

// refusal is an answer other than the one that was asked for.
type refusal struct {
	status  int
	code    string
	message string
}

func (r *refusal) Error() string { return r.code + ": " + r.message }

// class is what the refusal is counted by.
func (r *refusal) class() string {
	switch {
	case strings.HasPrefix(r.code, "token_"):
		return "token"
	case r == errOrigin:
		return "origin"
	case r == errFull || r == errTooMany:
		return "limit"
	case r == errTenant:
		return "tenant"
	case r == errDatabase || r == errKeys:
		return "database"
	}
	return "request"
}

var (
	errOrigin   = &refusal{403, "origin_not_allowed", "pages of this origin may not ask; deliver.http.origins lists those that may"}
	errTenant   = &refusal{403, "tenant_not_served", "this server does not serve the token's tenant"}
	errFull     = &refusal{503, "too_many_streams", "this server has as many streams as it takes; try again later"}
	errTooMany  = &refusal{429, "too_many_streams_of_recipient", "this recipient has as many streams open as one may have; close one"}
	errDatabase = &refusal{503, "unavailable", "the database does not answer; try again in a moment"}
	errKeys     = &refusal{503, "unavailable", "the keys cannot be read; the server's log says why"}
	errPath     = &refusal{404, "not_found", "there are GET /events, GET /notifications and POST /notifications/read"}
	errMethod   = &refusal{405, "method_not_allowed", "there are GET /events, GET /notifications and POST /notifications/read"}
	errBody     = &refusal{400, "body_invalid", `the body is JSON, Content-Type application/json: {"ids": [1, 2]}, 1000 ids at most`}
	errAfter    = &refusal{400, "after_invalid", "after is the id of the last notification that you have, or left out for the newest"}
	errLimit    = &refusal{400, "limit_invalid", "limit is 1 to 500"}
)

// methodOf is the method of a path; "" where there is nothing.
func methodOf(path string) string {
	switch path {
	case "/events", "/notifications":
		return http.MethodGet
	case "/notifications/read":
		return http.MethodPost
	}
	return ""
}

// ServeHTTP implements http.Handler.
func (b *Inbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	err := b.serve(w, r)
	if err == nil {
		return
	}
	no, ok := errors.AsType[*refusal](err)
	if !ok {
		no = errDatabase
	}
	b.count.refused(no.class())
	if no.status == 429 || no.status == 503 {
		h.Set("Retry-After", "5")
	}
	if no.status == 401 {
		h.Set("WWW-Authenticate", "Bearer")
	}
	answer(w, no.status, map[string]string{"error": no.code, "message": no.message})
}

func (b *Inbox) serve(w http.ResponseWriter, r *http.Request) error {
	if err := b.allowOrigin(w, r); err != nil {
		return err
	}
	method := methodOf(r.URL.Path)
	switch {
	case method == "":
		return errPath
	case r.Method == http.MethodOptions:
		h := w.Header()
		h.Set("Access-Control-Allow-Methods", method)
		h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID")
		h.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
		return nil
	case r.Method != method:
		w.Header().Set("Allow", method)
		return errMethod
	}
	keys, err := b.cfg.Keys()
	if err != nil {
		b.notice(fmt.Errorf("read keys: %w", err))
		return errKeys
	}
	who, err := verify(keys, token(r), time.Now())
	if err != nil {
		return err
	}
	switch r.URL.Path {
	case "/events":
		return b.events(w, r, who)
	case "/notifications":
		return b.notifications(w, r, who)
	}
	return b.markRead(w, r, who)
}

// allowOrigin lets a page of another site ask if that site is listed. A browser sends Origin whenever the page might be
// another site's, so a cookie alone lets no foreign page in.
func (b *Inbox) allowOrigin(w http.ResponseWriter, r *http.Request) error {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil
	}
	h := w.Header()
	h.Set("Vary", "Origin")
	if slices.Contains(b.cfg.Origins, origin) {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		return nil
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return nil
	}
	return errOrigin
}

// token is the request's: from the header, the query, or the cookie.
func token(r *http.Request) string {
	if t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return strings.TrimSpace(t)
	}
	if t := r.URL.Query().Get("token"); t != "" {
		return t
	}
	if c, err := r.Cookie(cookieName); err == nil {
		return c.Value
	}
	return ""
}

// notifications is GET /notifications.
func (b *Inbox) notifications(w http.ResponseWriter, r *http.Request, who Identity) error {
	q := r.URL.Query()
	var after *int64
	if text := q.Get("after"); text != "" {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 0 {
			return errAfter
		}
		after = &id
	}
	limit := page
	if text := q.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 500 {
			return errLimit
		}
		limit = n
	}
	list, err := b.list(r.Context(), address{who.Tenant, who.Recipient}, after, limit, nil)
	if err != nil {
		return b.unavailable(err)
	}
	if list == nil {
		list = []Notification{}
	}
	b.count.listed()
	answer(w, http.StatusOK, struct {
		Notifications []Notification `json:"notifications"`
		More          bool           `json:"more"` // ask again, after the last one
	}{list, after != nil && len(list) == limit})
	return nil
}

// markRead is POST /notifications/read.
func (b *Inbox) markRead(w http.ResponseWriter, r *http.Request, who Identity) error {
	// A form of a foreign page cannot have this type without asking first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return errBody
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	dec.DisallowUnknownFields()
	var in struct {
		IDs []int64 `json:"ids"`
	}
	if dec.Decode(&in) != nil || len(in.IDs) > 1000 {
		return errBody
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errBody
	}
	n := 0
	if len(in.IDs) > 0 {
		var err error
		if n, err = b.read(r.Context(), address{who.Tenant, who.Recipient}, in.IDs); err != nil {
			return b.unavailable(err)
		}
	}
	answer(w, http.StatusOK, map[string]int{"read": n})
	return nil
}

// unavailable makes an answer of a database's error: that a tenant is not served, which a function raises and a missing
// right does not, or that it does not answer.
func (b *Inbox) unavailable(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" && pg.Routine == "exec_stmt_raise" {
		return errTenant
	}
	b.notice(fmt.Errorf("ask for notifications: %w", err))
	return errDatabase
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "encode answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone is no concern of ours
}
