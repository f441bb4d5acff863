package main

import (
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/cobra"
)

// Limits of the demo's flags. What arrives is kept in memory.
const (
	demoMaxEvents  = 1_000_000
	demoMaxRate    = 100_000
	demoOnceEvents = 2000
	demoLiveRate   = 30
)

// demoOptions are the flags of relay demo, checked.
type demoOptions struct {
	events int
	rate   float64 // events a second; 0: as many as can be
	once   bool
	json   bool
	major  int // of PostgreSQL; 0: any
}

func (p *process) demoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a relay at work, with nothing installed",
		Long: `Show a relay at work, with nothing installed. The demo starts PostgreSQL (an installation that is here,
else binaries that are downloaded once), a Kafka-compatible broker in this process, and the relay between
them. Writers change orders, commit some transactions and roll others back; a consumer checks that exactly
the committed events arrive, once and in order.

It reads no configuration, touches no server of yours and removes what it made when it ends. Ctrl-C ends it:
the first time what was committed is still awaited and checked, the second time it ends at once.

The exit code is 1 if an event was lost, published twice, out of order, or published though rolled back.`,
		Args: noArguments,
	}
	events := cmd.Flags().String("events", "", fmt.Sprintf("end after this many committed events, at most %d (default: go on until Ctrl-C; with --once %d)", demoMaxEvents, demoOnceEvents))
	rate := cmd.Flags().String("rate", "", fmt.Sprintf("committed events a second, 0 for as many as can be (default %d; with --once 0)", demoLiveRate))
	once := cmd.Flags().Bool("once", false, "write as fast as possible, check, print the summary and end; being stopped before is a failure")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object a line, the summary last")
	major := cmd.Flags().String("postgres-major", "", "major version of PostgreSQL")
	cmd.Flags().Lookup("postgres-major").Hidden = true
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o := &demoOptions{events: demoMaxEvents, rate: demoLiveRate, once: *once, json: *asJSON}
		if o.once {
			o.events, o.rate = demoOnceEvents, 0
		}
		if cmd.Flags().Changed("events") {
			n, err := strconv.Atoi(*events)
			if err != nil || n < 1 || n > demoMaxEvents {
				return demoMistake("events", *events, fmt.Sprintf("use 1 to %d", demoMaxEvents))
			}
			o.events = n
		}
		if cmd.Flags().Changed("rate") {
			f, err := strconv.ParseFloat(*rate, 64)
			if err != nil || math.IsNaN(f) || f < 0 || f > demoMaxRate {
				return demoMistake("rate", *rate, fmt.Sprintf("use 0 to %d", demoMaxRate))
			}
			o.rate = f
		}
		if cmd.Flags().Changed("postgres-major") {
			n, err := strconv.Atoi(*major)
			if err != nil || n < 14 || n > 18 {
				return demoMistake("postgres-major", *major, "use 14 to 18")
			}
			o.major = n
		}
		return p.actions.demo(cmd.Context(), p, o)
	}
	return cmd
}

func demoMistake(flag, text, hint string) error {
	return &usageError{problem: fmt.Sprintf("flag --%s: %s is out of range or not a number", flag, word(text)), hint: hint}
}
