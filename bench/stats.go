package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// spread is minimum, median and maximum of what several runs gave.
type spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// spreadOf returns the spread of values, zero for none. The median of an even number lies halfway between the two
// in the middle.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return spread{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, Max: s[n-1]}
}

// collect takes one number from each of several runs and returns their spread.
func collect[T any](runs []T, value func(T) float64) spread {
	var all []float64
	for _, r := range runs {
		all = append(all, value(r))
	}
	return spreadOf(all)
}

func (s spread) String() string {
	if s.Min == s.Max {
		return number(s.Median)
	}
	return number(s.Min) + " / " + number(s.Median) + " / " + number(s.Max)
}

// number writes three significant digits, or whole numbers from a hundred on.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || v == math.Trunc(v):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// quantile returns the smallest of the sorted values that is not below a share q of them all; zero for none.
func quantile[T cmp.Ordered](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var zero T
		return zero
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// divide is a/b, or zero where there is nothing to divide by.
func divide(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
