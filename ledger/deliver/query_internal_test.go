package deliver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
)

func TestNewQuery(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"SELECT :a":                               "SELECT $1 [a]",
		"SELECT :a, :b, :a":                       "SELECT $1, $2, $3 [a b a]",
		"SELECT :a::bigint, x::text":              "SELECT $1::bigint, x::text [a]",
		"SELECT ':a', \":a\", E'\\':a', :b":       "SELECT ':a', \":a\", E'\\':a', $1 [b]",
		"SELECT 'it''s :a', :a":                   "SELECT 'it''s :a', $1 [a]",
		"SELECT $$:a$$, $x$ :a $$ $x$, :a":        "SELECT $$:a$$, $x$ :a $$ $x$, $1 [a]",
		"SELECT 1 -- :a\n, :a":                    "SELECT 1 -- :a\n, $1 [a]",
		"SELECT /* :a /* :b */ :a */ :a":          "SELECT /* :a /* :b */ :a */ $1 [a]",
		"SELECT f(x := :a)":                       "SELECT f(x := $1) [a]",
		"SELECT arr[1:2]":                         "SELECT arr[1:2] []",
		"SELECT type'x :a', name$1, :a":           "SELECT type'x :a', name$1, $1 [a]",
		"SELECT :a ; -- the end":                  "SELECT $1   -- the end [a]",
		"SELECT 'unfinished :a":                   "SELECT 'unfinished :a []",
		"SELECT U&'\\0061 :a', ünïcode, :a ;; \n": "SELECT U&'\\0061 :a', ünïcode, $1    \n [a]",
	} {
		q, err := newQuery(source, []string{"a", "b"})
		if err != nil {
			t.Errorf("%q: %v", source, err)
			continue
		}
		if got := fmt.Sprint(q.text, " ", q.names); got != want {
			t.Errorf("%q:\ngot  %q\nwant %q", source, got, want)
		}
	}
	for _, source := range []string{"", " \n ", "SELECT :c", "SELECT 1; SELECT 2", "SELECT 1;:a", "SELECT '\x00'"} {
		if _, err := newQuery(source, []string{"a", "b"}); err == nil {
			t.Errorf("%q was taken", source)
		}
	}
}

// The place that PostgreSQL names, in a text with other parameters, is that of the file.
func TestQuery_place(t *testing.T) {
	t.Parallel()
	const source = "SELECT :payload, here,\n  :event_key, :event_key, there"
	q, err := newQuery(source, eventParams())
	if err != nil {
		t.Fatal(err)
	}
	q.line, q.column, q.indent = 10, 7, 6
	for word, want := range map[string]string{"here": "10 24", "there": "11 33"} {
		line, column := q.place(len([]rune(q.text[:strings.Index(q.text, word)])) + 1)
		if got := fmt.Sprint(line, column); got != want {
			t.Errorf("%s at %s, want %s", word, got, want)
		}
	}
}

func FuzzNewQuery(f *testing.F) {
	f.Add("SELECT :a, ':b' $$ :a")
	f.Fuzz(func(t *testing.T, source string) {
		q, err := newQuery(source, []string{"a", "b"})
		if err != nil {
			return
		}
		if len(q.names) != len(q.starts) {
			t.Fatal("places and names differ")
		}
		for p := range len(q.text) + 3 {
			q.place(p + 1)
		}
	})
}

func TestSpread(t *testing.T) {
	t.Parallel()
	var s spread
	members := []kafka.GroupMember{{ID: "b", Topics: []string{"x", "y", "z"}}, {ID: "a", Topics: []string{"x", "y", "z"}}, {ID: "c", Topics: []string{"z"}}}
	partitions := []kafka.Partition{{Topic: "y"}, {Topic: "x"}, {Topic: "z"}, {Topic: "z", ID: 1}}
	got := s.AssignGroups(members, partitions)
	if want := "map[a:map[x:[0] z:[1]] b:map[y:[0]] c:map[z:[0]]]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if s.outdated(map[string]int{"x": 1, "y": 1, "z": 2}) || !s.outdated(map[string]int{"x": 2, "y": 1, "z": 2}) || !s.outdated(map[string]int{"new": 1}) {
		t.Error("new partitions are not seen, or others are")
	}
	if _, err := s.UserData(); err != nil || s.outdated(map[string]int{"x": 9}) {
		t.Error("a member that does not lead looks for partitions")
	}
}
