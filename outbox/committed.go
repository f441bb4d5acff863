package outbox

import "time"

// Committed is an event that the relay read from the write-ahead log: its transaction has committed.
//
// The byte slices are the columns' own bytes as the server sent them, never re-encoded. They are borrowed:
// whoever receives a Committed may read them until the call that handed it over returns, and copies what it
// needs longer. A nil slice is NULL, an empty one is the empty value.
type Committed struct {
	Position   Position
	CommitTime time.Time // when the transaction committed, by the server's clock

	ID            []byte // the event ID, header id on the record
	Tenant        []byte
	EventKey      []byte
	AggregateType []byte
	AggregateID   []byte
	EventType     []byte
	Payload       []byte // value on the record; nil is a tombstone
	Headers       []byte // a JSON object, string to string
	Topic         []byte // explicit routing; nil: the route's template decides
	PartitionKey  []byte // key on the record; nil: AggregateID
	OccurredAt    []byte // timestamptz in the server's ISO form

	// PayloadKind says what Payload is.
	PayloadKind Kind
	// Route says which table or message the event is from: an index that the relay's configuration gives to each.
	Route int
	// Extra has the values of the further columns that the configuration of that table asks for, in its order.
	Extra []Extra
	// Unreadable says why no event could be made of what was written, "" where one could. Such an event has a
	// position and an ID and can never be published.
	Unreadable string
}

// Extra is the value of a further column.
type Extra struct {
	Value []byte // nil is NULL
	Kind  Kind
}

// Kind says how the bytes of a value are to be understood.
type Kind uint8

// The kinds.
const (
	KindAbsent Kind = iota // there is no such column
	KindText
	KindNumber // decimal digits, with a sign
	KindBool   // true or false
	KindJSON
	KindBytes
	KindTimestamp // the server's ISO form; without an offset it is UTC
)

// Key returns the record's key: the partition key where one was given, else the aggregate ID.
func (c *Committed) Key() []byte {
	if c.PartitionKey != nil {
		return c.PartitionKey
	}
	return c.AggregateID
}
