package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// childMain is what the test binary does when a test has started it again as a process to send signals to.
func childMain() (code int, ok bool) {
	switch os.Getenv("RELAY_TEST_CHILD") {
	case "stops":
	case "relay":
		return run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()), true
	default:
		return 0, false
	}
	drain, err := time.ParseDuration(os.Getenv("RELAY_TEST_DRAIN"))
	if err != nil {
		return 2, true
	}
	go func() { // the parent holds the other end: the child must not outlive it
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(4)
	}()
	soft, hard, release := notifyStops(context.Background(), drain)
	defer release()
	fmt.Println("ready")
	<-soft.Done()
	fmt.Println("soft:", context.Cause(soft))
	if os.Getenv("RELAY_TEST_FINISH") != "" {
		return 0, true
	}
	<-hard.Done()
	fmt.Println("hard:", context.Cause(hard))
	if os.Getenv("RELAY_TEST_LINGER") != "" {
		release() // waits until the third signal is nobody's
		fmt.Println("lingering")
		select {} // until killed
	}
	return 3, true
}
