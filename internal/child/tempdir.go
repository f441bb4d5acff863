package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// TempDir is a temporary directory that belongs to this process. If the process dies without removing it, the
// next NewTempDir of the same prefix does.
type TempDir struct {
	Path string
	lock *os.File // locked as long as the owner lives
}

const lockName = "owner.lock"

// NewTempDir makes a directory <prefix><random> with mode 0700 where temporary files go.
func NewTempDir(prefix string) (_ *TempDir, err error) {
	removeAbandoned(prefix)
	d := &TempDir{}
	if d.Path, err = os.MkdirTemp("", prefix); err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	// Locked first and named then: a lock file of that name is either locked or abandoned.
	unnamed := filepath.Join(d.Path, "new.lock")
	if d.lock, err = os.OpenFile(unnamed, os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		if err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX); err == nil {
			err = os.Rename(unnamed, filepath.Join(d.Path, lockName))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock temporary directory: %w", err), d.Remove())
	}
	return d, nil
}

// Remove deletes the directory and what is in it.
func (d *TempDir) Remove() error {
	err := os.RemoveAll(d.Path)
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// removeAbandoned deletes what dead processes left. What cannot be deleted, or is somebody else's, stays.
func removeAbandoned(prefix string) {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*", lockName)) // at worst there is more litter
	for _, path := range locks {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(filepath.Dir(path))
		}
		f.Close()
	}
}
