package testenv

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/outboxrelay/relay/internal/child"
	"github.com/outboxrelay/relay/internal/pgserver"
)

// Copy stops the server, copies its data directory, starts it again, and returns the directory for a
// pgserver.Config: with the server's history up to now, as a restored backup has it. It is removed at cleanup.
func Copy(tb testing.TB, server *pgserver.Server) (dir string) {
	tb.Helper()
	temp, err := child.NewTempDir("relay-pg-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := temp.Remove(); err != nil {
			tb.Errorf("remove copy of PostgreSQL's data directory: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	if err := server.Stop(ctx, pgserver.Fast); err != nil {
		tb.Fatal(err)
	}
	// The files belong to the server's user and must stay so.
	if out, err := exec.CommandContext(ctx, "cp", "-a", server.DataDir(), filepath.Join(temp.Path, "data")).CombinedOutput(); err != nil {
		tb.Fatalf("copy data directory: %v\n%s", err, out)
	}
	if err := server.Restart(ctx); err != nil {
		tb.Fatal(err)
	}
	return temp.Path
}

// Standby makes a standby server of the primary, which is restarted for it: a copy of its data directory that
// streams from it. To wait for and promote it is the caller's. It is closed at cleanup.
func Standby(tb testing.TB, primary *pgserver.Server, settings map[string]string) *pgserver.Server {
	tb.Helper()
	dir := Copy(tb, primary)
	data := filepath.Join(dir, "data")
	// As pg_basebackup does: slots are not copied.
	slots, err := filepath.Glob(filepath.Join(data, "pg_replslot", "*"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, slot := range slots {
		if err := os.RemoveAll(slot); err != nil {
			tb.Fatal(err)
		}
	}
	// Its content does not matter, its owner does.
	if out, err := exec.CommandContext(tb.Context(), "cp", "-a", filepath.Join(data, "PG_VERSION"), filepath.Join(data, "standby.signal")).CombinedOutput(); err != nil {
		tb.Fatalf("write standby.signal: %v\n%s", err, out)
	}
	all := map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=postgres", primary.Port(), pgserver.Superuser),
		"hot_standby":      "on",
	}
	maps.Copy(all, settings)
	return Dedicated(tb, pgserver.Config{Major: primary.Major(), DataDir: dir, Settings: all})
}
