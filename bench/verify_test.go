package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// published is a record as the verifier is told of it.
type published struct {
	partition int32
	id        string
	key       string
	value     string
}

// publishedRows is what a flawless system leaves of a data set.
func publishedRows(d *dataset) []published {
	var all []published
	for n := 1; n <= d.rows; n++ {
		all = append(all, published{int32(n % d.keys % 2), rowID(n), string(appendKey(nil, n, d.keys)), string(appendPayload(nil, n, d.payload))})
	}
	return all
}

func TestVerifier(t *testing.T) {
	t.Parallel()
	d := &dataset{rows: 50, keys: 7, payload: 100}
	for name, tt := range map[string]struct {
		damage func([]published) []published
		want   verdict
	}{
		"exact":    {func(r []published) []published { return r }, verdict{}},
		"a loss":   {func(r []published) []published { return slices.Delete(r, 10, 11) }, verdict{Missing: 1}},
		"the last": {func(r []published) []published { return r[:49] }, verdict{Missing: 1}},
		"nothing":  {func([]published) []published { return nil }, verdict{Missing: 50}},
		"a duplicate": {func(r []published) []published { return append(r, r[3]) },
			verdict{Duplicates: 1}},
		"two of a key swapped":  {func(r []published) []published { r[3], r[10] = r[10], r[3]; return r }, verdict{Reordered: 1}},
		"two of others swapped": {func(r []published) []published { r[3], r[4] = r[4], r[3]; return r }, verdict{}},
		"a value reformatted": {func(r []published) []published {
			r[5].value = r[5].value[:len(r[5].value)-2] + ` "}`
			return r
		}, verdict{Altered: 1}},
		"a digit changed": {func(r []published) []published {
			r[5].value = strings.Replace(r[5].value, ".70", ".71", 1)
			return r
		}, verdict{Altered: 1}},
		"a value missing":      {func(r []published) []published { r[5].value = ""; return r }, verdict{Altered: 1}},
		"a key of another row": {func(r []published) []published { r[49].key = r[48].key; return r }, verdict{Misplaced: 1}},
		"a key on two partitions": {func(r []published) []published { r[49].partition ^= 1; return r },
			verdict{Misplaced: 1}},
		"an id of no row": {func(r []published) []published { r[0].id = rowID(51); return r }, verdict{Missing: 1, Unknown: 1}},
		"no id":           {func(r []published) []published { r[0].id = ""; return r }, verdict{Missing: 1, Unknown: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVerifier(d)
			for _, r := range tt.damage(publishedRows(d)) {
				v.add(r.partition, r.id, []byte(r.key), []byte(r.value))
			}
			got := v.finish()
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got.exact() != (tt.want == verdict{}) || got.exact() != (got.String() == "exact") {
				t.Errorf("exact() = %v, String() = %q of %+v", got.exact(), got, got)
			}
		})
	}
}

func TestRow(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 42, 999_999, 1 << 40} {
		if got, ok := rowOfID(rowID(n)); !ok || got != n {
			t.Errorf("rowOfID(%q) = %d, %v, want %d", rowID(n), got, ok, n)
		}
		for _, size := range []int{minPayload, payloadHead - 1, payloadHead, 200, 5000} {
			if n >= 1<<40 && size < 20 {
				continue // the number does not fit
			}
			payload := appendPayload([]byte("kept"), n, size)[4:]
			if len(payload) != size || !json.Valid(payload) {
				t.Errorf("payload of row %d, %d bytes: %d bytes, %q", n, size, len(payload), payload)
			}
		}
	}
	for _, id := range []string{"", "x", idPrefix, idPrefix + "000000000000", idPrefix + "00000000000g", fmt.Sprintf("1%s", rowID(1)[1:])} {
		if n, ok := rowOfID(id); ok {
			t.Errorf("rowOfID(%q) = %d, want none", id, n)
		}
	}
}
