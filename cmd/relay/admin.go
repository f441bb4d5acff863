package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/internal/state"
)

// Limits of the admin listener. Writing may take long because a CPU profile does.
const (
	adminHeaderTimeout = 5 * time.Second
	adminReadTimeout   = 10 * time.Second
	adminWriteTimeout  = 90 * time.Second
	adminIdleTimeout   = 60 * time.Second
	adminMaxHeader     = 16 << 10
	adminCloseTimeout  = 2 * time.Second
)

// admin is what the admin listener shows.
type admin struct {
	current func() state.Status // the board's
	report  func() Report
	metrics http.Handler
	hosts   []string // names a Host header may hold besides localhost and addresses
	pprof   bool
}

// handler routes the listener's pages. Everything is read only: state changes would need more than a GET from
// somebody who can reach the port.
func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", a.healthz)
	mux.HandleFunc("/readyz", a.readyz)
	mux.HandleFunc("/status.json", a.status)
	mux.Handle("/metrics", a.metrics)
	if a.pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return a.guard(mux)
}

// guard refuses what no honest client sends.
func (a *admin) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		switch {
		case !a.hostAllowed(r.Host):
			http.Error(w, "host not allowed; add it to admin.hosts", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		case r.ContentLength != 0:
			h.Set("Connection", "close")
			http.Error(w, "no request body expected", http.StatusRequestEntityTooLarge)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// hostAllowed stops DNS rebinding: a page in somebody's browser whose name has come to resolve to this machine
// is told apart by the name, which its browser puts into Host. An address cannot be rebound.
func (a *admin) hostAllowed(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return isIP(host) || strings.EqualFold(host, "localhost") ||
		slices.ContainsFunc(a.hosts, func(name string) bool { return strings.EqualFold(name, host) })
}

// healthz says that the process lives and answers. It is for a supervisor that would restart it otherwise, so
// it does not depend on PostgreSQL or Kafka, which a restart does not mend.
func (a *admin) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, "ok")
}

// readyz answers 200 when the relay does its work or waits as a standby, and 503 otherwise; the body has the
// state either way.
func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	s := a.current()
	code := http.StatusOK
	if !s.State.Ready() {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, s)
}

func (a *admin) status(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.report())
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "encode answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that has gone is no concern of ours.
	_, _ = w.Write(append(body, '\n'))
}

// listenAdmin binds the admin address, so that a port in use is told before anything else starts.
func listenAdmin(ctx context.Context, addr string) (net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, &hintError{
			err:  fmt.Errorf("listen for admin: %w", err),
			hint: "another relay may run here: choose another admin.listen, or set it to \"\" for none",
		}
	}
	return ln, nil
}

// serveAdmin serves until ctx ends, then lets running requests finish for a moment. It closes the listener and
// returns nil after a clean end.
func serveAdmin(ctx context.Context, ln net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: adminHeaderTimeout,
		ReadTimeout:       adminReadTimeout,
		WriteTimeout:      adminWriteTimeout,
		IdleTimeout:       adminIdleTimeout,
		MaxHeaderBytes:    adminMaxHeader,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve admin: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminCloseTimeout)
	defer cancel()
	err := srv.Shutdown(closing)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	<-served
	if err != nil {
		return fmt.Errorf("close admin: %w", err)
	}
	return nil
}
