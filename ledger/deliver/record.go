package deliver

import (
	"fmt"
	"time"
)

// Record is what was read from a topic.
type Record struct {
	Topic     string
	Partition int
	Offset    int64
	Time      time.Time
	Key       []byte
	Value     []byte
	Headers   []Header
}

// Header is a record's header.
type Header struct {
	Name  string
	Value []byte
}

// Class says why a record cannot be handled. The words are a column of ledger.parked_records.
type Class string

// The classes.
const (
	ClassForeign     Class = "foreign"             // it lacks what every record of the relay has
	ClassUnknownType Class = "unknown_type"        // no rule names its event type
	ClassKeyInvalid  Class = "key_invalid"         // its key breaks the ledger's rules
	ClassKeyReused   Class = "key_reused"          // its key was used by an event of another type before
	ClassPayload     Class = "payload_invalid"     // its value is not JSON
	ClassQuery       Class = "query_refused"       // a query of its rule does not take its values
	ClassRecipients  Class = "recipients_invalid"  // some of its recipients are NULL, empty or too long; the others were registered
	ClassTooMany     Class = "too_many_recipients" // more than the rule allows; none was registered
	ClassTemplate    Class = "not_before_invalid"  // its rule's not_before makes no time of it
)

// Classes lists all classes.
func Classes() []Class {
	return []Class{ClassForeign, ClassUnknownType, ClassKeyInvalid, ClassKeyReused, ClassPayload, ClassQuery, ClassRecipients, ClassTooMany, ClassTemplate}
}

// RecordError says why a record cannot be handled. It quotes neither payload nor recipient.
type RecordError struct {
	Class  Class
	Reason string
}

func (e *RecordError) Error() string { return string(e.Class) + ": " + e.Reason }

// headers returns the record's headers; of several with one name the first.
func (r *Record) headers() map[string]string {
	h := make(map[string]string, len(r.Headers))
	for _, x := range r.Headers {
		if _, dup := h[x.Name]; !dup {
			h[x.Name] = string(x.Value)
		}
	}
	return h
}

// event reads the record as the relay wrote it. The error is a *RecordError.
//
// A table without event keys makes records without the header; the event's id names the event then. A record with
// neither, or without a type, is not the relay's.
func (r *Record) event() (Event, error) {
	h := r.headers()
	e := Event{
		ID: h[headerID], Tenant: h[headerTenant], Key: h[headerEventKey], Type: h[headerEventType], AggregateType: h[headerAggregateType],
		AggregateID: string(r.Key), OccurredAt: r.Time, Payload: r.Value, Headers: h,
		Source: fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset),
	}
	if e.Key == "" {
		e.Key = e.ID
	}
	if e.Key == "" || e.Type == "" {
		return e, &RecordError{ClassForeign, "the record has no header event_type, or neither event_key nor id"}
	}
	if at, ok := h[headerOccurredAt]; ok {
		t, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return e, &RecordError{ClassForeign, "header occurred_at is not a time"}
		}
		e.OccurredAt = t
	}
	return e, nil
}
