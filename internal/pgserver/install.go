package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// embeddedVersions names the fetched release of each major version.
var embeddedVersions = map[int]string{
	14: "14.18.0",
	15: "15.13.0",
	16: "16.9.0",
	17: "17.6.0",
	18: "18.4.0",
}

const newestMajor = 18

// installation is a directory with initdb and postgres.
type installation struct {
	bin   string
	major int
}

// install finds or fetches binaries of a major version; 0 is any.
func install(ctx context.Context, major int) (installation, error) {
	for _, bin := range candidates(ctx) {
		inst, err := inspect(ctx, bin)
		if err != nil {
			continue // not a server's directory, or not one of ours; the next may be
		}
		if inst.major == major || major == 0 && embeddedVersions[inst.major] != "" {
			return inst, nil
		}
	}
	if err := context.Cause(ctx); err != nil {
		return installation{}, err // the candidates may have failed for that
	}
	if major == 0 {
		major = newestMajor
	}
	bin, err := fetch(ctx, embeddedVersions[major])
	if err != nil {
		return installation{}, fmt.Errorf("fetch PostgreSQL %d: %w", major, err)
	}
	return inspect(ctx, bin)
}

// candidates lists directories that may hold a server's binaries, the likeliest first.
func candidates(ctx context.Context) []string {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		slices.Reverse(found)              // newest first
		dirs = append(dirs, found...)
	}
	return dirs
}

func inspect(ctx context.Context, bin string) (installation, error) {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return installation{}, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return installation{}, fmt.Errorf("ask %q for its version: %w", bin, err)
	}
	inst := installation{bin: bin}
	if _, err := fmt.Sscanf(string(out), "postgres (PostgreSQL) %d", &inst.major); err != nil {
		return installation{}, fmt.Errorf("read version %q of %q: %w", out, bin, err)
	}
	return inst, nil
}
