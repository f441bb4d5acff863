package demo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MaxEvents is how many events a demo can have, as all of them are kept in memory.
const MaxEvents = 1_000_000

// MaxRate is the highest rate that can be asked for, in events a second.
const MaxRate = 100_000

// Config says what to play.
type Config struct {
	// Events is how many events are committed. 1 to MaxEvents.
	Events int

	// Rate is how many events a second are committed. 0 is as many as the machine can; at most MaxRate.
	Rate float64

	// Patience is how long nothing may arrive while something should before the demo gives up, and how long the
	// relay may take to be ready. Default 30 s.
	Patience time.Duration

	// PostgresMajor is the major version of PostgreSQL, 14 to 18. 0 is what is installed here, else 18.
	PostgresMajor int

	// Relay relays from target's database to its broker until soft ends and everything in flight is
	// acknowledged, or until hard ends. It serves /readyz on target's admin address. Required.
	Relay func(soft, hard context.Context, target Target) error

	// Listener is told what happens.
	Listener Listener
}

// Target is what a relay works on.
type Target struct {
	PostgresURL     string // a superuser's, with its password
	PostgresVersion string
	Brokers         []string
	Topic           string // exists, and is where everything goes
	Partitions      int
	AdminAddress    string // host:port on loopback, free when it was looked for
}

// Listener is told how the demo goes. Its funcs may be nil and are called one at a time.
type Listener struct {
	// Step is called when a step of the preparation begins, and once a second while it lasts.
	Step func(name string, elapsed time.Duration)
	// Ready is called when the relay streams, before the first event is written.
	Ready func(Target)
	// Progress is called once a second from then on.
	Progress func(Progress)
}

// Progress is how far the demo is.
type Progress struct {
	Elapsed    time.Duration // since the start of the demo
	Committed  int           // events whose transaction was sent to commit
	RolledBack int           // events written and rolled back
	Published  int           // distinct events read from the broker
	InFlight   int           // committed and not read yet
	Lag        time.Duration // age of the oldest of them; 0 when there is none
	Last       *Arrival      // the latest record of an event whose commit was seen; nil: none yet
}

// Arrival is a record as the consumer read it.
type Arrival struct {
	EventID       string
	AggregateType string
	AggregateID   string
	EventType     string
	Partition     int32
	Offset        int64
	Delay         time.Duration // from before its COMMIT was sent
}

// Summary is what the demo found.
type Summary struct {
	Committed  int // changes that stand in the shop's tables
	RolledBack int // changes that were written and rolled back
	Published  int // distinct event IDs read from the broker
	Lost       int // committed and not read
	Duplicates int // records whose event ID was read before
	Ghosts     int // records that no committed change explains
	OutOfOrder int // records that follow one of a later version of the same order

	Elapsed         time.Duration // from the start until everything was read
	FirstEvent      time.Duration // from the start until the first record was read; 0: none was
	PostgresVersion string
}

// Err says what is wrong with what was found; nil if nothing is.
func (s Summary) Err() error {
	if s.Lost+s.Duplicates+s.Ghosts+s.OutOfOrder == 0 {
		return nil
	}
	return fmt.Errorf("check what arrived: %d lost, %d duplicates, %d ghosts, %d out of order",
		s.Lost, s.Duplicates, s.Ghosts, s.OutOfOrder)
}

func (c *Config) validate() error {
	var errs []error
	if c.Events < 1 || c.Events > MaxEvents {
		errs = append(errs, fmt.Errorf("%d events are not 1 to %d", c.Events, MaxEvents))
	}
	if !(c.Rate >= 0 && c.Rate <= MaxRate) {
		errs = append(errs, fmt.Errorf("rate %v is not 0 to %d", c.Rate, MaxRate))
	}
	if c.Relay == nil {
		errs = append(errs, errors.New("there is no relay"))
	}
	return errors.Join(errs...)
}
