package chaos_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/internal/chaos"
	"github.com/outboxrelay/relay/internal/testenv"
	"github.com/outboxrelay/relay/outbox"
)

// The truth of TestCheck: a1 a2 a3 and b1 b2 b3, committed a1 b1 a2 b2 a3 b3, all in partition 0.
func facts() []chaos.Fact {
	var list []chaos.Fact
	for i, id := range []string{"a1", "b1", "a2", "b2", "a3", "b3"} {
		list = append(list, chaos.Fact{
			EventID: id, Aggregate: id[:1], Version: int64(i/2 + 1), Key: id[:1], Value: chaos.Digest([]byte("value of " + id)),
			Headers: map[string]string{"id": id, "occurred_at": "2026-01-02T03:04:05.5Z"},
		})
	}
	return list
}

var commits = []string{"a1", "b1", "a2", "b2", "a3", "b3", "x9"}

// topic writes records as "partition:id id id, partition:id ...".
func topic(text string) []testenv.Record {
	var records []testenv.Record
	for part := range strings.SplitSeq(text, ", ") {
		var partition int32
		partText, ids, _ := strings.Cut(part, ":")
		fmt.Sscan(partText, &partition)
		for offset, id := range strings.Fields(ids) {
			position := outbox.Position{Incarnation: 1, LSN: outbox.LSN(100 + slices.Index(commits, id)), Ordinal: 1}
			records = append(records, testenv.Record{
				Partition: partition, Offset: int64(offset), Key: []byte(id[:1]), Value: []byte("value of " + id),
				Headers: []testenv.Header{
					{Key: "id", Value: []byte(id)},
					{Key: "occurred_at", Value: []byte("2026-01-02T03:04:05.500000Z")},
					{Key: "relay_position", Value: outbox.AppendPosition(nil, "0123456789abcdef", position)},
				},
			})
		}
	}
	return records
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const all = "0:a1 b1 a2 b2 a3 b3"
	header := func(r *testenv.Record, name string) *testenv.Header {
		i := slices.IndexFunc(r.Headers, func(h testenv.Header) bool { return h.Key == name })
		return &r.Headers[i]
	}
	tests := []struct {
		name       string
		topic      string
		change     func([]testenv.Record) // of the records
		allowed    chaos.Repeats
		want       []chaos.Kind
		duplicates int
		runs       int
	}{
		{name: "OK", topic: all},
		{name: "OK/partition each", topic: "0:a1 a2 a3, 7:b1 b2 b3"},
		{name: "OK/run", topic: "0:a1 b1 a2 b1 a2 b2 a3 b3", allowed: 1, duplicates: 2, runs: 1},
		{name: "OK/run of all", topic: "0:a1 b1 a2 a1 b1 a2 b2 a3 b3", allowed: 1, duplicates: 3, runs: 1},
		{name: "OK/last one again", topic: "0:a1 b1 a2 b2 a3 b3 b3", allowed: 1, duplicates: 1, runs: 1},
		{name: "OK/run cut short by the next", topic: "0:a1 b1 a2 b2 a1 b1 b1 a2 b2 a3 b3", allowed: chaos.AnyRepeats, duplicates: 5, runs: 2},
		{name: "lost/last", topic: "0:a1 b1 a2 b2 a3", want: []chaos.Kind{chaos.Lost}},
		{name: "lost/in the middle", topic: "0:a1 b1 b2 a3 b3", want: []chaos.Kind{chaos.Lost, chaos.Order}},
		{name: "lost/all", topic: "0:", want: []chaos.Kind{chaos.Lost}},
		{name: "ghost", topic: all + " x9", want: []chaos.Kind{chaos.Ghost}},
		{name: "ghost/without id", topic: all, change: func(r []testenv.Record) { r[5].Headers = r[5].Headers[1:] }, want: []chaos.Kind{chaos.Ghost, chaos.Lost}},
		{name: "order/of an aggregate", topic: "0:a1 b1 b2 a3 a2 b3", want: []chaos.Kind{chaos.Order, chaos.Position}},
		{name: "order/across aggregates", topic: "0:b1 a1 a2 b2 a3 b3", want: []chaos.Kind{chaos.Position}},
		{name: "order/new within a run", topic: "0:a1 b1 a2 b2 a1 b1 a3 b3", allowed: chaos.AnyRepeats, want: []chaos.Kind{chaos.Order}, duplicates: 2, runs: 1},
		{name: "order/run leaves one out", topic: "0:a1 b1 a2 b2 a1 a2 b2 a3 b3", allowed: 1, want: []chaos.Kind{chaos.Repeated}, duplicates: 3, runs: 2},
		{name: "order/run backwards", topic: "0:a1 b1 a2 a2 b1 a1 b2 a3 b3", allowed: chaos.AnyRepeats, want: []chaos.Kind{chaos.Order}, duplicates: 3, runs: 3},
		{name: "moved/aggregate", topic: "0:a1 b1 b2 b3, 1:a2 a3", want: []chaos.Kind{chaos.Moved}},
		{name: "moved/event", topic: all + ", 1:a1", want: []chaos.Kind{chaos.Moved}},
		{name: "repeated", topic: "0:a1 b1 a2 b2 a3 b3 b3", want: []chaos.Kind{chaos.Repeated}, duplicates: 1, runs: 1},
		{name: "changed/value", topic: all, change: func(r []testenv.Record) { r[1].Value = []byte("Value of b1") }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/null", topic: all, change: func(r []testenv.Record) { r[1].Value = nil }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/empty", topic: all, change: func(r []testenv.Record) { r[1].Value = []byte{} }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/in a repetition", topic: all + " b3", allowed: 1, change: func(r []testenv.Record) { r[6].Value = nil }, want: []chaos.Kind{chaos.Changed}, duplicates: 1, runs: 1},
		{name: "changed/key", topic: all, change: func(r []testenv.Record) { r[1].Key = []byte("a") }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/header", topic: all, change: func(r []testenv.Record) { header(&r[1], "occurred_at").Value = []byte("2026-01-02T03:04:06Z") }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/header missing", topic: all, change: func(r []testenv.Record) { r[1].Headers = slices.Delete(r[1].Headers, 1, 2) }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/header too many", topic: all, change: func(r []testenv.Record) { header(&r[1], "occurred_at").Key = "else" }, want: []chaos.Kind{chaos.Changed}},
		{name: "changed/header twice", topic: all, change: func(r []testenv.Record) { r[1].Headers = append(r[1].Headers, r[1].Headers[0]) }, want: []chaos.Kind{chaos.Changed}},
		{name: "position/missing", topic: all, change: func(r []testenv.Record) { r[1].Headers = r[1].Headers[:2] }, want: []chaos.Kind{chaos.Position}},
		{name: "position/garbled", topic: all, change: func(r []testenv.Record) { header(&r[1], "relay_position").Value = []byte("1") }, want: []chaos.Kind{chaos.Position}},
		{name: "position/not the same again", topic: all + " b3", allowed: 1, change: func(r []testenv.Record) {
			header(&r[6], "relay_position").Value = outbox.AppendPosition(nil, "0123456789abcdef", outbox.Position{Incarnation: 1, LSN: 106, Ordinal: 1})
		}, want: []chaos.Kind{chaos.Position}, duplicates: 1, runs: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			records := topic(tt.topic)
			if tt.change != nil {
				tt.change(records)
			}
			r := chaos.Check(facts(), records, tt.allowed)
			got := slices.Sorted(maps.Keys(r.Violations))
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s%v", diff, r.Err())
			}
			if r.Duplicates != tt.duplicates || r.Runs != tt.runs {
				t.Errorf("%d duplicates in %d runs, want %d in %d", r.Duplicates, r.Runs, tt.duplicates, tt.runs)
			}
			if (r.Err() == nil) != (len(tt.want) == 0) {
				t.Errorf("Err = %v", r.Err())
			}
		})
	}
}
