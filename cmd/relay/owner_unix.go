//go:build unix

package main

import (
	"io/fs"
	"syscall"
)

// ownedByRoot reports whether the file belongs to uid 0.
func ownedByRoot(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}
