package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// plotDrain draws rows a second over what the data sets differ in, a line a system with its spread, as SVG. Both
// axes begin where the figures ask for: x is logarithmic, y begins at zero, so that a ratio looks like what it is.
func plotDrain(results []drainResult, axis string) []byte {
	const width, height, left, bottom, top, right = 760, 420, 90, 60, 30, 150
	var xs []int
	var systems []string
	most := 1.0
	for _, r := range results {
		if !slices.Contains(xs, r.X) {
			xs = append(xs, r.X)
		}
		if !slices.Contains(systems, r.System) {
			systems = append(systems, r.System)
		}
		most = max(most, r.RowsPerSec.Max)
	}
	slices.Sort(xs)
	step := niceStep(most / 5)
	most = step * math.Ceil(most/step)
	px := func(x int) float64 {
		if len(xs) < 2 {
			return left + (width-left-right)/2
		}
		low, high := math.Log(float64(xs[0])), math.Log(float64(xs[len(xs)-1]))
		return left + (math.Log(float64(x))-low)/(high-low)*(width-left-right)
	}
	py := func(y float64) float64 { return height - bottom - y/most*(height-bottom-top) }

	var w bytes.Buffer
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n", width, height)
	fmt.Fprintf(&w, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for y := 0.0; y <= most; y += step {
		fmt.Fprintf(&w, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", left, width-right, py(y), py(y))
		fmt.Fprintf(&w, `<text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", left-8, py(y)+4, y)
	}
	for _, x := range xs {
		fmt.Fprintf(&w, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", px(x), height-bottom+20, x)
	}
	fmt.Fprintf(&w, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-15, html.EscapeString(axis))
	fmt.Fprintf(&w, `<text x="%d" y="18">rows a second</text>`+"\n", 8)
	colours := []string{"#0b6", "#36c", "#c33", "#939", "#a60", "#555"}
	for i, system := range systems {
		colour := colours[i%len(colours)]
		var line []string
		for _, x := range xs {
			for _, r := range results {
				if r.System != system || r.X != x {
					continue
				}
				s := r.RowsPerSec
				line = append(line, fmt.Sprintf("%.1f,%.1f", px(x), py(s.Median)))
				fmt.Fprintf(&w, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="%s"/>`+"\n", px(x), px(x), py(s.Min), py(s.Max), colour)
				fmt.Fprintf(&w, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", px(x), py(s.Median), colour)
			}
		}
		fmt.Fprintf(&w, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), colour)
		y := top + 10 + 22*i
		fmt.Fprintf(&w, `<circle cx="%d" cy="%d" r="4" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", width-right+20, y, colour, width-right+32, y+4, html.EscapeString(system))
	}
	w.WriteString("</svg>\n")
	return w.Bytes()
}

// niceStep rounds up to 1, 2 or 5 times a power of ten.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*power {
			return m * power
		}
	}
	return 10 * power
}
