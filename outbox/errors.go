package outbox

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNoTransaction is returned by Write and WriteSQL when what they were given is no open transaction: nil,
	// already committed or rolled back, or a connection outside a transaction block. Nothing was written.
	ErrNoTransaction = errors.New("outbox: no open transaction")

	// ErrDuplicateID is returned by Write and WriteSQL when an event's ID stands in the table already, or twice
	// among the events given. In the first case PostgreSQL has aborted the transaction.
	ErrDuplicateID = errors.New("outbox: event ID is already used")
)

// Problem is what is wrong with a field.
type Problem string

// The problems.
const (
	Empty        Problem = "is empty"
	NoName       Problem = "holds an empty name"
	TooLong      Problem = "is too long"
	NotUTF8      Problem = "is not UTF-8"
	HasNUL       Problem = "holds a NUL character"
	HasLineBreak Problem = "holds a carriage return or line feed" // of a header: its value; a name is a BadName
	BadCharacter Problem = "holds a character other than a-z, A-Z, 0-9, '.', '_' and '-'"
	NotJSON      Problem = "is not JSON"
	Exclusive    Problem = "excludes the other payload"
	BadName      Problem = "is not an allowed name"
	Reserved     Problem = "is a name that the relay uses itself"
	BadYear      Problem = "is outside the years 1 to 9999"
)

// FieldError says what is wrong with one field of an Event. It holds no value, so it may be logged.
type FieldError struct {
	Field   string // the column's name: event_key, headers, ...
	Header  string // the header's name, at most 64 bytes of it, where one header is at fault
	Problem Problem
	Length  int    // what the value has; with Limit and Unit set only for Empty and TooLong
	Limit   int    // what it may have at most
	Unit    string // of both: "characters" or "bytes"
}

func (e *FieldError) Error() string {
	var b strings.Builder
	b.WriteString(e.Field)
	if e.Header != "" {
		fmt.Fprintf(&b, " %q", e.Header)
	}
	b.WriteString(" " + string(e.Problem))
	if e.Limit > 0 {
		fmt.Fprintf(&b, ": %d %s, limit %d", e.Length, e.Unit, e.Limit)
	}
	return b.String()
}
