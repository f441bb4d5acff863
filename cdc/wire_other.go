//go:build !linux

package cdc

import "errors"

// setLowat is for Linux alone; elsewhere each send of the server wakes the reader.
func setLowat(uintptr, int) error { return errors.ErrUnsupported }
