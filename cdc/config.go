package cdc

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Config is what a Stream needs to know. DefaultConfig gives the defaults named here.
type Config struct {
	// Connect gives the settings of a connection to the database. It is called for each attempt, so that a
	// rotated password is found. The relay sets the session parameters it depends on itself.
	Connect func() (*pgx.ConnConfig, error)

	// Slot is the replication slot's name, [a-z0-9_], 1 to 63 characters. One slot has one active relay.
	Slot string
	// Publication is the publication's name.
	Publication string
	// Table is the outbox table, when there is one and its columns are those of migrations/outbox. Default
	// outbox.events.
	Table Table
	// Tables are the outbox tables and their columns. Default: Table alone.
	Tables []Mapping
	// Messages are the logical messages that become events. Others are counted in positions and passed over, and so
	// are all that do not belong to a transaction. Default: none.
	Messages []MessageMapping

	// Backlog says what becomes of rows that are older than the slot. Default BacklogRefuse.
	Backlog Backlog
	// Failover makes the slot one that PostgreSQL 17 or later keeps on standby servers too.
	Failover bool
	// Ensure makes the publication and the slot where they are missing. It needs the rights of a migration role.
	Ensure bool

	// StatusInterval is the longest silence towards the server. Default 5 s; always below half of the server's
	// wal_sender_timeout.
	StatusInterval time.Duration
	// ConfirmInterval is the shortest time between two writes to relay_state. Default 1 s.
	ConfirmInterval time.Duration
	// IdleInterval is the shortest time between two confirmations that no event asked for. Default 10 s.
	IdleInterval time.Duration
	// SilenceLimit is how long the stream may say nothing before the server is asked whether it still serves the
	// slot. Default 15 s.
	SilenceLimit time.Duration
	// QueryTimeout bounds each query and each connection attempt. Default 10 s.
	QueryTimeout time.Duration
	// StandbyInterval is how often a standby relay looks at the slot. Default 1 s.
	StandbyInterval time.Duration
	// RetryHuman is how often a state that needs a human is examined again. Default 30 s.
	RetryHuman time.Duration
	// BackoffMin and BackoffMax bound the pause between two attempts to stream. Default 100 ms and 10 s.
	BackoffMin, BackoffMax time.Duration
}

// Backlog says what becomes of rows that are older than the slot.
type Backlog string

// The choices.
const (
	BacklogRefuse  Backlog = ""        // there must be none: a slot is neither made nor adopted over them
	BacklogPublish Backlog = "publish" // they go first; only for a slot that the relay itself makes
	BacklogSkip    Backlog = "skip"    // they stay unpublished for ever
)

// Table names a table.
type Table struct{ Schema, Name string }

// String writes the name as SQL does, quoted where that is needed.
func (t Table) String() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// ParseTable reads schema.table, unquoted. A name without a schema is of schema public.
func ParseTable(s string) (Table, error) {
	schema, name, ok := strings.Cut(s, ".")
	if !ok {
		schema, name = "public", s
	}
	if schema == "" || name == "" || strings.Contains(name, ".") {
		return Table{}, fmt.Errorf("parse table %q: want schema.table", s)
	}
	return Table{schema, name}, nil
}

// DefaultConfig returns a configuration that lacks only Connect.
func DefaultConfig() Config {
	return Config{
		Slot:            "relay",
		Publication:     "relay",
		Table:           Table{"outbox", "events"},
		StatusInterval:  5 * time.Second,
		ConfirmInterval: time.Second,
		IdleInterval:    10 * time.Second,
		SilenceLimit:    15 * time.Second,
		QueryTimeout:    10 * time.Second,
		StandbyInterval: time.Second,
		RetryHuman:      30 * time.Second,
		BackoffMin:      100 * time.Millisecond,
		BackoffMax:      10 * time.Second,
	}
}

// slotName is what PostgreSQL accepts. It is checked here because the replication commands take it unquoted.
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Validate returns all problems at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Connect == nil {
		errs = append(errs, errors.New("cdc: Connect is not set"))
	}
	if !slotName.MatchString(c.Slot) {
		errs = append(errs, fmt.Errorf("cdc: slot %q: want 1 to 63 of a-z, 0-9 and _", c.Slot))
	}
	if n := len(c.Publication); n == 0 || n > 63 || strings.ContainsRune(c.Publication, 0) {
		errs = append(errs, fmt.Errorf("cdc: publication %q: want 1 to 63 bytes", c.Publication))
	}
	if c.Backlog != BacklogRefuse && c.Backlog != BacklogPublish && c.Backlog != BacklogSkip {
		errs = append(errs, fmt.Errorf("cdc: Backlog is %q: want publish, skip or nothing", c.Backlog))
	}
	if err := c.validateMappings(); err != nil {
		errs = append(errs, err)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"StatusInterval", c.StatusInterval}, {"ConfirmInterval", c.ConfirmInterval}, {"IdleInterval", c.IdleInterval},
		{"SilenceLimit", c.SilenceLimit}, {"QueryTimeout", c.QueryTimeout}, {"StandbyInterval", c.StandbyInterval},
		{"RetryHuman", c.RetryHuman}, {"BackoffMin", c.BackoffMin}, {"BackoffMax", c.BackoffMax},
	} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("cdc: %s is %v: want more than 0", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}
