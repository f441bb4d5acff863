//go:build nodemo

package main

import "context"

// demoAction returns nil: the tag nodemo leaves the demo, and the servers it brings, out of the binary.
func demoAction() func(context.Context, *process, *demoOptions) error { return nil }
