package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Mistake is one thing that is wrong with the configuration.
type Mistake struct {
	Key     string // name of the key, as in the file; an unknown one as it was written; empty: the whole source
	Source  string // where the value came from: file relay.yaml, env RELAY_X, flag --x; empty: not set anywhere
	Problem string // what was seen
	Hint    string // what to do
}

func (m Mistake) Error() string {
	if m.Key == "" {
		return fmt.Sprintf("config %s: %s", m.Source, m.Problem)
	}
	if m.Source == "" {
		return fmt.Sprintf("config %s: %s", m.Key, m.Problem)
	}
	return fmt.Sprintf("config %s (%s): %s", m.Key, m.Source, m.Problem)
}

// Mistakes is every mistake that was found, as an error.
type Mistakes []Mistake

func (ms Mistakes) Error() string {
	lines := make([]string, len(ms))
	for i, m := range ms {
		lines[i] = m.Error()
	}
	return strings.Join(lines, "\n")
}

// errorOrNil avoids an error that is not nil and says nothing.
func (ms Mistakes) errorOrNil() error {
	if len(ms) == 0 {
		return nil
	}
	return ms
}

// didYouMean returns the candidate nearest to a word, "" when none is near enough to be what was meant.
func didYouMean(word string, candidates []string) string {
	best, bestDistance := "", len(word)/3+2
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(word), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions and substitutions that lead from a to b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// suggest words a hint: the nearest candidate, or where to find them all.
func suggest(word string, candidates []string, otherwise string) string {
	for _, c := range candidates {
		// A name that lacks its section is too far off for a distance: slot, RELAY_SLOT.
		short := strings.TrimPrefix(word, envPrefix)
		if i := len(c) - len(short) - 1; i > 0 && strings.HasSuffix(c, short) && strings.ContainsRune("._-", rune(c[i])) {
			return fmt.Sprintf("did you mean %s?", c)
		}
	}
	if c := didYouMean(word, candidates); c != "" {
		return fmt.Sprintf("did you mean %s?", c)
	}
	return otherwise
}

// sortMistakes puts mistakes in the order of the keys, unknown ones last, so that output is stable.
func sortMistakes(ms Mistakes, order []string) {
	rank := func(m Mistake) int {
		if i := slices.Index(order, m.Key); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(ms, func(a, b Mistake) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra - rb
		}
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Source, b.Source))
	})
}
