package main

import (
	"bytes"
	"fmt"
	"strings"
)

// verifier holds what stands in a topic against the data set it must have come from.
type verifier struct {
	data *dataset
	seen []bool         // by row
	last map[string]int // highest row seen of each key
	home map[string]int32
	want []byte // scratch
	verdict
}

// verdict counts what a topic has wrong. The zero value is exact.
type verdict struct {
	Missing    int `json:"missing"`
	Duplicates int `json:"duplicates"`
	Reordered  int `json:"reordered"` // first sights behind a later row of the same key
	Altered    int `json:"altered"`   // values that are not the bytes as written
	Misplaced  int `json:"misplaced"` // keys that are not the row's, or spread over partitions
	Unknown    int `json:"unknown"`   // records that no row explains
}

func newVerifier(d *dataset) *verifier {
	return &verifier{data: d, seen: make([]bool, d.rows+1), last: map[string]int{}, home: map[string]int32{}}
}

// add takes the records of each partition in their order there.
func (v *verifier) add(partition int32, id string, key, value []byte) {
	n, ok := rowOfID(id)
	if !ok || n > v.data.rows {
		v.Unknown++
		return
	}
	v.want = appendPayload(v.want[:0], n, v.data.payload)
	if !bytes.Equal(value, v.want) {
		v.Altered++
	}
	v.want = appendKey(v.want[:0], n, v.data.keys)
	home, known := v.home[string(key)]
	if !bytes.Equal(key, v.want) || known && home != partition {
		v.Misplaced++
	}
	if !known {
		v.home[string(key)] = partition
	}
	if v.seen[n] {
		v.Duplicates++
		return
	}
	v.seen[n] = true
	if n < v.last[string(key)] {
		v.Reordered++
		return
	}
	v.last[string(key)] = n
}

// finish counts what never came.
func (v *verifier) finish() verdict {
	for _, seen := range v.seen[1:] {
		if !seen {
			v.Missing++
		}
	}
	return v.verdict
}

func (v verdict) exact() bool { return v == verdict{} }

func (v verdict) String() string {
	if v.exact() {
		return "exact"
	}
	var parts []string
	for _, c := range []struct {
		n    int
		what string
	}{{v.Missing, "missing"}, {v.Duplicates, "duplicate"}, {v.Reordered, "reordered"}, {v.Altered, "altered"}, {v.Misplaced, "misplaced"}, {v.Unknown, "unknown"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(parts, ", ")
}
