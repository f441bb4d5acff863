package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetch returns the directory with the binaries of a release, after downloading and extracting them into the
// cache if they are not there. Processes that do so at once wait for each other.
func fetch(ctx context.Context, version string) (bin string, err error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	home := filepath.Join(cache, "postgres-"+version)
	bin = filepath.Join(home, "bin")
	if exists(bin) {
		return bin, nil
	}

	unlock, err := lock(home + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(bin) {
		return bin, nil
	}
	if err := context.Cause(ctx); err != nil {
		return "", err // the library below knows no context
	}

	work, err := os.MkdirTemp(cache, ".postgres-")
	if err != nil {
		return "", fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(work)

	// The library downloads and extracts only on its way to starting a server, which it cannot do as root and
	// which is not wanted here. A data directory that cannot be made stops it right after the extraction; that
	// it came so far shows in its runtime directory, which it makes in between.
	extracted, runtime := filepath.Join(work, "postgres"), filepath.Join(work, "runtime")
	err = embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(embeddedpostgres.PostgresVersion(version)).
		Port(0).
		CachePath(filepath.Join(work, "archive")).
		BinariesPath(extracted).
		RuntimePath(runtime).
		DataPath(filepath.Join(os.DevNull, "none")).
		Logger(io.Discard)).Start()
	if !exists(runtime) || !exists(filepath.Join(extracted, "bin", "postgres")) {
		return "", errors.Join(errors.New("binaries were not extracted"), err)
	}
	if err := os.Rename(extracted, home); err != nil {
		return "", fmt.Errorf("move binaries into the cache: %w", err)
	}
	return bin, nil
}

// cacheDir returns the directory that holds fetched binaries. Root's is one that other users can read, as the
// server runs as one of them.
func cacheDir() (string, error) {
	base := "/var/cache"
	if os.Geteuid() != 0 {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return "", fmt.Errorf("find the cache directory: %w", err)
		}
	}
	dir := filepath.Join(base, "outboxrelay")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w", err)
	}
	return dir, nil
}

// lock takes an exclusive lock on a file, waiting for other processes. The kernel frees it if we die.
func lock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %q: %w", path, err)
	}
	return f.Close, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
