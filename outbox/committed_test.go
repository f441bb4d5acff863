package outbox_test

import (
	"testing"

	"github.com/outboxrelay/relay/outbox"
)

func TestCommitted_Key(t *testing.T) {
	t.Parallel()
	c := outbox.Committed{AggregateID: []byte("42")}
	if got := string(c.Key()); got != "42" {
		t.Errorf("without a partition key: %q", got)
	}
	c.PartitionKey = []byte("p")
	if got := string(c.Key()); got != "p" {
		t.Errorf("with a partition key: %q", got)
	}
	c.PartitionKey = []byte{} // a mapped table may hold it: empty is not NULL
	if got := c.Key(); got == nil || len(got) != 0 {
		t.Errorf("with an empty partition key: %q", got)
	}
}
