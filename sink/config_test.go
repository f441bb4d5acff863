package sink_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/sink"
)

func TestConfig_Validate(t *testing.T) {
	if err := sink.DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	bad := sink.Config{Route: "a {aggregate_type}", Topics: []string{"fine", "__x", "a b"}, WindowBytes: 1, BatchBytes: 1, MaxRecordBytes: 1}
	err := bad.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"route", `"__x"`, `"a b"`, "window", "batch", "max record", "intervals"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	for _, route := range []string{"", "{type}", "x{", "__{aggregate_type}", strings.Repeat("x", 250)} {
		cfg := sink.DefaultConfig()
		cfg.Route = route
		if cfg.Validate() == nil {
			t.Errorf("route %q is accepted", route)
		}
	}
	kafka := sink.DefaultKafkaConfig()
	if kafka.Validate() == nil {
		t.Error("no brokers are accepted")
	}
	kafka.Brokers = []string{"a:1", "b"}
	if err := kafka.Validate(); err == nil || !strings.Contains(err.Error(), `"b"`) || strings.Contains(err.Error(), `"a:1"`) {
		t.Errorf("got %v", err)
	}
	kafka.Brokers = []string{"a:1", "[::1]:9092"}
	if err := kafka.Validate(); err != nil {
		t.Error(err)
	}
}

func TestStats_Add(t *testing.T) {
	ended := sink.Stats{Published: map[string]uint64{"a": 1, "b": 2}, Sends: 3, Batches: 2, PublishedBytes: 10, BacklogEvents: 9, Lanes: 4, Retries: map[string]uint64{"leader": 1}}
	now := sink.Stats{Published: map[string]uint64{"b": 5}, Sends: 1, Batches: 1, PublishedBytes: 7, BacklogEvents: 2, Lanes: 1, Retries: map[string]uint64{"leader": 2}}
	want := sink.Stats{Published: map[string]uint64{"a": 1, "b": 7}, Sends: 4, Batches: 3, PublishedBytes: 17, BacklogEvents: 2, Lanes: 1, Retries: map[string]uint64{"leader": 3}}
	if diff := cmp.Diff(want, now.Add(ended)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if now.Published["a"] != 0 {
		t.Error("Add changed what it was called on")
	}
}
