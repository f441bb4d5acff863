//go:build !nodemo

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/demo"
)

func TestDemoText(t *testing.T) {
	t.Parallel()
	show := func(inPlace bool) string {
		var out bytes.Buffer
		v := newDemoText(&out, inPlace)
		l := v.listener()
		l.Step("starting PostgreSQL", 0)
		for s := range 6 {
			l.Step("starting PostgreSQL", time.Duration(s+1)*time.Second)
		}
		l.Ready(demo.Target{PostgresURL: "postgres://x", PostgresVersion: "18.4 (Debian)", Brokers: []string{"127.0.0.1:1"}, Topic: "t", Partitions: 6, AdminAddress: "127.0.0.1:2"})
		out.Reset()
		l.Progress(demo.Progress{Elapsed: 7 * time.Second, Committed: 5, RolledBack: 1, Published: 4, Lag: 3 * time.Millisecond,
			Last: &demo.Arrival{AggregateType: "order", AggregateID: "17", EventType: "Order\x1bPaid", Partition: 3, Offset: 41, Delay: 1500 * time.Microsecond}})
		fmt.Fprintln(v.log(&out), "level=WARN")
		l.Progress(demo.Progress{Elapsed: 8 * time.Second})
		v.stopping()
		return out.String()
	}
	sample := "       order 17 Order?Paid arrived 1.5 ms after its commit: partition 3, offset 41\n"
	first, second := "   7 s  committed 5  rolled back 1  published 4  lag 0.003 s", "   8 s  committed 0  rolled back 0  published 0  lag 0.000 s"
	const erase = "\r\x1b[K"
	want := sample + first + erase + "level=WARN\n" + second + erase + demoStopping + "\n"
	if diff := cmp.Diff(want, show(true)); diff != "" {
		t.Errorf("on a terminal (-want +got):\n%s", diff)
	}
	want = sample + first + "\nlevel=WARN\n" + second + "\n" + demoStopping + "\n"
	if diff := cmp.Diff(want, show(false)); diff != "" {
		t.Errorf("elsewhere (-want +got):\n%s", diff)
	}
}

func TestDumbTerminal(t *testing.T) {
	t.Parallel()
	for environ, want := range map[string]bool{"": true, "TERM=": true, "TERM=dumb": true, "TERM=xterm": false} {
		if got := dumbTerminal(strings.Fields(environ)); got != want {
			t.Errorf("environment %q: got %v", environ, got)
		}
	}
}

// What the flags allow is what the demo takes.
func TestDemo_limits(t *testing.T) {
	t.Parallel()
	if demoMaxEvents != demo.MaxEvents || demoMaxRate != demo.MaxRate {
		t.Errorf("flags allow %d events and rate %d, the demo %d and %d", demoMaxEvents, demoMaxRate, demo.MaxEvents, demo.MaxRate)
	}
}
