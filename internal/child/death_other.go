//go:build !linux

package child

import "syscall"

// Only Linux tells a child of its parent's death.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}
