package sink

import (
	"context"
	"errors"

	"github.com/outboxrelay/relay/outbox"
)

// Policy says what becomes of an event that cannot be published.
type Policy string

// The policies.
const (
	// PolicyHalt stops at the event until the cause is gone or somebody asks for it to be parked. The default.
	PolicyHalt Policy = "halt"
	// PolicyPark makes it a dead letter and goes on.
	PolicyPark Policy = "park"
	// PolicyHoldKey makes it a dead letter, and every later event of its topic and key too, until somebody requeues or
	// discards the first. Events of other keys go on.
	PolicyHoldKey Policy = "hold-key"
)

// Policies lists them all.
func Policies() []Policy { return []Policy{PolicyHalt, PolicyPark, PolicyHoldKey} }

// What is wrong with an event, in one word. Classes is the closed set.
const (
	classUnreadable   = "unreadable"    // no event could be made of what was written
	classNoKey        = "no_key"        // it has no ID or no key
	classBadHeader    = "bad_header"    // something that becomes a header cannot be one
	classBadTopic     = "bad_topic"     // its topic is not allowed, or not a name
	classBadPartition = "bad_partition" // a column names a partition that is not there
	classTooLarge     = "too_large"     // its record is larger than Config.MaxRecordBytes
	classRefused      = "refused"       // the broker refuses its record for good
	classHeld         = "held"          // nothing: it waits behind another one of its key
)

// Classes lists every class that a Letter can have.
func Classes() []string {
	return []string{classUnreadable, classNoKey, classBadHeader, classBadTopic, classBadPartition, classTooLarge, classRefused, classHeld}
}

// LetterState is what has become of a letter.
type LetterState string

// The states.
const (
	Parked    LetterState = "parked"    // waits for somebody
	Held      LetterState = "held"      // waits for the parked one of its key
	Requeued  LetterState = "requeued"  // about to be published again
	Published LetterState = "published" // acknowledged since
	Discarded LetterState = "discarded" // never to be published
)

// MaxLetterValue is the largest value that a letter keeps. A larger one stays where it is, in the source table.
const MaxLetterValue = 16 << 20

// Letter is a dead letter: the whole record of an event that was not published, and why.
type Letter struct {
	ID        int64  // of its row; 0: it has none yet
	Source    string // where the event is from: Route.Source
	EventID   string // as LetterID makes it
	Position  string // relay_position
	Topic     string // "": none could be made
	Partition int32  // -1: the key decides
	Key       []byte // nil: it has none
	Value     []byte
	Null      bool // the value is null; without it, a nil Value was too large to keep
	Headers   []Header
	// Unreadable, if not nil, is the headers column of which no headers could be made. Such a letter has no record.
	Unreadable []byte
	EventKey   []byte // nil: it has none
	EventType  []byte
	OccurredAt []byte // in RFC 3339 where it is a time
	Class      string
	Reason     string // a sentence without anything of key and value
	Attempts   int
	State      LetterState
	Holds      bool // later events of its topic and key wait for it
	Actor      string
	Note       string

	// Of the session that parks it.
	seq       uint64
	size      int
	topicOf   *topic        // nil: it has no lane
	policy    Policy        // for counting
	copyTo    string        // dead-letter topic; empty: none
	replay    string        // relay_replay of a record that is made of it; empty: requeue
	committed chan struct{} // closed when its row is; nil: nobody asks
}

// Header is a header of a record.
type Header struct {
	Name  string
	Value []byte
}

// Settled is an event that has a letter, whatever its state, and may be brought by the stream again.
type Settled struct {
	Position outbox.Position
	Source   string
	EventID  string
}

// Hold is a key whose events wait.
type Hold struct {
	Topic     string
	Partition int32 // -1: the key decides
	Key       []byte
	From      string // relay_position of the first that waits
}

// Change is what becomes of a letter that has a row. What is empty stays.
type Change struct {
	ID     int64
	State  LetterState
	Class  string // of a new refusal, which counts as an attempt
	Reason string
	Actor  string
	Note   string
}

// Selection says which open letters, that is parked, held and requeued ones, are meant.
type Selection struct {
	IDs       []int64 // nil: any
	Topic     *string // nil: any
	Partition *int32  // nil: any
	Key       []byte  // nil: any
	Holds     bool    // only those that hold their key
	After     int64   // only those with a greater ID
}

// DeadLetters keeps letters. Each call stands for itself: what it changed is durable when it returns nil, and it
// changes nothing if another relay has taken the slot, which it answers with ErrNotOwner. Any other error is tried
// again, for as long as it takes; one that holds a *state.Error says which state that is. Safe for concurrent use.
type DeadLetters interface {
	// Settled returns, in the order of the stream, the first events behind a position, most of them at most.
	Settled(ctx context.Context, after outbox.Position, most int) ([]Settled, error)
	// Holds returns the keys that open letters hold, at most so many.
	Holds(ctx context.Context, most int) ([]Hold, error)
	// Park adds letters in their order. One whose event has a letter already is left out.
	Park(ctx context.Context, letters []*Letter) error
	// Open returns the first of the selected letters in the order of their IDs: at most so many, and at most so many
	// bytes of values unless the first alone has more.
	Open(ctx context.Context, sel Selection, most, bytes int) ([]*Letter, error)
	// Change changes letters.
	Change(ctx context.Context, changes []Change) error
}

// ErrNotOwner is returned by Run, and by a DeadLetters, when another relay has taken the slot.
var ErrNotOwner = errors.New("sink: another relay has taken the slot")
