package sink

import (
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
)

// poisonError says that an event can never be published as it is. It names the event by its ID, never by its key
// or payload.
type poisonError struct {
	eventID string
	topic   string // may be empty: it could not be made
	class   string // one of Classes
	reason  string
	hint    string
}

func (e *poisonError) Error() string {
	if e.topic == "" {
		return fmt.Sprintf("event %q cannot be published: %s", e.eventID, e.reason)
	}
	return fmt.Sprintf("event %q cannot be published to topic %q: %s", e.eventID, e.topic, e.reason)
}

// poisonIn describes the only record of a batch that the broker refused for good.
func poisonIn(b *Batch, err error) *poisonError {
	p := &poisonError{topic: b.Topic, class: classRefused, reason: describe(err), hint: hintRefused(err, b.size+batchHeader)}
	for r := range b.Records() {
		for name, value := range r.Headers() {
			if string(name) == "id" {
				p.eventID = string(value)
				return p
			}
		}
	}
	return p
}

func hintRefused(err error, size int) string {
	var code kafka.Error
	errors.As(err, &code)
	switch code {
	case kafka.MessageSizeTooLarge, kafka.RecordListTooLarge:
		return fmt.Sprintf("raise the topic's max.message.bytes to at least %d, or publish a smaller event", size)
	case kafka.InvalidTimestamp:
		return "look at the relay's clock and at the topic's message.timestamp settings"
	}
	return hintFault(err, "look at the topic's settings, then at the event")
}
