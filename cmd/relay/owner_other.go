//go:build !unix

package main

import "io/fs"

// ownedByRoot is false where files have no numeric owner.
func ownedByRoot(fs.FileInfo) bool { return false }
