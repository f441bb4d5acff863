package main

import (
	"testing"
	"time"
)

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   spread
		text   string
	}{
		{nil, spread{}, "0"},
		{[]float64{3}, spread{3, 3, 3}, "3"},
		{[]float64{9, 1, 4}, spread{1, 4, 9}, "1 / 4 / 9"},
		{[]float64{4, 1, 2.5, 12345.6}, spread{1, 3.25, 12345.6}, "1 / 3.25 / 12346"},
	} {
		if got := spreadOf(tt.values); got != tt.want || got.String() != tt.text {
			t.Errorf("spreadOf(%v) = %+v, %q, want %+v, %q", tt.values, got, got.String(), tt.want, tt.text)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.95: 95, 0.99: 99, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile(1..100, %v) = %d, want %d", q, got, want)
		}
	}
	if got := quantile([]int(nil), 0.5); got != 0 {
		t.Errorf("quantile of nothing = %d, want 0", got)
	}
}
